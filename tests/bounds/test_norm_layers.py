"""Bounds through norm layers, against dense Jacobians."""

from __future__ import annotations

import math

import pytest
import torch

from attnscope import Particles
from attnscope.bounds import norm_lipschitz, smoothness, through_norm


@pytest.mark.parametrize("centred", [True, False])
def test_the_constant_of_a_norm_layer_is_a_bound(centred: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = (
        torch.nn.LayerNorm(6, dtype=torch.float64)
        if centred
        else torch.nn.RMSNorm(6, eps=1e-5, dtype=torch.float64)
    )
    norm.weight.data = torch.randn(6, generator=generator, dtype=torch.float64)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    blocks = [torch.func.jacrev(norm)(token).detach() for token in x]
    largest = max(float(torch.linalg.matrix_norm(block, 2)) for block in blocks)
    assert largest <= norm_lipschitz(norm, x).value <= 4 * largest
    still = torch.zeros(1, 6, dtype=torch.float64)
    at_rest = float(torch.linalg.matrix_norm(torch.func.jacrev(norm)(still[0]).detach(), 2))
    assert (
        at_rest
        <= norm_lipschitz(norm, still).value
        == pytest.approx(float(norm.weight.detach().abs().max()) / math.sqrt(norm.eps))
    )


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_bounds_go_through_norm_and_residual(norm_first: bool, residual: bool, randn) -> None:
    from bound_cases import single

    attention = single(randn(3, 3), randn(3, 3))
    norm = torch.nn.LayerNorm(3, dtype=torch.float64)
    norm.weight.data = randn(3)
    x = randn(4, 3)

    def attend(x):
        return attention.dense(x, Particles(torch.zeros_like(x)).at(x))

    def part(x):
        if norm_first:
            return attend(norm(x)) + residual * x
        return norm(attend(x) + residual * x)

    read = norm(x).detach() if norm_first else x
    seen = x if norm_first else (attend(x) + residual * x)
    found = through_norm(
        smoothness(attention, Particles(read)),
        norm,
        seen,
        norm_first=norm_first,
        residual=residual,
    )
    truth = torch.linalg.matrix_norm(torch.func.jacrev(part)(x).reshape(12, 12).detach(), 2)
    assert found.tightest.value >= float(truth)
    assert "norm layer of constant" in found.tightest.assumes
