"""Slopes and curvatures of smooth activations over intervals: the extremes themselves."""

from __future__ import annotations

import pytest
import torch

from attnscope.layers import GELU, Sigmoid, SiLU, Smooth, Tanh, TanhGELU

ALL = [GELU(), TanhGELU(), SiLU(), Tanh(), Sigmoid()]


def derivative(f: object, u: torch.Tensor) -> torch.Tensor:
    at = u.clone().requires_grad_()
    return torch.autograd.grad(f(at).sum(), at)[0]  # type: ignore[operator]


@pytest.mark.parametrize("act", ALL, ids=lambda act: type(act).__name__)
def test_derivatives_are_those_of_the_function(act: Smooth) -> None:
    u = torch.linspace(-7, 7, 2001, dtype=torch.float64)
    assert torch.allclose(act.first(u), derivative(act, u), atol=1e-12)
    assert torch.allclose(act.second(u), derivative(act.first, u), atol=1e-12)
    assert float(act.first(u).abs().max()) <= act.slope * (1 + 1e-12)


@pytest.mark.parametrize("act", ALL, ids=lambda act: type(act).__name__)
def test_extremes_over_an_interval_are_reached_and_not_passed(act: Smooth) -> None:
    g = torch.Generator().manual_seed(0)
    u = 8 * torch.rand(300, generator=g, dtype=torch.float64) - 4
    theta = 3 * torch.rand(300, generator=g, dtype=torch.float64) ** 2
    inside = u + theta * torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None]
    for bound, values in (
        (act.steepest(u, theta), act.first(inside).abs()),
        (act.curvature(u, theta), act.second(inside).abs()),
        (act.bent(-torch.ones_like(u), u, theta), act.second(inside).clamp(min=0)),
        (act.bent(torch.ones_like(u), u, theta), (-act.second(inside)).clamp(min=0)),
    ):
        reached = values.amax(0)
        assert (reached <= bound).all()
        assert (reached >= 0.99 * bound - 1e-5).all(), "half of it would be passed"


@pytest.mark.parametrize("act", ALL, ids=lambda act: type(act).__name__)
def test_no_critical_point_is_missing(act: Smooth) -> None:
    """Signs of the next derivative on a fine grid change at the listed points and nowhere else."""
    u = torch.linspace(-9, 9, 360_002, dtype=torch.float64)
    for values, points in ((act.second(u), act.turns), (derivative(act.second, u), act.bends)):
        sure = values.abs() > 1e-13
        signs, where = values.sign()[sure], u[sure]
        changes = (signs[1:] != signs[:-1]).nonzero()[:, 0]
        found = ((where[changes] + where[changes + 1]) / 2).tolist()
        assert len(found) == len(points)
        assert found == pytest.approx(sorted(points), abs=2e-4)
