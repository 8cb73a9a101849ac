"""Bounds at the ends of floating point: finite or infinite, never NaN, and never below the truth
that rounding leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from torch import Tensor

from attnscope import L2, Attention, Heads, Particles, Sigmoid, Softmax, bounds

SIZES = [1e-300, 1e-160, 1e-30, 1e30, 1e155, 1e200, 1e300]


@pytest.mark.parametrize("variant", [Softmax, L2, Sigmoid])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("part", ["scores", "values", "radius"])
@pytest.mark.parametrize("size", SIZES)
def test_a_bound_on_a_ball_is_never_nan(
    variant: type[Attention], causal: bool, part: str, size: float, randn: Callable[..., Tensor]
) -> None:
    a, v = randn(3, 3), randn(3, 3)
    a, v = (size * a if part == "scores" else a), (size * v if part == "values" else v)
    heads = Heads(a[None], a[None], v[None] @ a[None]) if variant is L2 else None
    attention = variant(heads or Heads.from_matrices(a, v), causal=causal)
    for bound in bounds.on_ball(attention, 5, size if part == "radius" else 1.0):
        assert not math.isnan(bound.value)
        assert bound.value > 0


@pytest.mark.parametrize("part", ["scores", "values", "tokens"])
@pytest.mark.parametrize("size", SIZES)
def test_a_bound_at_a_point_is_never_nan(
    part: str, size: float, randn: Callable[..., Tensor]
) -> None:
    a, v, x = randn(3, 3), randn(3, 3), randn(5, 3)
    a, v, x = (
        size * made if part == name else made
        for name, made in (("scores", a), ("values", v), ("tokens", x))
    )
    attention = Softmax(Heads.from_matrices(a, v))
    found, complaint = tried(lambda: list(bounds.smoothness(attention, Particles(x))))
    if complaint is not None:
        assert "overflow" in complaint
        assert size > 1
    for bound in found:
        assert not math.isnan(bound.value)
        assert bound.value > 0


def tried(wanted: Callable[[], list[bounds.Bound]]) -> tuple[list[bounds.Bound], str | None]:
    """What came, and what was said instead."""
    try:
        return wanted(), None
    except ValueError as error:
        return [], str(error)
