"""Distances whose value is known: translations, permutations, lines, Gaussians, sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope import Gaussian, Particles, bures, conditional_wasserstein, wasserstein
from attnscope import transport as module

Draw = Callable[..., torch.Tensor]
orders = st.sampled_from([1, 1.5, 2, 3, 10])


def tensor(*rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def cloud(seed: int, n: int, dim: int) -> Particles:
    source = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, dtype=torch.float64, generator=source) + 0.1
    return Particles(
        torch.randn(n, dim, dtype=torch.float64, generator=source), weights / weights.sum()
    )


@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 8),
    dim=st.integers(1, 3),
    p=orders,
    size=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_a_translation_costs_its_length(seed: int, n: int, dim: int, p: float, size: float) -> None:
    mu = cloud(seed, n, dim)
    shift = size * cloud(seed + 1, 1, dim).x[0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    nu = Particles((mu.x + shift)[order], mu.weights[order])
    assert wasserstein(mu, nu, p) == pytest.approx(float(shift.norm()), rel=1e-6)


@given(seed=st.integers(0, 99), n=st.integers(1, 5), dim=st.integers(1, 3), p=orders)
def test_between_equal_masses_the_best_permutation_is_optimal(
    seed: int, n: int, dim: int, p: float
) -> None:
    x, y = cloud(seed, n, dim).x, cloud(seed + 1, n, dim).x
    best = min(
        float(((x - y[list(order)]).norm(dim=-1) ** p).mean()) ** (1 / p)
        for order in itertools.permutations(range(n))
    )
    assert wasserstein(Particles(x), Particles(y), p) == pytest.approx(best, rel=1e-9)


@given(seed=st.integers(0, 99), n=st.integers(1, 8), m=st.integers(1, 8), p=orders)
def test_a_line_needs_no_solver(seed: int, n: int, m: int, p: float) -> None:
    mu, nu = cloud(seed, n, 1), cloud(seed + 1, m, 1)
    lifted = [
        Particles(torch.cat([part.x, torch.zeros_like(part.x)], -1), part.weights)
        for part in (mu, nu)
    ]
    assert wasserstein(mu, nu, p) == pytest.approx(wasserstein(*lifted, p), rel=1e-9, abs=1e-12)


@given(seed=st.integers(0, 99), dim=st.integers(1, 3), p=orders)
def test_it_is_a_distance(seed: int, dim: int, p: float) -> None:
    a, b, c = (cloud(seed + i, 4 + i, dim) for i in range(3))
    assert wasserstein(a, a, p) == pytest.approx(0, abs=1e-12)
    assert wasserstein(a, b, p) == pytest.approx(wasserstein(b, a, p), rel=1e-9)
    assert 0 < wasserstein(a, c, p) <= wasserstein(a, b, p) + wasserstein(b, c, p) + 1e-12


def test_two_diracs_are_as_far_apart_as_their_points() -> None:
    assert wasserstein(Particles(tensor([0, 0])), Particles(tensor([3, 4])), 1) == pytest.approx(5)


def test_splitting_mass_costs_the_share_that_moves() -> None:
    mu = Particles(tensor([0, 0], [3, 4]), tensor(0.9, 0.1))
    nu = Particles(tensor([0, 0]))
    assert wasserstein(mu, nu, 1) == pytest.approx(0.5)
    assert wasserstein(mu, nu) == pytest.approx(5 * math.sqrt(0.1))


def test_the_distance_is_exact_in_float32_too() -> None:
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    assert wasserstein(Particles(x), Particles(x + 2.0**-10)) == pytest.approx(
        math.sqrt(2) / 2**10, rel=1e-3
    )


@given(m=st.floats(-2, 2), s=st.floats(0, 2), t=st.floats(0, 2))
def test_gaussians_on_a_line(m: float, s: float, t: float) -> None:
    mu, nu = (Gaussian(tensor(mean), tensor([sigma**2])) for mean, sigma in ((0.0, s), (m, t)))
    assert wasserstein(mu, nu) == pytest.approx(math.hypot(m, s - t), abs=1e-9)


@given(
    s=st.lists(st.floats(0, 2), min_size=3, max_size=3),
    t=st.lists(st.floats(0, 2), min_size=3, max_size=3),
)
def test_bures_between_covariances_that_commute(s: list[float], t: list[float]) -> None:
    basis = torch.linalg.qr(cloud(0, 3, 3).x).Q
    sigma, tau = (
        basis @ torch.diag(torch.tensor(v, dtype=torch.float64) ** 2) @ basis.mT for v in (s, t)
    )
    assert bures(sigma, tau) == pytest.approx(math.dist(s, t), abs=1e-7)


def test_bures_is_its_trace_formula_and_any_cloud_moved_by_the_optimal_map(randn: Draw) -> None:
    first, second = randn(3, 3), randn(3, 3)
    sigma, tau = first @ first.mT, second @ second.mT
    root = Gaussian(torch.zeros(3, dtype=torch.float64), sigma).factor()
    middle = Gaussian(torch.zeros(3, dtype=torch.float64), root @ tau @ root).factor()
    assert bures(sigma, tau) ** 2 == pytest.approx(float((sigma + tau - 2 * middle).trace()))
    transport = torch.linalg.solve(root, middle) @ torch.linalg.inv(root)
    rule = Gaussian(torch.zeros(3, dtype=torch.float64), sigma).quadrature(2)
    moved = rule.at(rule.x @ transport.mT)
    assert torch.allclose(moved.cov(), tau)
    assert bures(sigma, tau) == pytest.approx(wasserstein(rule, moved))


def test_bures_between_orthogonal_lines() -> None:
    assert bures(tensor([4, 0], [0, 0]), tensor([0, 0], [0, 9])) == pytest.approx(math.sqrt(13))
    assert bures(tensor([4, 0], [0, 0]), tensor([0, 0], [0, 0])) == pytest.approx(2)


def test_bures_does_not_cancel_near_equality(randn: Draw) -> None:
    factor = randn(3, 3)
    cov = factor @ factor.mT
    assert bures(cov, cov) < 1e-13
    assert bures(cov, cov * (1 + 1e-9) ** 2) == pytest.approx(
        1e-9 * math.sqrt(float(cov.trace())), rel=1e-4
    )


def test_bures_in_float32_is_as_good_as_its_input() -> None:
    line = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    assert bures(line, line * 1.21) == pytest.approx(0.1 * math.sqrt(2), rel=1e-6)


def test_distances_ignore_gradients(randn: Draw) -> None:
    x, factor = randn(3, 2).requires_grad_(), randn(2, 2).requires_grad_()
    assert wasserstein(Particles(x), Particles(x + 1)) == pytest.approx(math.sqrt(2))
    gaussian = Gaussian(factor[0], factor @ factor.mT)
    assert wasserstein(gaussian, gaussian) == pytest.approx(0, abs=1e-12)


@given(seed=st.integers(0, 99), n=st.integers(1, 6), dim=st.integers(1, 3))
def test_sequences_in_order_are_compared_token_by_token(seed: int, n: int, dim: int) -> None:
    x, y = cloud(seed, n, dim).x, cloud(seed + 1, n, dim).x
    expected = float(torch.linalg.matrix_norm(x - y)) / math.sqrt(n)
    assert conditional_wasserstein(Particles(x), Particles(y)) == pytest.approx(expected)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    shuffled = Particles(y[order], positions=Particles(y).places()[order])
    assert conditional_wasserstein(Particles(x), shuffled) == pytest.approx(expected)
    assert (
        conditional_wasserstein(Particles(x), Particles(y))
        >= wasserstein(Particles(x), Particles(y)) - 1e-12
    )


@given(seed=st.integers(0, 99), p=orders)
def test_tokens_at_one_position_are_compared_as_a_cloud(seed: int, p: float) -> None:
    x, y = cloud(seed, 5, 2).x, cloud(seed + 1, 5, 2).x
    stand = tensor(0.5, 1.0, 0.5, 0.5, 1.0)
    early, late = stand == 0.5, stand == 1.0
    parts = [wasserstein(Particles(x[here]), Particles(y[here]), p) for here in (early, late)]
    expected = (0.6 * parts[0] ** p + 0.4 * parts[1] ** p) ** (1 / p)
    mu, nu = (Particles(points, positions=stand) for points in (x, y))
    assert conditional_wasserstein(mu, nu, p) == pytest.approx(expected, rel=1e-9)


def test_one_position_for_all_gives_the_plain_distance() -> None:
    mu, nu = cloud(0, 4, 2), cloud(1, 6, 2)
    placed = [
        Particles(part.x, part.weights, torch.zeros(part.n, dtype=torch.float64))
        for part in (mu, nu)
    ]
    assert conditional_wasserstein(*placed, p=3) == pytest.approx(wasserstein(mu, nu, 3))


def test_a_token_split_in_two_is_the_same_sequence() -> None:
    mu = Particles(tensor([0.0], [1.0]), tensor(0.5, 0.5), tensor(0.5, 1.0))
    nu = Particles(tensor([0.0], [0.0], [1.0]), tensor(0.2, 0.3, 0.5), tensor(0.5, 0.5, 1.0))
    assert conditional_wasserstein(mu, nu) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("weights", "positions"),
    [((0.5, 0.5), (0.5, 0.9)), ((0.4, 0.6), (0.5, 1.0)), ((0.5, 0.5), (1.0, 1.0))],
    ids=["other places", "other masses", "fewer places"],
)
def test_sequences_whose_positions_differ_in_law_are_infinitely_far(
    weights: tuple[float, ...], positions: tuple[float, ...]
) -> None:
    mu = Particles(tensor([0.0], [1.0]), tensor(0.5, 0.5), tensor(0.5, 1.0))
    nu = Particles(mu.x, tensor(*weights), tensor(*positions))
    assert conditional_wasserstein(mu, nu) == conditional_wasserstein(nu, mu) == math.inf


def test_a_token_without_mass_has_no_place() -> None:
    mu = Particles(tensor([0.0], [1.0]), tensor(0.5, 0.5), tensor(0.5, 1.0))
    nu = Particles(tensor([9.0], [0.0], [1.0]), tensor(0.0, 0.5, 0.5), tensor(0.2, 0.5, 1.0))
    assert conditional_wasserstein(mu, nu) == 0


def test_a_cost_matrix_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COST_ENTRIES", 100)
    with pytest.raises(
        ValueError,
        match=(
            r"between 11 and 10 particles needs a cost matrix of 110 entries, more than 100\."
            r" Compare smaller"
        ),
    ):
        wasserstein(cloud(0, 11, 2), cloud(1, 10, 2))


def test_a_power_that_the_solver_cannot_resolve_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"above p = 10 the solver cannot .* got p = 40\. Use a smaller p"
    ):
        wasserstein(cloud(0, 5, 2), cloud(1, 4, 2), 40)


def test_a_line_takes_any_power() -> None:
    assert wasserstein(
        Particles(tensor([0.0], [1.0])), Particles(tensor([3.0], [1.5])), 200
    ) == pytest.approx(2 * 0.5 ** (1 / 200))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e155, 1e300])
@pytest.mark.parametrize("d", [1, 3])
def test_distances_scale_over_the_whole_range_of_floating_point(
    scale: float, d: int, randn: Callable[..., torch.Tensor]
) -> None:
    r"""$W_p(s\mu, s\nu) = sW_p(\mu, \nu)$, where squares of s are no numbers."""
    x, y = randn(5, d), randn(5, d)
    for distance in (wasserstein, conditional_wasserstein):
        plain = distance(Particles(x), Particles(y))
        scaled = distance(Particles(scale * x), Particles(scale * y))
        assert scaled / scale == pytest.approx(plain, rel=1e-9)
