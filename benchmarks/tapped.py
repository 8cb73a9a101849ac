"""Models on taps beside models whose heads are rebuilt: one pair of products, all single heads, and
how tight the tapped bounds are.

What is compared. "The same map" is one network, at the same tokens, seen in both ways: the module's
own code in front of and behind a tap, and the matrices of its family file. Rows of other
architectures stand beside a rebuilt Llama of the same width, number of heads, width of heads, mask
and tokens; each side is what its heads are, so norms of queries and keys, latents, soft-caps and
sinks are paid for on the tapped side alone, and rotary embeddings on both. One pair of products is
one mv and one rmv of all heads; how many pairs a tolerance takes depends on the spectrum of a map
and not on how it is run, so it is not counted. Maps of a layer are found once, before the clock
starts. CPU time of one thread, the sides in turn, medians of many rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers

from attnscope.data.texts import text, windows
from attnscope.models import Model, heads_jacobian, load
from attnscope.models.generic import Generic
from attnscope.operators import LinearOperator, spectral_norm
from benchmarks.timing import seconds

LENGTHS = (256, 1024)
ROUNDS = {256: 25, 1024: 9}
BOUND_LENGTH = 128
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
}
SHAPES = (
    "Qwen3",
    "Gemma2",
    "Gemma3Text",
    "GptOss",
    "Olmo2",
    "Olmo3",
    "Olmoe",
    "Persimmon",
    "DeepseekV3",
)
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 16,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 2,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "GptOss": EXPERTS,
    "Olmoe": EXPERTS,
    "DeepseekV3": LATENT | {"num_experts_per_tok": 2},
}


def main() -> dict[str, dict[str, float]]:
    """GPT-2 and a random Llama in both ways, heads of other random models beside those of the
    rebuilt Llama; minilm and random models for bounds.
    """
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _times() | _times_of_shapes() | _bounds()


def _times() -> dict[str, dict[str, float]]:
    """The same map in both ways."""
    found: dict[str, dict[str, float]] = {}
    for name, rebuilt in (("GPT-2", load("gpt2-random")), ("random Llama shape", _random("Llama"))):
        tapped = Generic(rebuilt.module, "the same through taps")
        for n in LENGTHS:
            ids = _ids(n)
            whole = [_pair(model.jacobian(1, ids)) for model in (rebuilt, tapped)]
            found[f"one pair through a tap over a rebuilt one, {name}, n = {n:,}"] = {
                "value": _ratio_of_times(whole, n),
                "at most": 1.25,
            }
            x, heads = rebuilt.tokens(ids, 1), range(rebuilt.heads)
            single = [_pair(heads_jacobian(model, 1, x, heads)) for model in (rebuilt, tapped)]
            found[f"all heads through taps over rebuilt ones, {name}, n = {n:,}"] = {
                "value": _ratio_of_times(single, n),
                "at most": 1.1,
            }
    return found


def _times_of_shapes() -> dict[str, dict[str, float]]:
    """All heads of a layer."""
    rebuilt, found = _random("Llama"), dict[str, dict[str, float]]()
    for kind in SHAPES:
        model = _random(kind)
        for n in LENGTHS:
            ids = _ids(n)
            pairs = [
                _pair(heads_jacobian(each, 1, each.tokens(ids, 1), range(each.heads)))
                for each in (rebuilt, model)
            ]
            found[f"all heads, random {kind} shape, over a rebuilt Llama's, n = {n:,}"] = {
                "value": _ratio_of_times(pairs, n),
                "at most": 1.25,
            }
    return found


def _ids(n: int) -> torch.Tensor:
    return torch.randint(3, 1000, (1, n), generator=torch.Generator().manual_seed(n))


def _ratio_of_times(pairs: list[Callable[[], object]], n: int) -> float:
    rebuilt, tapped = seconds(*pairs, repeats=ROUNDS[n])
    return tapped / rebuilt


def _random(kind: str) -> Model:
    config = getattr(transformers, f"{kind}Config")(**SHAPE | OPTIONS.get(kind, {}))
    torch.manual_seed(0)
    return load(getattr(transformers, f"{kind}Model")(config).eval())


def _pair(op: LinearOperator) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn((*op.stack, *op.in_shape), generator=generator)
    op.rmv(op.mv(u))
    return lambda: op.rmv(op.mv(u))


def _bounds() -> dict[str, dict[str, float]]:
    minilm = load("minilm")
    ids = windows(minilm.encode(text("alice")), BOUND_LENGTH, 1)[0]
    found = {
        f"TB-S over sigma, minilm, n = {BOUND_LENGTH}, loosest layer": {
            "value": max(_ratio(minilm, layer, ids) for layer in range(minilm.layers)),
            "at most": 4.0,
        }
    }
    for kind in SHAPES:
        model = _random(kind)
        ratio = _ratio(model, 1, _ids(BOUND_LENGTH)[0])
        found[f"TB-S over sigma, random {kind} shape, n = {BOUND_LENGTH}"] = {"value": ratio}
    return found


def _ratio(model: Model, layer: int, ids: torch.Tensor) -> float:
    (bound,) = (bound for bound in model.bounds(layer, ids) if bound.name == "TB-S")
    return bound.value / float(spectral_norm(model.jacobian(layer, ids), tol=1e-3).lower)
