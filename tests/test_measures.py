"""Measures: exact moments, Gauss-Hermite exactness, seeds, dtypes and devices that follow the
input.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope import Gaussian, Particles
from attnscope.measures import square_root

Draw = Callable[..., torch.Tensor]


def moment(degree: int) -> float:
    """E[Z^degree] of a standard normal variable."""
    return 0.0 if degree % 2 else float(math.prod(range(1, degree, 2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_uniform_by_default_in_the_dtype_of_the_points(dtype: torch.dtype) -> None:
    mu = Particles(torch.zeros(2, 4, 3, dtype=dtype))
    assert (mu.n, mu.dim) == (4, 3)
    assert torch.equal(mu.weights, torch.full((2, 4), 0.25, dtype=dtype))
    assert mu.positions is None


def test_moments_of_a_weighted_cloud() -> None:
    mu = Particles(torch.tensor([[0.0, 0.0], [4.0, 2.0]]), torch.tensor([0.75, 0.25]))
    assert mu.mean().tolist() == [1.0, 0.5]
    assert mu.cov().tolist() == [[3.0, 1.5], [1.5, 0.75]]
    assert float(mu.radius()) == pytest.approx(math.sqrt(20))


def test_moments_of_a_stack_are_a_stack_of_moments(randn: Draw) -> None:
    x, weights = randn(3, 5, 2), randn(3, 5).exp()
    mu = Particles(x, weights / weights.sum(-1, keepdim=True))
    each = [Particles(mu.x[i], mu.weights[i]) for i in range(3)]
    assert torch.allclose(mu.mean(), torch.stack([one.mean() for one in each]))
    assert torch.allclose(mu.cov(), torch.stack([one.cov() for one in each]))
    assert torch.allclose(mu.radius(), torch.stack([one.radius() for one in each]))


def test_tokens_stand_at_i_over_n_unless_told_otherwise() -> None:
    x = torch.zeros(2, 4, 1, dtype=torch.float64)
    assert Particles(x).places().tolist() == [[0.25, 0.5, 0.75, 1.0]] * 2
    stand = torch.tensor([0.5, 0.5, 0.0, 1.0], dtype=torch.float64)
    assert torch.equal(Particles(x[0], positions=stand).places(), stand)


def test_at_keeps_masses_and_positions(randn: Draw) -> None:
    mu = Particles(
        randn(3, 2),
        torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64),
        torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
    )
    moved = mu.at(mu.x + 1)
    assert torch.equal(moved.x, mu.x + 1)
    assert moved.weights is mu.weights
    assert moved.positions is mu.positions


def test_to_converts_every_part(randn: Draw) -> None:
    mu = Particles(randn(3, 2), positions=torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).to(
        torch.float32
    )
    assert mu.positions is not None
    assert mu.x.dtype == mu.weights.dtype == mu.positions.dtype == torch.float32
    gaussian = Gaussian(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)).to(
        torch.float32
    )
    assert gaussian.mean.dtype == gaussian.cov.dtype == torch.float32
    assert Particles(randn(3, 2)).to("meta").x.device.type == "meta"


@given(order=st.integers(1, 12), mean=st.floats(-1, 1), spread=st.floats(0.1, 2))
def test_quadrature_integrates_polynomials_exactly(order: int, mean: float, spread: float) -> None:
    rule = Gaussian(
        torch.tensor([mean], dtype=torch.float64), torch.tensor([[spread**2]], dtype=torch.float64)
    ).quadrature(order)
    z = (rule.x[:, 0] - mean) / spread
    assert rule.n == order
    for degree in range(2 * order):
        assert float((rule.weights * z**degree).sum()) == pytest.approx(
            moment(degree), rel=1e-9, abs=1e-9 * moment(degree + degree % 2)
        )


def test_quadrature_one_degree_higher_is_not_exact() -> None:
    rule = Gaussian(
        torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64)
    ).quadrature(2)
    assert float((rule.weights * rule.x[:, 0] ** 4).sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_quadrature_lives_on_the_range_of_the_covariance(rank: int, randn: Draw) -> None:
    factor, mean = randn(3, rank), randn(3)
    gaussian = Gaussian(mean, factor @ factor.mT)
    rule = gaussian.quadrature(4)
    assert rule.n == 4**rank
    assert torch.allclose(rule.mean(), mean)
    assert torch.allclose(rule.cov(), gaussian.cov)
    axis = randn(3)
    fourth = (rule.weights * ((rule.x - mean) @ axis) ** 4).sum()
    assert torch.allclose(fourth, 3 * (axis @ gaussian.cov @ axis) ** 2)


def test_quadrature_of_a_stack_has_the_moments_of_each(randn: Draw) -> None:
    factor = randn(2, 3, 3)
    factor[1, :, 1:] = 0
    gaussian = Gaussian(randn(2, 3), factor @ factor.mT)
    rule = gaussian.quadrature(3)
    assert torch.allclose(rule.mean(), gaussian.mean)
    assert torch.allclose(rule.cov(), gaussian.cov)


def test_samples_have_the_law_of_the_gaussian(randn: Draw) -> None:
    factor = randn(3, 2)
    gaussian = Gaussian(randn(3), factor @ factor.mT)
    cloud = gaussian.sample(200_000, generator=1)
    assert torch.allclose(cloud.mean(), gaussian.mean, atol=0.02)
    assert torch.allclose(cloud.cov(), gaussian.cov, atol=0.05)
    assert torch.linalg.matrix_rank(cloud.cov(), rtol=1e-9) == 2


def test_samples_follow_the_seed(generator: torch.Generator) -> None:
    gaussian = Gaussian(
        torch.zeros(2, 2, dtype=torch.float64),
        torch.eye(2, dtype=torch.float64).expand(2, 2, 2).clone(),
    )
    first = gaussian.sample(5, generator=7)
    assert first.x.shape == (2, 5, 2)
    assert torch.equal(first.x, gaussian.sample(5, generator=7).x)
    assert not torch.equal(first.x, gaussian.sample(5, generator=8).x)
    assert not torch.equal(gaussian.sample(5, generator).x, gaussian.sample(5, generator).x)
    before = torch.get_rng_state()
    gaussian.sample(5, generator=7)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_square_roots_are_symmetric_and_square_to_the_covariance(rank: int, randn: Draw) -> None:
    factor = randn(3, rank)
    root = square_root(factor @ factor.mT)
    assert torch.allclose(root, root.mT)
    assert torch.allclose(root @ root, factor @ factor.mT)


def test_gradients_reach_means_and_covariances(randn: Draw) -> None:
    mean, factor = randn(2).requires_grad_(), randn(2, 2).requires_grad_()
    gaussian = Gaussian(mean, factor @ factor.mT)
    gaussian.sample(3, generator=0).x.square().sum().backward()
    assert mean.grad is not None
    assert factor.grad is not None
    assert factor.grad.abs().min() > 0
