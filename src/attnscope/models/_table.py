"""What attnscope can do with each architecture, found out on a tiny random network of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from attnscope.models._anatomy import Anatomy
from attnscope.models._base import Model
from attnscope.models._jacobian import heads_jacobian
from attnscope.models._load import load
from attnscope.models._parts import PARTS

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "ffn_dim": 20,
    "word_embed_proj_dim": 16,
    "embedding_size": 16,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "d_kv": 4,
    "rotary_dim": 4,
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "image_size": 8,
    "patch_size": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
ARCHITECTURES = (
    *("albert", "bert", "bloom", "camembert", "codegen", "cohere", "cohere2", "data2vec-text"),
    *("deberta", "deberta-v2", "deit", "dinov2", "dinov3_vit", "distilbert", "electra", "ernie"),
    *("ernie4_5", "esm", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm", "glm4"),
    *("gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "helium", "llama"),
    *("mistral", "mixtral", "modernbert", "mpnet", "mpt", "nemotron", "olmo", "olmo2", "olmo3"),
    *("olmoe", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("roberta", "roformer", "seed_oss", "siglip_vision_model", "smollm3", "stablelm"),
    *("starcoder2", "vit", "xlm-roberta", "clip_vision_model", "clip_text_model", "arcee"),
)
COLUMNS = (
    *("architecture", "family file", "door", "single heads", "bounds", "parts"),
    *("norm+attention", "residual", "mlp reads"),
)


class Row(NamedTuple):
    """One architecture: who serves it, what it has, and what its parts are: f the attention, N and
    M norms, c a scale.
    """

    architecture: str
    family: str
    door: str
    heads: str
    bounds: str
    parts: str
    normed: str
    residual: str
    mlp: str


def table(architectures: Sequence[str] = ARCHITECTURES) -> Iterator[Row]:
    """A row for each of these Hugging Face model types, made by trying."""
    for kind in architectures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield _row(kind)


def _row(kind: str) -> Row:
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        if kind not in transformers.CONFIG_MAPPING:
            raise ValueError("transformers knows no model of that type")
        # Some configurations work their head size out and refuse to be told.
        fixed = isinstance(getattr(transformers.CONFIG_MAPPING[kind], "head_dim", None), property)
        told = {name: size for name, size in TINY.items() if name != "head_dim" or not fixed}
        config = transformers.AutoConfig.for_model(kind, **told)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = transformers.AutoModel.from_config(config, attn_implementation="eager")
        model = load(made.eval(), dtype=torch.float64)
    except Exception as error:  # a configuration can break in any way
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"no tiny network of {kind!r} could be made: {said}") from error
    finally:
        transformers.logging.set_verbosity(level)
    inputs = model.sample(min(5, model.positions))
    if inputs is None:
        raise ValueError(f"no input for {kind!r} is known.")
    last = model.layers - 1
    return Row(
        kind,
        "" if model.family == "generic" else f"{model.family}.py",
        "yes" if model.tapped else "no",
        _heads(model, last, inputs),
        ", ".join(_bounds(model, last, inputs[0])) or "no",
        "all" if len(own := _parts(model, last, inputs[0])) == len(PARTS) else ", ".join(own),
        *_formulas(model.anatomy(last), own),
    )


def _heads(model: Model, layer: int, inputs: torch.Tensor) -> str:
    """How single heads of this layer are measured."""
    try:
        op = heads_jacobian(model, layer, model.tokens(inputs, layer), [0])
    except ValueError:
        return "no"
    return "in one stack" if op.out_shape[-1] < model.dim else "one by one"


def _formulas(seen: Anatomy, parts: Sequence[str]) -> tuple[str, str, str]:
    """What `norm+attention` and `residual` are, and where the MLP is read."""
    if "attention" not in parts:
        return "", "", ""
    written = "f(x)" if seen.reads is None else "f(N(x))"
    if seen.post_norm:
        normed, residual = f"N(x + {written})", f"x + {written}"
        read = normed
    else:
        outer = "N" if seen.reads is None else "M"
        added = f"{outer}({written})" if seen.normed else written
        normed = f"c {added}" if seen.scaled else added
        residual = f"x + {normed}"
        read = "x" if seen.parallel else residual
    shown = {"norm+attention": normed, "residual": residual, "mlp": read}
    normed, residual, read = (text if part in parts else "" for part, text in shown.items())
    return normed, residual, read


def _has(attempt: Any) -> str:
    try:
        attempt()
    except ValueError:
        return "no"
    return "yes"


def _bounds(model: Model, layer: int, source: torch.Tensor) -> list[str]:
    found = ["on a ball"] if model.rebuilt(layer) else []
    if _has(lambda: model.bounds(layer, source)) == "yes":
        found.insert(0, "at a point")
    return found


def _parts(model: Model, layer: int, source: torch.Tensor) -> list[str]:
    return [
        part
        for part in PARTS
        if _has(lambda part=part: model.function(layer, part)(model.tokens(source, layer, part)))
        == "yes"
    ]
