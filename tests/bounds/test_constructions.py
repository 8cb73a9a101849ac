"""The inputs that attention stretches most: the Jacobian there is at least what each construction
says.
"""

from __future__ import annotations

import math

import pytest
import torch
from bound_cases import jacobian, local_constant, single

from attnscope import Heads, Particles, Softmax
from attnscope.bounds import constructions, smoothness


def symmetric(*eigenvalues: float) -> torch.Tensor:
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    return turn @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ turn.mT


@pytest.mark.parametrize(
    ("eigenvalues", "gamma"), [((-1.0, 0.5), 1.0), ((4.0, 1.0), 0.5), ((-0.1, 4.0), 0.5)]
)
def test_opposite_tokens_gain_exactly_what_the_formula_says(
    eigenvalues: tuple[float, float], gamma: float
) -> None:
    attention, n, radius = single(symmetric(*eigenvalues)), 6, 1.2
    mu, bound = constructions.opposite(attention, n, radius)
    alpha = 1 / (1 + (n - 1) * math.exp(-2 * gamma * radius**2))
    assert bound.value == pytest.approx(
        math.sqrt(n - 1) * alpha * (1 + 2 * gamma * radius**2 * (1 - alpha)), rel=1e-8
    )
    assert local_constant(attention, mu) >= bound.value
    assert float(mu.radius()) <= radius * (1 + 1e-12)
    assert all(upper.value >= bound.value for upper in smoothness(attention, mu))


def test_the_exact_gain_is_the_gain_along_the_eigenvector() -> None:
    attention, n = single(symmetric(-1.0, 0.5)), 5
    mu, bound = constructions.opposite(attention, n, 1.0)
    step = torch.zeros_like(mu.x)
    step[0] = mu.x[0] / torch.linalg.vector_norm(mu.x[0])
    moved = torch.func.jvp(lambda x: attention.dense(x, mu.at(x)), (mu.x,), (step,))[1]
    assert float(torch.linalg.vector_norm(moved[1:])) == pytest.approx(bound.value, rel=1e-8)


@pytest.mark.parametrize("n", [2, 3, 9])
def test_every_construction_holds_for_general_matrices(n: int, randn) -> None:
    for _ in range(4):
        a, v = randn(3, 3), randn(3, 3)
        attention, masked = single(a, v), single(a, v, causal=True)
        for mu, bound in (
            constructions.opposite(attention, n, 1.3),
            constructions.oblique(attention, n, 1.3),
            constructions.two_clusters(attention, n, randn(3), randn(3)),
            constructions.unbalanced(attention, 0.8, 0.7),
        ):
            assert bound.side == "lower"
            assert local_constant(attention, mu) >= bound.value > 0
        mu, bound = constructions.rare_first(masked, n, 1.3)
        assert local_constant(masked, mu) >= bound.value > 0


def test_oblique_tokens_reach_the_formula_for_the_identity(randn) -> None:
    a, n, radius = randn(3, 3), 7, 0.9
    attention = single(a)
    mu, bound = constructions.oblique(attention, n, radius)
    u = mu.x[1] / radius
    delta = radius**2 * float(torch.linalg.vector_norm(a @ u) - u @ a @ u)
    alpha = 1 / (1 + (n - 1) * math.exp(-delta))
    assert bound.value >= math.sqrt(n - 1) * alpha * (1 + (1 - alpha) * delta) * (1 - 1e-8)
    grid = torch.nn.functional.normalize(randn(20000, 3), dim=-1)
    grid = torch.cat([grid, 0.5 * grid, 0.8 * grid])
    best = float(
        (torch.linalg.vector_norm(grid @ a.mT, dim=-1) - (grid * (grid @ a.mT)).sum(-1)).max()
    )
    assert delta >= radius**2 * best * (1 - 1e-3)


def test_a_rotation_needs_the_oblique_construction() -> None:
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="oblique"):
        constructions.opposite(single(rotation), 4, 1.0)
    _, bound = constructions.oblique(single(rotation), 4, 1.0)
    alpha = 1 / (1 + 3 * math.exp(-1.0))
    assert bound.value >= math.sqrt(3) * alpha * (2 - alpha) * (1 - 1e-8)


