"""The Jacobian of every part of every family: its largest singular value is that of the dense
Jacobian of the network's own modules.
"""

from __future__ import annotations

import pytest
import torch
from networks import KINDS, build, inputs, loaded, shared
from torch import nn

from attnscope import spectral_norm
from attnscope.models import PARTS, Part
from attnscope.models._jacobian import part_jacobian


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", KINDS)
def test_the_constant_of_every_part_is_that_of_the_dense_jacobian(name: str, part: Part) -> None:
    model = shared(name)
    x = model.tokens(inputs(name, count=2), 1, part)
    op = part_jacobian(model, 1, part, x)
    found, whole = spectral_norm(op, tol=1e-11), op.to_dense()
    for b in range(2):
        dense = (
            torch.func.jacrev(model.function(1, part))(x[b])
            .detach()
            .reshape(x[b].numel(), x[b].numel())
        )
        tolerance = 1e-5 if KINDS[name].float32_inside else 1e-8
        assert (whole[b] - dense).abs().max() < tolerance * dense.abs().max()
        truth = float(torch.linalg.svdvals(dense)[0])
        if part == "mlp":  # token by token: its top singular values may be as close as tokens are
            assert truth * (1 - 1e-3) < float(found.lower[b]) < truth * (1 + tolerance)
        else:
            assert float(found.lower[b]) == pytest.approx(truth, rel=tolerance)


@pytest.mark.parametrize("part", ["norm+attention", "residual"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_short_tokens_meet_the_epsilon_of_the_norm(name: str, part: Part) -> None:
    model = shared(name)
    x = 1e-3 * model.tokens(inputs(name)[0], 1, part)
    dense = torch.func.jacrev(model.function(1, part))(x).detach().reshape(x.numel(), x.numel())
    truth = float(torch.linalg.svdvals(dense)[0])
    assert float(spectral_norm(part_jacobian(model, 1, part, x), tol=1e-11).lower) == pytest.approx(
        truth, rel=1e-5
    )


@pytest.mark.parametrize("part", [part for part in PARTS if part != "mlp"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_lower_bounds_in_float32_are_those_of_the_float64_map(name: str, part: Part) -> None:
    if name == "llama" and part == "block":
        pytest.skip("Hugging Face evaluates parts of it in float32 whatever the dtype")
    module = build(name)
    low, exact = loaded(module, torch.float32), loaded(module, torch.float64)
    x = 5 * low.tokens(inputs(name, count=6), 1, part)
    found = spectral_norm(part_jacobian(low, 1, part, x, double=exact), tol=1e-6)
    truth = spectral_norm(part_jacobian(exact, 1, part, x.double()), tol=1e-12)
    ratio = torch.as_tensor(found.lower) / torch.as_tensor(truth.lower)
    assert (ratio <= 1 + 1e-10).all()
    assert (ratio >= 1 - 1e-5).all()


def test_networks_of_unknown_structure_go_through_autograd() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64).eval()
    model = loaded(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval())
    x = torch.randn(2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = model.tokens(x, 0, "block")
    op = part_jacobian(model, 0, "block", x)
    dense = torch.func.jacrev(model.function(0, "block"))(x[1]).detach().reshape(32, 32)
    torch.testing.assert_close(op.to_dense()[1], dense)
