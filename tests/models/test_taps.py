"""What a tap hears is what eager attention shows, and taps leave no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from networks import build, inputs, loaded

from attnscope import spectral_norm
from attnscope.models._plain import Plain


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "gpt_oss", "modernbert", "qwen3"])
def test_the_coupling_is_the_one_that_eager_attention_shows(name: str) -> None:
    case = ARCHITECTURES[name]
    model: Any = loaded(case.build())
    ids = model.sample(5)
    with torch.no_grad(), Plain(model.module)():
        shown = model.module(ids, output_attentions=True).attentions[case.layer][0]
    tap = model.tap(case.layer, ids[0])
    own = shown.double()[..., : ids.shape[1]]
    assert (tap.coupling - own).abs().max() < 1e-6
    assert torch.equal(tap.sinks, own.sum(-2).argmax(-1))
    entropy = -(own * own.clamp_min(1e-300).log()).sum(-1).mean(-1)
    assert (tap.entropy - entropy).abs().max() < 1e-5


def test_a_tap_leaves_the_module_as_it_was() -> None:
    module: Any = build("gpt2", "sdpa")
    model = loaded(module, torch.float32)
    model.tap(1, inputs("gpt2")[0])
    assert model.tapped
    assert module.config._attn_implementation == "sdpa"
    with torch.no_grad():
        assert module(inputs("gpt2")).last_hidden_state.isfinite().all()


def test_an_attention_of_the_users_own_is_not_replaced_by_ours() -> None:
    """Registered under another name, it computes another map: that one is measured."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def halved(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        scores = 0.5 * scaling * (q @ k.mT)
        p = (scores if mask is None else scores + mask[..., : k.shape[-2]]).softmax(-1)
        return (p @ v).transpose(1, 2).contiguous(), p

    AttentionInterface.register("halved", halved)
    AttentionMaskInterface.register("halved", eager_mask)
    module: Any = build("gpt2")
    module.set_attn_implementation("halved")
    model, plain = loaded(module), loaded(build("gpt2"))
    ids = inputs("gpt2")[0]
    assert not model.tapped
    x = model.tokens(ids, 0)
    assert (model.function(0)(x) - plain.function(0)(x)).abs().max() > 1e-3
    with pytest.warns(UserWarning, match="compute something else"):
        assert not model.rebuilt(0)


def test_the_operator_in_float32_finishes_in_float64() -> None:
    case = ARCHITECTURES["qwen3"]
    low, exact = loaded(case.build(), torch.float32), loaded(case.build())
    ids = torch.arange(2, 7)
    for head in (None, 1):
        found = spectral_norm(low.jacobian(1, ids, head=head), tol=1e-6)
        truth = spectral_norm(exact.jacobian(1, ids, head=head), tol=1e-10)
        assert float(found.lower) == pytest.approx(float(truth.lower), rel=1e-5)


def test_bad_requests_at_a_tap_are_refused() -> None:
    model, ids = loaded(build("gpt2")), inputs("gpt2")
    with pytest.raises(ValueError, match="one sequence"):
        model.tap(0, ids)
    with pytest.raises(ValueError, match="single heads are of the part attention"):
        model.function(0, "block", head=1)
    with pytest.raises(ValueError, match="head must be a whole number from 0 to 2"):
        model.jacobian(0, ids[0], head=3)


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "modernbert", "olmo2", "qwen3_next"])
def test_the_chain_rule_gives_the_dense_jacobian(name: str) -> None:
    """Sinks, soft-caps, windows, norms over all heads; a gate, which is left to autograd."""
    case = ARCHITECTURES[name]
    model: Any = loaded(case.build())
    ids = torch.arange(10, 20).reshape(2, 5)
    op = model.jacobian(case.layer, ids)
    for found, x in zip(op.to_dense(), model.tokens(ids, case.layer), strict=True):
        dense = torch.autograd.functional.jacobian(model.function(case.layer), x)
        dense = dense.reshape(found.shape)
        assert (found - dense).abs().max() < 1e-6 * dense.abs().max()
    u, v = torch.randn(2, *x.shape[-2:]).double()[:, None].expand(2, 2, -1, -1)
    assert float((op.mv(u) * v).sum()) == pytest.approx(float((u * op.rmv(v)).sum()), rel=1e-6)
