"""Heads that taps spell are those that the weights spell, and nothing else is taken for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from networks import build, inputs, loaded

from attnscope.measures import Particles
from attnscope.models import ModelNotice, heads_jacobian, spelled
from attnscope.models.generic import Generic


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_taps_spell_the_heads_of_the_weights(name: str) -> None:
    known: Any = loaded(build(name))
    with pytest.warns(ModelNotice, match="not known"):
        tapped = Generic(known.module, "taps")
    x = known.tokens(inputs(name), 1)
    made, truth = spelled(tapped, 1, x), known.attention(1)
    assert made is not None
    assert made.causal == truth.causal
    for part in ("query", "key", "value", "output"):
        one, other = getattr(made.heads, part), getattr(truth.heads, part)
        assert (one - other).abs().max() < 1e-10 * other.abs().max()
    assert (made(x, Particles(x)) - truth(x, Particles(x))).abs().max() < 1e-10
    heads = range(known.heads)
    one, other = (heads_jacobian(model, 1, x, heads).to_dense() for model in (tapped, known))
    values = [torch.linalg.svdvals(part) for part in (one, other)]
    assert one.shape == other.shape
    assert (values[0] - values[1]).abs().max() < 1e-10 * values[1].max()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt_oss"])
def test_what_is_not_softmax_of_linear_maps_is_not_spelled(name: str) -> None:
    """Rotary embeddings, norms, soft-caps and sinks."""
    case = ARCHITECTURES[name]
    model: Any = loaded(case.build())
    assert spelled(model, case.layer, model.tokens(model.sample(5), case.layer)) is None


def test_a_map_that_bends_at_one_sequence_of_a_stack_is_not_spelled() -> None:
    with pytest.warns(ModelNotice, match="not known"):
        model: Any = Generic(build("gpt2").double(), "bent")
    x = model.tokens(inputs("gpt2"), 0)
    stack = torch.cat([x, 100 * x])
    assert spelled(model, 0, stack) is not None
    core = model.module.h[0].attn.c_attn
    with torch.no_grad():
        handle = core.register_forward_hook(lambda _, __, out: out.clamp(-5, 5))
    assert spelled(model, 0, x) is not None  # far from the bend
    assert spelled(model, 0, stack) is None
    handle.remove()


def test_a_hook_that_comes_after_the_copy_in_float64_is_not_overlooked() -> None:
    with pytest.warns(ModelNotice, match="not known"):
        model: Any = Generic(build("gpt2"), "hooked")
    x = model.tokens(inputs("gpt2"), 0)
    before = spelled(model, 0, x)
    way_out = model.module.h[0].attn.c_proj
    handle = way_out.register_forward_hook(lambda _, __, out: 2 * out)
    after = spelled(model, 0, x)
    assert before is not None
    assert after is not None  # the hook is linear: heads of the hooked map
    assert torch.allclose(after(x, Particles(x)), 2 * before(x, Particles(x)), atol=1e-6)
    handle.remove()
