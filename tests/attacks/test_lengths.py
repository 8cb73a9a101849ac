"""The curves L(n, R): between their bounds, and growing where theorems say so."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope import Heads, Linear, Particles, Softmax, attacks
from attnscope.attacks._starts import longer


@pytest.fixture(scope="module")
def found() -> dict[bool, attacks.Curves]:
    a = torch.tensor([[-1.0, 0.5], [0.0, 0.3]], dtype=torch.float64)
    made = {}
    for causal in (False, True):
        attention = Softmax(Heads.from_matrices(a, torch.eye(2, dtype=a.dtype)), causal=causal)
        made[causal] = attacks.curves(attention, [4, 2, 3], [1.5, 0.5], starts=4, steps=8)
    return made


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_found_grows_and_stays_below_every_bound(
    found: dict[bool, attacks.Curves], causal: bool
) -> None:
    curves = found[causal]
    assert {(point.n, point.radius) for point in curves.points} == {
        (n, radius) for n in (2, 3, 4) for radius in (0.5, 1.5)
    }
    for point in curves.points:
        assert float(point.found.mu.radius()) <= point.radius
        assert point.found.mu.n == point.n
        assert {bound.name for bound in point.bounds} == (
            {"U1", "U1'", "K3"} if causal else {"U1", "U1'", "M1", "M1'"}
        )
        assert all(point.found.value <= bound.value for bound in point.bounds)
    for n in (2, 3, 4):
        values = [curves.at(n, radius).found.value for radius in (0.5, 1.5)]
        assert values == sorted(values)
    lengths = (2, 3, 4) if causal else (2, 4)
    for radius in (0.5, 1.5):
        values = [curves.at(n, radius).found.value for n in lengths]
        assert all(later >= earlier * (1 - 1e-9) for earlier, later in itertools.pairwise(values))
    with pytest.raises(KeyError, match="no point"):
        curves.at(5, 1.5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_longer_input_is_not_smoother(causal: bool, randn: Callable[..., Tensor]) -> None:
    attention = Softmax(Heads.from_matrices(randn(2, 2), randn(2, 2)), causal=causal)

    def constant(mu: Particles) -> float:
        dense = torch.func.jacrev(lambda x: attention.dense(x, mu.at(x)))(mu.x)
        return float(torch.linalg.matrix_norm(dense.reshape(mu.x.numel(), -1), 2))

    mu = Particles(randn(3, 2))
    twice = longer(attention, mu, 6)
    assert twice is not None
    assert twice.n == 6
    assert constant(twice) >= constant(mu) * (1 - 1e-12)
    assert (longer(attention, mu, 4) is None) is not causal
    assert longer(attention, mu, 2) is None


@pytest.mark.usefixtures("unchecked")
def test_curves_without_points_or_bounds_are_refused() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    attention = Softmax(Heads.from_matrices(eye, eye))
    for lengths, radii, message in (
        ([], [1.0], "at least one"),
        ([2], [], "at least one"),
        ([2], [0.0], "radius"),
        ([0], [1.0], "n must be"),
    ):
        with pytest.raises(ValueError, match=message):
            attacks.curves(attention, lengths, radii)
    with pytest.raises(ValueError, match="no bound is known"):
        attacks.curves(Linear(attention.heads), [2], [1.0])