def test_two_diracs_and_the_causal_form_match_their_formulas() -> None:
    a, gamma, radius, t, n = symmetric(-1.0, 0.2), 1.0, 0.9, 0.6, 8
    y = gamma * radius**2
    mu, bound = constructions.unbalanced(single(a), radius, t)
    assert bound.value == pytest.approx(
        math.exp(y) * math.sqrt(t) / (1 + t) * (1 + 2 * y * t / (1 + t)), rel=1e-8
    )
    assert float(mu.weights[0]) == pytest.approx(1 / (1 + t * math.exp(2 * y)))
    alphas = [1 / (1 + (i - 1) * math.exp(-2 * y)) for i in range(2, n + 1)]
    _, bound = constructions.rare_first(single(a, causal=True), n, radius)
    assert bound.value == pytest.approx(
        math.sqrt(1 + sum((s * (1 + 2 * y * (1 - s))) ** 2 for s in alphas)), rel=1e-8
    )


def test_growth_with_the_number_of_tokens_is_a_square_root_before_the_mean_field() -> None:
    attention = single(symmetric(-2.0, 0.1))
    values = [constructions.opposite(attention, n, 1.5).bound.value for n in (17, 65)]
    assert values[1] / values[0] == pytest.approx(2, rel=0.05)


def test_a_float32_input_keeps_its_bound(randn) -> None:
    attention = single(randn(3, 3))
    mu, bound = constructions.oblique(attention.to(torch.float32), 5, 1.1)
    assert mu.x.dtype == torch.float32
    assert (
        local_constant(attention.to(torch.float32).to(torch.float64), mu.to(torch.float64))
        >= bound.value
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_construction_says_what_the_rare_token_does_at_its_own_tokens_and_never_more(
    dtype: torch.dtype, randn
) -> None:
    a = symmetric(-1.3, 0.4).to(dtype)
    attention, masked = single(a), single(a, causal=True)

    def gain(attention: Softmax, mu: Particles, first: int) -> float:
        column = jacobian(attention.to(torch.float64), mu.to(torch.float64))[first:, 0]
        return float(torch.linalg.matrix_norm(column.flatten(0, 1), 2))

    for mu, bound in (
        constructions.opposite(attention, 5, 1.1),
        constructions.oblique(attention, 5, 1.1),
        constructions.two_clusters(attention, 5, randn(2).to(dtype), randn(2).to(dtype)),
        *(constructions.unbalanced(attention, 1.1, t) for t in (0.01, 0.7, 50.0)),
    ):
        exact = gain(attention, mu, 1)
        assert exact * (1 - 1e-8) <= bound.value < exact * (1 - 1e-10), bound
    mu, bound = constructions.rare_first(masked, 5, 1.1)
    exact = gain(masked, mu, 0)
    assert exact * (1 - 1e-8) <= bound.value < exact * (1 - 1e-10)


@pytest.mark.parametrize("extra", ["query_bias", "rotary", "position_bias"])
def test_heads_that_the_formulas_do_not_speak_of_are_refused(extra: str, randn) -> None:
    given = {"query_bias": randn(1, 2), "rotary": randn(1), "position_bias": randn(1, 4, 4)}[extra]
    attention = Softmax(Heads(randn(1, 2, 2), randn(1, 2, 2), randn(1, 2, 2), **{extra: given}))
    with pytest.raises(ValueError, match="no query bias, rotary embedding or position bias"):
        constructions.oblique(attention, 4, 1.0)


def test_refusals(randn) -> None:
    heads = Heads.from_matrices(randn(2, 2, 2), randn(2, 2, 2))
    with pytest.raises(ValueError, match="one head"):
        constructions.opposite(Softmax(heads), 4, 1.0)
    with pytest.raises(ValueError, match="rare_first"):
        constructions.opposite(single(randn(2, 2), causal=True), 4, 1.0)
    with pytest.raises(ValueError, match="n must be"):
        constructions.oblique(single(randn(2, 2)), 1, 1.0)
    with pytest.raises(ValueError, match="A is zero"):
        constructions.oblique(single(torch.zeros(2, 2, dtype=torch.float64)), 3, 1.0)
    with pytest.raises(ValueError, match="smaller radius"):
        constructions.unbalanced(single(-torch.eye(2, dtype=torch.float64)), 40.0)
