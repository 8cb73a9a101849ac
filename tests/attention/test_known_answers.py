"""Problems whose exact answer is known: plain loops, one particle, flat scores, two points,
moments, limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import VARIANTS, Problem, Variant, by_hand, cloud, heads, near, normal, problems

from attnscope import (
    L2,
    Attention,
    Exponential,
    Heads,
    Linear,
    Particles,
    Sigmoid,
    Sinkhorn,
    Softmax,
)

numbers = st.floats(-2, 2)
shares = st.floats(0.01, 0.99)


def dots(rows: np.ndarray) -> np.ndarray:
    return rows[1:] @ rows[0] / math.sqrt(rows.shape[1])


def normalised(logits: np.ndarray, masses: np.ndarray) -> np.ndarray:
    kernel = masses * np.exp(logits)
    return kernel / kernel.sum()


def from_distances(rows: np.ndarray, masses: np.ndarray) -> np.ndarray:
    return normalised(-((rows[1:] - rows[0]) ** 2).sum(1) / math.sqrt(rows.shape[1]), masses)


ROWS: dict[Variant, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Softmax: lambda rows, masses: normalised(dots(rows), masses),
    L2: from_distances,
    Sigmoid: lambda rows, masses: masses / (1 + np.exp(-dots(rows))),
    Exponential: lambda rows, masses: masses * np.exp(dots(rows)),
    Linear: lambda rows, masses: masses * dots(rows),
}


@pytest.mark.parametrize("variant", ROWS, ids=lambda variant: variant.name)
@given(problem=problems())
def test_the_formula_written_as_loops(variant: Variant, problem: Problem) -> None:
    near(
        variant(problem.heads)(problem.x, problem.mu),
        by_hand(ROWS[variant], problem.heads, problem.mu, problem.x),
    )


@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS.values() if v.normalised], ids=lambda variant: variant.name
)
@given(problem=problems())
def test_one_particle_is_all_that_a_normalised_attention_can_read(
    variant: Variant, problem: Problem
) -> None:
    y = problem.mu.x[:1]
    near(
        variant(problem.heads)(problem.x, Particles(y)),
        (problem.heads.values.sum(0) @ y[0] + problem.heads.constant).expand_as(problem.x),
    )


@pytest.mark.parametrize(
    ("variant", "factor"),
    [
        (Softmax, 1.0),
        (L2, None),
        (Sinkhorn, 1.0),
        (Exponential, 1.0),
        (Linear, 0.0),
        (Sigmoid, 0.5),
    ],
    ids=str,
)
def test_flat_scores_read_the_mean(variant: Variant, factor: float | None) -> None:
    flat = Heads.from_matrices(
        torch.zeros(2, 2, dtype=torch.float64),
        torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64),
    )
    mu, x = cloud(0), normal(3, 2, seed=1)
    if factor is None:
        still = torch.zeros_like(flat.key)
        flat, factor = Heads(flat.query, still, flat.value), 1.0
    near(variant(flat)(x, mu), factor * (flat.values[0] @ mu.mean()).expand_as(x))


@given(a=numbers, y=numbers, z=numbers, x=numbers, share=shares)
def test_two_points_share_a_query_by_a_sigmoid(
    a: float, y: float, z: float, x: float, share: float
) -> None:
    mu = Particles(
        torch.tensor([[y], [z]], dtype=torch.float64),
        torch.tensor([share, 1 - share], dtype=torch.float64),
    )
    attention = Softmax(
        Heads.from_matrices(
            torch.tensor([[a]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        )
    )
    first = 1 / (1 + (1 - share) / share * math.exp(a * x * (z - y)))
    assert float(attention(torch.tensor([[x]], dtype=torch.float64), mu)) == pytest.approx(
        first * y + (1 - first) * z, abs=1e-12
    )


@given(a=numbers, y=numbers, z=numbers, x=numbers, share=shares)
def test_two_points_share_a_query_by_their_distances(
    a: float, y: float, z: float, x: float, share: float
) -> None:
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    mu = Particles(
        torch.tensor([[y], [z]], dtype=torch.float64),
        torch.tensor([share, 1 - share], dtype=torch.float64),
    )
    first = 1 / (1 + (1 - share) / share * math.exp((a * x - y) ** 2 - (a * x - z) ** 2))
    attention = L2(Heads(a * one, one, one))
    assert float(attention(torch.tensor([[x]], dtype=torch.float64), mu)) == pytest.approx(
        first * y + (1 - first) * z, abs=1e-12
    )


@given(problem=problems())
def test_linear_attention_is_a_second_moment(problem: Problem) -> None:
    mu = problem.mu
    parts = Heads.from_matrices(
        normal(2, mu.dim, mu.dim, seed=1), normal(2, mu.dim, mu.dim, seed=2)
    )
    moment = mu.x.mT @ torch.diag(mu.weights) @ mu.x
    near(Linear(parts)(problem.x, mu), problem.x @ (parts.values @ moment @ parts.a).sum(0).mT)


def test_heads_add_up() -> None:
    parts, mu, x = heads(0, count=3), cloud(1), normal(4, 2, seed=2)
    assert parts.output_bias is not None
    for variant in VARIANTS.values():
        one_by_one = sum(variant(parts.select(h))(x, mu) for h in range(3)) + parts.output_bias
        near(variant(parts)(x, mu), one_by_one)


def test_sigmoid_sums_over_tokens_with_a_bias_of_minus_log_n() -> None:
    n, x = 5, normal(3, 2, seed=1)
    parts, mu = (
        Heads.from_matrices(normal(2, 2, seed=2), normal(2, 2, seed=3)),
        Particles(normal(n, 2, seed=4)),
    )
    scores = x @ parts.a[0].mT @ mu.x.mT
    expected = torch.sigmoid(scores + 0.3 - math.log(n)) @ mu.x @ parts.values[0].mT
    near(Sigmoid(parts, bias=0.3, tokens=n)(x, mu), expected)
    near(
        Sigmoid(parts, bias=0.3)(x, mu), torch.sigmoid(scores + 0.3) @ mu.x @ parts.values[0].mT / n
    )


def test_sigmoid_over_many_tokens_tends_to_the_exponential() -> None:
    parts, mu, x = heads(0), cloud(1), normal(3, 2, seed=2)
    limit = Exponential(parts)(x, mu)
    gaps = [
        float((Sigmoid(parts, tokens=n)(x, mu) - limit).abs().max()) for n in (10**3, 10**5, 10**7)
    ]
    assert gaps[0] > 50 * gaps[1] > 2500 * gaps[2] > 0


def test_l2_attention_does_not_feel_a_shift_of_everything() -> None:
    query, value = normal(1, 2, 2, seed=0), normal(1, 2, 2, seed=1)
    attention, mu, x = L2(Heads(query, query, value)), cloud(2), normal(3, 2, seed=3)
    shift = torch.tensor([1e4, -1e4], dtype=torch.float64)
    near(attention(x + shift, mu.at(mu.x + shift)) - value[0] @ shift, attention(x, mu), 1e-6)


def test_large_scores_do_not_overflow() -> None:
    attention = Softmax(
        Heads.from_matrices(
            1e4 * torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
        )
    )
    mu = Particles(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    near(attention(mu.x, mu), mu.x)


def rotated(z: torch.Tensor, angles: torch.Tensor, number: int) -> torch.Tensor:
    """A rotary embedding with complex numbers."""
    first, second = z.chunk(2)
    turned = torch.complex(first, second) * torch.exp(1j * number * angles)
    return torch.cat([turned.real, turned.imag])


def with_positions(**parts: torch.Tensor) -> Heads:
    plain = heads(0, head=4)
    return Heads(
        plain.query, plain.key, plain.value, plain.output, plain.query_bias, plain.key_bias, **parts
    )


def test_rotary_heads_turn_queries_and_keys_by_their_token_numbers() -> None:
    angles = torch.tensor([0.7, 0.2], dtype=torch.float64)
    parts, mu = with_positions(rotary=angles), Particles(normal(5, 2, seed=1))
    plain = with_positions()
    q, k = plain.queries(mu.x)[1], plain.keys(mu.x)[1]
    expected = [
        [rotated(q[i], angles, i) @ rotated(k[j], angles, j) / 2 for j in range(5)]
        for i in range(5)
    ]
    near(Softmax(parts).scores(mu.x, mu)[1], torch.tensor(expected))


def test_rotary_scores_depend_on_the_offset_only() -> None:
    parts = with_positions(rotary=torch.tensor([0.7, 0.2], dtype=torch.float64))
    alike = Particles(normal(1, 2, seed=1).expand(6, 2).clone())
    scores = Softmax(parts).scores(alike.x, alike)
    near(scores[:, 1:, 1:], scores[:, :-1, :-1])
    assert float((scores[:, 0, 1] - scores[:, 1, 0]).abs().min()) > 1e-3


@pytest.mark.parametrize(
    "variant", [Softmax, L2, Sigmoid, Exponential, Linear], ids=lambda variant: variant.name
)
def test_a_position_bias_is_added_to_the_scores(variant: Variant) -> None:
    bias = normal(2, 7, 7, seed=3)
    mu, whole = Particles(normal(5, 2, seed=1)), variant(with_positions(position_bias=bias))
    plain: Attention = variant(with_positions())
    q, k = plain.heads.queries(mu.x), plain.heads.keys(mu.x)
    scores = plain.heads.scale * q @ k.mT + bias[:, :5, :5]
    expected = {
        "softmax": torch.softmax(scores, -1),
        "l2": torch.softmax(bias[:, :5, :5] - plain.heads.scale * torch.cdist(q, k) ** 2, -1),
        "sigmoid": torch.sigmoid(scores) / 5,
        "exponential": scores.exp() / 5,
        "linear": scores / 5,
    }[variant.name]
    near(whole.coupling(mu.x, mu), expected)
    near(whole(mu.x, mu), plain.heads.write(expected @ plain.heads.read(mu.x)))


def test_some_queries_of_a_positional_attention_are_those_rows() -> None:
    parts = with_positions(
        rotary=torch.tensor([0.7, 0.2], dtype=torch.float64), position_bias=normal(2, 6, 6, seed=3)
    )
    mu = Particles(normal(6, 2, seed=1))
    at = torch.tensor([2, 5], dtype=torch.float64) / 6
    near(
        Softmax(parts, causal=True)(mu.x[[1, 4]], mu, positions=at),
        Softmax(parts, causal=True)(mu.x, mu)[[1, 4]],
    )


def test_half_precision_keeps_token_order() -> None:
    n = 600
    mu = Particles(normal(n, 2, seed=1).to(torch.bfloat16))
    attention = Softmax(heads(0).to(torch.bfloat16), causal=True)
    assert attention.visible(mu.x, mu).sum(-1).flatten().tolist() == list(range(1, n + 1))
