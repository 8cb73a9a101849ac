"""Tiny networks of Hugging Face: constants and bounds, by Python and by the command line."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from golden_source import Group, Source, number, overwrite
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import attnscope as asc
from attnscope.cli import main
from attnscope.studies.measure import growth

WORDS = 30
COMMON: dict[str, Any] = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
}
TEXT: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": 32}


def _gpt2() -> nn.Module:
    sizes = {"n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 32, "vocab_size": WORDS}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def _bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**COMMON, **TEXT))


def _llama() -> nn.Module:
    sizes = COMMON | {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaModel(transformers.LlamaConfig(**sizes, **TEXT))


def _vit() -> nn.Module:
    return transformers.ViTModel(
        transformers.ViTConfig(**COMMON, image_size=8, patch_size=4, num_channels=2)
    )


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "vit": _vit,
}


def _network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: Any = BUILDERS[name]().eval()
    module.set_attn_implementation("eager")
    overwrite(module, Source(f"model {name}"), 1.5)
    return module


def _inputs(name: str, n: int) -> torch.Tensor:
    source = Source(f"inputs {name}")
    return source.normal(1, 2, 8, 8) if name == "vit" else source.ids(n, WORDS)


def parts() -> Group:
    """The attention of every family with its constants and bounds, and the other parts of texts."""
    for name in BUILDERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asc.ModelNotice)
            model = asc.load(_network(name), dtype=torch.float64)
        for layer in range(model.layers):
            tokens = model.tokens(_inputs(name, 9), layer)
            mu = asc.Particles(tokens.reshape(-1, model.dim))
            attention = model.attention(layer)
            key = f"{name} layer {layer}"
            sigma = asc.spectral_norm(asc.jacobian(attention, mu), tol=1e-10).lower
            yield f"{key}/attention/sigma", "constant", number(sigma)
            radius = model.norm_radius(layer)
            if radius is not None:
                yield f"{key}/norm radius", "bound", radius
            for bound in asc.bounds.smoothness(attention, mu):
                yield f"{key}/attention/{bound.name}", "bound", bound.value
            if attention.heads.rotary is None:
                moved = asc.bounds.sensitivity(attention, mu.x, 0.1, residual=1.0)
                yield f"{key}/moved by 0.1", "bound", number(moved.value)
        if name != "vit":
            yield from _swept(name, model)


def _swept(name: str, model: asc.Model) -> Group:
    """Every part at two lengths, as `attnscope.measure` sees it."""
    for part in ("attention", "norm+attention", "residual"):
        table = asc.measure(
            model,
            _inputs(name, 30),
            (4, 9),
            samples=2,
            part=part,
            heads="longest" if part == "attention" else "none",
            tol=1e-10,
            failure_probability=None,
            bounds=False,
        )
        groups: dict[str, list[Any]] = {}
        for row in table:
            head = "" if row.head is None else f" head {row.head}"
            groups.setdefault(f"{name} layer {row.layer}{head}/{part} n={row.n}", []).append(row)
        for key, rows in groups.items():
            yield f"{key}/sigma", "constant", [row.lower for row in rows]
            yield f"{key}/token norms", "constant", [row.radius for row in rows]
    if name == "gpt2":
        found = model.perturb(1, _inputs(name, 6), [0.01, 0.1])
        yield f"{name}/perturbed/sigma", "constant", found.sigma
        yield f"{name}/perturbed/actual", "constant", [step.actual for step in found.steps]


def measured() -> Group:
    """Bounds of parts with norms and residuals, from the file that `attnscope measure` leaves."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("bert", "gpt2", "llama"):
            folder = Path(place) / name
            _save(name, folder)
            for part in ("norm+attention", "residual"):
                out = folder / part
                accuracy = "--dtype float64 --tol 1e-10 --estimate"
                arguments = f"--part {part} --lengths 4,9 --samples 1 {accuracy}".split()
                _run(
                    "measure",
                    str(folder),
                    "--text",
                    str(folder / "text.txt"),
                    "--out",
                    str(out),
                    *arguments,
                )
                for row in json.loads((out / "bounds.json").read_text()):
                    value = float("inf") if row["value"] is None else row["value"]
                    yield f"{name} layer {row['layer']}/{part}/{row['name']}", "bound", value
    fitted = growth([2, 4, 8, 16, 32], [1.0, 1.5, 1.9, 3.1, 4.2])
    assert fitted is not None
    yield "growth/exponent", "constant", fitted.exponent
    yield "growth/factor", "constant", fitted.factor


def _save(name: str, folder: Path) -> None:
    """A model as users find them: config.json, safetensors, tokenizer; and a text."""
    words = ["[UNK]", *(f"word{number}" for number in range(1, WORDS))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    module: Any = _network(name)
    module.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fast.save_pretrained(folder)
    ids = Source(f"text {name}").ids(40, WORDS).tolist()
    (folder / "text.txt").write_text(" ".join(words[number] for number in ids))


def _run(*arguments: str) -> None:
    with _quiet():
        try:
            main(list(arguments))
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(
                    f"attnscope {' '.join(arguments)} ended with {stop.code}."
                ) from stop


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield
