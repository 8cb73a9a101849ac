"""Single heads of tapped models with rotary embeddings, QK-norm, soft-caps and sinks run as one
stack, and are those of the model's own modules.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from torch import Tensor

from attnscope import spectral_norm
from attnscope.models import ModelNotice, _tapped_heads, heads_jacobian, heads_values
from attnscope.models._jacobian import head_jacobian
from attnscope.models._tapped_heads import tapped_heads
from attnscope.models._token_maps import head_maps
from attnscope.models.generic import Generic

CASES = {name: ARCHITECTURES[name] for name in ("llama", "qwen3", "gemma2", "gpt_oss")}
OVER_ALL = {
    **{name: ARCHITECTURES[name] for name in ("olmo2", "olmo3", "olmoe", "deepseek_v3")},
    "deepseek_v3, wide": replace(
        ARCHITECTURES["deepseek_v3"],
        options=ARCHITECTURES["deepseek_v3"].options | {"hidden_size": 32},
    ),
    "deepseek_v3, biased": replace(
        ARCHITECTURES["deepseek_v3"],
        options=ARCHITECTURES["deepseek_v3"].options | {"attention_bias": True},
    ),
}
"""Norms of all queries at once, or of a latent from which all heads are made."""
CASES |= OVER_ALL | {"persimmon": ARCHITECTURES["persimmon"]}


def tapped(name: str, dtype: torch.dtype = torch.float64) -> tuple[Any, int, Tensor]:
    """A model without a family file, a layer, and two sequences there."""
    case = CASES[name]
    module = case.build().to(dtype)
    with pytest.warns(ModelNotice, match="not known"):
        model = Generic(module, name)
    x = model.tokens(model.sample(7), case.layer)
    return model, case.layer, torch.cat([x, x.flip(1) + 0.3])


@pytest.mark.parametrize("name", CASES)
def test_a_stack_has_the_singular_values_of_each_head(name: str) -> None:
    model, layer, x = tapped(name)
    made = tapped_heads(model, layer, x)
    assert made is not None
    assert any(part is not None for part in made.numbers) == (name in OVER_ALL)
    heads = range(model.heads)
    op = heads_jacobian(model, layer, x, heads)
    assert op.stack == (model.heads, 2)
    assert op.in_shape[1] <= x.shape[-1]
    assert op.out_shape[1] < x.shape[-1]
    found, values = torch.linalg.svdvals(op.to_dense()), heads_values(model, layer, x, heads)
    head, s = model.heads - 1, 1
    single = model.function(layer, "attention", head)
    true = torch.func.jacrev(single)(x[s]).detach().reshape(x[s].numel(), -1)
    expected = torch.linalg.svdvals(true)[: found.shape[-1]]
    assert (found[head, s] - expected).abs().max() < 1e-6 * expected.max()
    added = single(x[s]).detach()
    assert float(values[head, s].norm()) == pytest.approx(float(added.norm()), rel=1e-5)
    u = torch.randn(*op.stack, *op.in_shape, generator=torch.Generator().manual_seed(0)).double()
    y = op.rmv(values)
    assert float((op.mv(u) * values).sum()) == pytest.approx(float((u * y).sum()))
    assert op.restrict is not None
    index = torch.tensor([3, 0])
    some = u.flatten(0, 1)[index]
    assert torch.allclose(op.restrict(index).mv(some), op.mv(u).flatten(0, 1)[index])


def test_float32_finishes_in_float64() -> None:
    low, layer, x = tapped("qwen3", torch.float32)
    exact, _, _ = tapped("qwen3")
    found = spectral_norm(heads_jacobian(low, layer, x, range(4)), tol=1e-6)
    truth = torch.linalg.svdvals(heads_jacobian(exact, layer, x.double(), range(4)).to_dense())
    assert torch.allclose(torch.as_tensor(found.lower).double(), truth[..., 0], rtol=1e-5)


def test_matrices_are_found_once_and_never_overlook_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, layer, x = tapped("qwen3")
    before = heads_jacobian(model, layer, x, [1]).to_dense()
    monkeypatch.setattr(_tapped_heads, "output_at", None)  # would fail if it were searched again
    longer = model.tokens(model.sample(9), layer)
    assert heads_jacobian(model, layer, longer, [1]).in_shape[0] == 9
    monkeypatch.undo()
    with torch.no_grad():
        model.module.layers[layer].self_attn.q_norm.weight *= 2
    after = heads_jacobian(model, layer, x, [1]).to_dense()
    true = model.jacobian(layer, model.sample(7), head=1)
    assert (after - before).abs().max() > 1e-3 * before.abs().max()
    assert torch.linalg.svdvals(after)[0, 0, 0] == pytest.approx(
        float(torch.linalg.svdvals(true.to_dense())[0, 0]), rel=1e-6
    )


@pytest.mark.parametrize("name", ["olmo2", "deepseek_v3, wide", "persimmon"])
def test_one_head_in_the_coordinates_of_the_tokens(name: str) -> None:
    model, layer, x = tapped(name)
    found = head_jacobian(model, layer, x[1], 1).to_dense()
    true = torch.func.jacrev(model.function(layer, "attention", 1))(x[1]).detach()
    true = true.reshape(found.shape)
    assert (found - true).abs().max() < 1e-6 * true.abs().max()


def test_numbers_of_a_norm_over_all_heads_are_not_those_of_other_tokens() -> None:
    """A norm that all heads share is part of the derivative: without it the values are others."""
    model, layer, x = tapped("olmo2")
    made = tapped_heads(model, layer, x)
    assert made is not None
    op = made.operator([1], (1, 2), torch.float64, reduced=True)
    query, key, _ = made.numbers
    assert query is not None
    assert key is not None
    swapped = made._replace(numbers=(query.flip(1), key, None))
    other = swapped.operator([1], (1, 2), torch.float64, reduced=True)
    one, two = (torch.linalg.svdvals(part.to_dense()) for part in (op, other))
    assert (one - two).abs().max() > 1e-3 * one.max()


def test_maps_of_another_form_are_differentiated_head_by_head() -> None:
    """Queries that bend like no norm does."""

    def given(x: Tensor, bend: float) -> tuple[Tensor, Tensor, Tensor]:
        y = x.unflatten(-1, (2, 4)).transpose(0, 1)
        return y + bend * y.sin(), y, y

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert head_maps(partial(given, bend=0.0), [x]) is not None
    assert head_maps(partial(given, bend=1e-3), [x]) is None


def test_maps_take_memory_linear_in_the_size_of_a_head() -> None:
    model, layer, x = tapped("qwen3")
    made = tapped_heads(model, layer, x)
    assert made is not None
    norm, turn = made.maps[0].norm, made.maps[0].turn
    assert norm is not None
    assert turn is not None
    assert norm.away.shape == made.call.q.shape
    assert turn.own.shape == made.call.q.shape[1:]


def test_embeddings_stand_for_ids() -> None:
    case = ARCHITECTURES["qwen3"]
    module: Any = case.build().double()
    with pytest.warns(ModelNotice, match="not known"):
        model = Generic(module, "qwen3")
    ids = model.sample(5)
    assert ids is not None
    vectors = module.get_input_embeddings().weight.detach()[ids]
    found, expected = model.tokens(vectors, case.layer), model.tokens(ids, case.layer)
    assert torch.allclose(found, expected)
    with pytest.raises(ValueError, match=r"embeddings of shape \(n, 16\)"):
        model.tokens(vectors[..., :3], case.layer)
