"""Sinkhorn attention: two marginals, a residual that is true, potentials off the support,
derivatives at a fixed point.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import Problem, central_difference, cloud, heads, near, normal, problems

from attnscope import Heads, NotConverged, Particles, Sinkhorn


def symmetric_heads() -> Heads:
    factor = normal(2, 2, seed=1)
    return Heads.from_matrices(factor @ factor.mT, torch.eye(2, dtype=torch.float64))


def skewed_heads() -> Heads:
    return Heads.from_matrices(normal(2, 2, seed=2), torch.eye(2, dtype=torch.float64))


KINDS = {
    "symmetric": symmetric_heads,
    "not symmetric": skewed_heads,
    "with biases": lambda: heads(3),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@given(problem=problems())
def test_both_marginals_are_the_measure(problem: Problem) -> None:
    plan = problem.mu.weights[:, None] * Sinkhorn(problem.heads).coupling(problem.mu.x, problem.mu)
    near(plan.sum(-1), problem.mu.weights.expand(plan.shape[:-1]))
    near(plan.sum(-2), problem.mu.weights.expand(plan.shape[:-1]))


@every_kind
@pytest.mark.parametrize("eps", [0.05, 0.3, 1.0, 50.0])
def test_the_residual_is_the_error_of_the_marginals(kind: str, eps: float) -> None:
    mu, attention = cloud(0, 8), Sinkhorn(KINDS[kind](), eps)
    found = attention.potentials(mu)
    scores = (
        attention.heads.scale / eps * attention.heads.queries(mu.x) @ attention.heads.keys(mu.x).mT
    )
    kernel = (scores + found.f[..., :, None] + found.g[..., None, :]).exp()
    near((kernel * mu.weights).sum(-1), torch.ones_like(found.f))
    column_error = float(((kernel * mu.weights[:, None]).sum(-2) - 1).abs().max())
    assert found.residual == pytest.approx(column_error, abs=1e-12)
    assert found.residual <= 1e-10


@pytest.mark.parametrize("iterations", [1, 3])
def test_an_iteration_cut_short_says_what_it_reached(iterations: int) -> None:
    mu, attention = cloud(0, 8), Sinkhorn(skewed_heads(), eps=0.1, max_iterations=iterations)
    found = attention.potentials(mu)
    assert found.iterations == iterations
    assert found.residual > 1e-4
    said = (
        f"after {iterations} iterations at residual {found.residual:.2e}, above 1.00e-10. Raise"
        " max_iterations, eps or tolerance."
    )
    with pytest.warns(NotConverged, match=re.escape(said)):
        attention(mu.x, mu)


def test_a_looser_tolerance_is_kept() -> None:
    loose, tight = (
        Sinkhorn(skewed_heads(), tolerance=t).potentials(cloud(0, 8)) for t in (1e-3, 1e-12)
    )
    assert 1e-12 < loose.residual <= 1e-3
    assert tight.residual <= 1e-12
    assert loose.iterations < tight.iterations


@given(entries=st.lists(st.floats(-1, 1), min_size=4, max_size=4), eps=st.floats(0.5, 5))
def test_two_equal_points_meet_in_a_closed_form(entries: list[float], eps: float) -> None:
    # The doubly stochastic [[p, 1-p], [1-p, p]] keeps the cross-ratio of the kernel: (p/(1-p))^2 =
    # exp((s11 + s22 - s12 - s21)/eps).
    scores = torch.tensor(entries, dtype=torch.float64).reshape(2, 2)
    mu = Particles(torch.eye(2, dtype=torch.float64))
    attention = Sinkhorn(
        Heads.from_matrices(scores.mT.contiguous(), torch.eye(2, dtype=torch.float64)), eps
    )
    stay = 1 / (
        1 + math.exp(-float(scores[0, 0] + scores[1, 1] - scores[0, 1] - scores[1, 0]) / (2 * eps))
    )
    near(
        attention.coupling(mu.x, mu)[0],
        torch.tensor([[stay, 1 - stay], [1 - stay, stay]], dtype=torch.float64),
        1e-8,
    )


@every_kind
def test_off_the_support_the_field_is_that_of_a_particle_of_no_mass(kind: str) -> None:
    attention, mu, x = Sinkhorn(KINDS[kind]()), cloud(0), normal(3, 2, seed=5)
    ghosts = Particles(
        torch.cat([mu.x, x]), torch.cat([mu.weights, torch.zeros(3, dtype=torch.float64)])
    )
    near(attention(x, mu), attention(ghosts.x, ghosts)[mu.n :], 1e-8)
    on = attention(mu.x, mu)
    near(attention(mu.x[2:3], mu), on[2:3])


def test_alternating_normalisation_has_the_same_limit() -> None:
    parts, mu = heads(3, count=1), cloud(0)
    kernel = (parts.scale * parts.queries(mu.x) @ parts.keys(mu.x).mT)[0].exp()
    for _ in range(2000):
        kernel = kernel / (kernel * mu.weights).sum(1, keepdim=True)
        kernel = kernel / (kernel * mu.weights[:, None]).sum(0, keepdim=True)
    near(Sinkhorn(parts).coupling(mu.x, mu)[0], kernel * mu.weights, 1e-8)


def test_a_small_eps_couples_points_to_themselves() -> None:
    mu = Particles(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
    near(
        Sinkhorn(
            Heads.from_matrices(
                torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
            ),
            eps=1e-3,
        )(mu.x, mu),
        mu.x,
    )


def square() -> torch.Tensor:
    """Softmax attention on a square is doubly stochastic already: the iteration stops at once, its
    derivative must not.
    """
    return torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    "matrix",
    [
        torch.eye(2, dtype=torch.float64),
        torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64),
    ],
)
def test_the_derivative_is_right_where_the_iteration_stops_at_once(matrix: torch.Tensor) -> None:
    attention = Sinkhorn(Heads.from_matrices(matrix, torch.eye(2, dtype=torch.float64)))
    mu, u = Particles(square()), normal(4, 2, seed=1)
    assert attention.potentials(mu).iterations == 1

    def layer(x: torch.Tensor) -> torch.Tensor:
        return attention(x, mu.at(x))

    near(torch.func.jvp(layer, (mu.x,), (u,))[1], central_difference(layer, mu.x, u), 1e-6)


def test_the_derivative_in_a_direction_that_breaks_symmetry() -> None:
    mu, a, u = cloud(0), symmetric_heads().a[0], normal(2, 2, seed=4)

    def layer(a: torch.Tensor) -> torch.Tensor:
        return Sinkhorn(Heads.from_matrices(a, torch.eye(2, dtype=torch.float64)))(mu.x, mu)

    near(torch.func.jvp(layer, (a,), (u,))[1], central_difference(layer, a, u), 1e-6)


def test_the_derivative_of_a_coupling_that_falls_apart_is_finite() -> None:
    attention = Sinkhorn(
        Heads.from_matrices(torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)),
        eps=1e-3,
    )
    mu, u = Particles(square()), normal(4, 2, seed=1)
    near(torch.func.jvp(lambda x: attention(x, mu.at(x)), (mu.x,), (u,))[1], u, 1e-6)


def test_nearly_symmetric_scores_converge_too() -> None:
    a = symmetric_heads().a[0]
    a[0, 1] += 1e-7
    assert (
        Sinkhorn(Heads.from_matrices(a, torch.eye(2, dtype=torch.float64)))
        .potentials(cloud(0))
        .residual
        <= 1e-10
    )


def test_a_mask_is_refused() -> None:
    with pytest.raises(
        ValueError, match="no causal form: under a mask the first token may read itself only"
    ):
        Sinkhorn(skewed_heads(), causal=True)


def test_a_position_bias_is_refused() -> None:
    parts = skewed_heads()
    biased = Heads(
        parts.query, parts.key, parts.value, position_bias=torch.zeros(1, 5, 5, dtype=torch.float64)
    )
    with pytest.raises(ValueError, match="takes no position bias"):
        Sinkhorn(biased)(normal(5, 2, seed=0), Particles(normal(5, 2, seed=0)))


@pytest.mark.parametrize(
    ("name", "value"), [("eps", 0.0), ("eps", math.nan), ("tolerance", -1.0), ("max_iterations", 0)]
)
def test_a_setting_that_is_not_positive_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a finite number above 0, got"):
        Sinkhorn(skewed_heads(), **{name: value})
