"""Single heads of tapped models with rotary embeddings, QK-norm, soft-caps and sinks run as one
stack, and are those of the model's own modules.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from torch import Tensor

from attnscope import spectral_norm
from attnscope.models import ModelNotice, _tapped_heads, heads_jacobian, heads_values
from attnscope.models._tapped_heads import tapped_heads
from attnscope.models._taps import listening
from attnscope.models.generic import Generic

NAMES = ("llama", "qwen3", "gemma2", "gpt_oss")


def tapped(name: str, dtype: torch.dtype = torch.float64) -> tuple[Any, int, Tensor]:
    """A model without a family file, a layer, and two sequences there."""
    case = ARCHITECTURES[name]
    module = case.build().to(dtype)
    with pytest.warns(ModelNotice, match="not known"):
        model = Generic(module, name)
    x = model.tokens(model.sample(7), case.layer)
    return model, case.layer, torch.cat([x, x.flip(1) + 0.3])


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_has_the_singular_values_of_each_head(name: str) -> None:
    model, layer, x = tapped(name)
    assert tapped_heads(model, layer, x) is not None
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
    with torch.no_grad(), listening(lambda call: 0 * call.attend()):
        constant = model.function(layer, "attention")(x[s])
    added = (single(x[s]) - constant).detach()
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


def test_a_norm_over_all_heads_is_differentiated_head_by_head() -> None:
    """There a head's query depends on what the others read: no small map has its values."""
    model, layer, x = tapped("olmo2")
    assert tapped_heads(model, layer, x) is None
    assert heads_jacobian(model, layer, x, [1]).in_shape == (7, x.shape[-1])


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
