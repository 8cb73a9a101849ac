"""Bounds on a ball that are too wide for an attack to see a wrong constant in them: each is the
formula of its theorem.
"""

from __future__ import annotations

import math

import pytest
import torch
from bound_cases import local_constant, single
from scipy.optimize import brentq
from torch import Tensor

from attnscope import L2, Heads, Particles, Sigmoid, Softmax
from attnscope.bounds import on_ball, smoothness


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def size(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def biased(randn, **options: float) -> Heads:
    """One head with every bias."""
    return Heads(
        randn(1, 2, 3),
        randn(1, 2, 3),
        randn(1, 4, 3),
        randn(1, 3, 4),
        query_bias=randn(1, 2),
        key_bias=randn(1, 2),
        value_bias=randn(1, 4),
        **options,
    )


def test_softmax_with_biases(randn) -> None:
    """The query bias adds to the slope of a score in the key token, and to nothing else."""
    heads, n, radius = biased(randn, scale=0.3), 5, 0.7
    a, v = 0.3 * norm(heads.key[0].mT @ heads.query[0]), norm(heads.output[0] @ heads.value[0])
    t, y = radius * (a * radius + 0.3 * size(heads.key[0].mT @ heads.query_bias[0])), a * radius**2
    found, masked = (
        on_ball(Softmax(heads), n, radius),
        on_ball(Softmax(heads, causal=True), n, radius),
    )
    for bounds in (found, masked):
        assert bounds.named("U1").value == pytest.approx(
            v * math.sqrt(3 * (n + 4 * n * t**2 + y**2))
        )
        assert bounds.named("U1'").value == pytest.approx(v * (math.sqrt(n) * (1 + t) + y))
    assert found.named("M1").value == pytest.approx(v * ((1 + 2 * t) * math.exp(2 * t) + y))
    assert found.named("M1'").value == pytest.approx(v * ((1 + t) * math.exp(t) + y))
    assert masked.named("K3").value == pytest.approx(v * (2 * (1 + 2 * t) * math.exp(2 * t) + y))


def rotary_bound(heads: Heads, n: int, crowd: float, radius: float) -> float:
    """U1' of one rotary head, from the dense matrix of every offset of n tokens."""
    turned = [
        heads.turn(heads.query.mT, torch.full((heads.dim,), offset))[0].mT
        for offset in range(1 - n, n)
    ]
    a = heads.scale * max(norm(heads.key[0].mT @ query) for query in turned)
    t = radius * (a * radius + heads.scale * norm(heads.key[0]) * size(heads.query_bias[0]))
    y = radius * (a * radius + heads.scale * norm(heads.query[0]) * size(heads.key_bias[0]))
    return norm(heads.value[0]) * (math.sqrt(crowd) * (1 + t) + y)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_rotary_heads_at_every_offset_that_occurs(n: int, randn) -> None:
    for _ in range(8):
        heads = Heads(
            randn(1, 4, 3),
            randn(1, 4, 3),
            randn(1, 3, 3),
            query_bias=randn(1, 4),
            key_bias=randn(1, 4),
            rotary=randn(2),
        )
        truth = rotary_bound(heads, n, n, 1.3)
        assert truth <= on_ball(Softmax(heads), n, 1.3).named("U1'").value <= 1.08 * truth
        mass = torch.zeros(n, dtype=torch.float64)
        mass[[0, -1]] = 1 / len({0, n - 1})
        mu = Particles(torch.nn.functional.normalize(randn(n, 3), dim=-1), mass)
        assert smoothness(Softmax(heads), mu).named("U1'").value >= rotary_bound(
            heads, n, len({0, n - 1}), 1.0
        ) * (1 - 1e-12)


def test_heads_that_know_places_have_no_bound_in_the_mean_field(randn) -> None:
    """Two clusters of one point each and a bias that sends every token to the first: the constant
    grows like the root of n.
    """
    n = 30
    bias = torch.zeros(1, n, n, dtype=torch.float64)
    bias[..., 0] = 20.0
    heads = Heads(
        randn(1, 2, 2), randn(1, 2, 2), torch.eye(2, dtype=torch.float64)[None], position_bias=bias
    )
    plain = Softmax(Heads(heads.query, heads.key, heads.value))
    mu = Particles(1e-3 * randn(n, 2))
    assert float(local_constant(Softmax(heads), mu)) > 3 * smoothness(plain, mu).named("M1").value
    for attention in (Softmax(heads), Softmax(heads, causal=True)):
        assert {"M1", "M1'", "K3"}.isdisjoint(bound.name for bound in smoothness(attention, mu))


def test_l2_attention_in_the_mean_field(randn) -> None:
    heads, radius, s = biased(randn, scale=0.2), 0.6, 0.2
    query, key, v = norm(heads.query[0]), norm(heads.key[0]), norm(heads.output[0] @ heads.value[0])
    rho = (query + key) * radius + size(heads.query_bias[0] - heads.key_bias[0])
    own = 2 * s * norm(heads.key[0].mT @ heads.query[0]) * radius**2
    expected = v * (own + math.exp(s * rho**2) * (1 + 4 * s * key * radius * rho))
    assert on_ball(L2(heads), 4, radius).named("L2-M1").value == pytest.approx(expected)


def test_the_mean_field_bound_of_l2_attention_is_false_under_a_mask(randn) -> None:
    zero, eye = torch.zeros(1, 1, 1, dtype=torch.float64), torch.eye(1, dtype=torch.float64)[None]
    mu = Particles(randn(60, 1))
    masked = L2(Heads(zero, zero, eye), causal=True)
    assert (
        local_constant(masked, mu)
        > 1.5 * on_ball(L2(Heads(zero, zero, eye)), 60, 1.0).named("L2-M1").value
    )
    assert "L2-M1" not in {bound.name for bound in smoothness(masked, mu)}


@pytest.mark.parametrize("tokens", [None, 6])
@pytest.mark.parametrize("bias", [-4.0, 0.3])
def test_sigmoid_attention(tokens: int | None, bias: float, randn) -> None:
    """The largest value and slope of the sigmoid, over a grid of the scores that occur."""
    heads, radius, count = biased(randn, scale=0.2), 0.6, tokens or 1
    query, key, value, output = heads.query[0], heads.key[0], heads.value[0], heads.output[0]
    reach = (
        0.2
        * (norm(query) * radius + size(heads.query_bias[0]))
        * (norm(key) * radius + size(heads.key_bias[0]))
    )
    scores = bias - math.log(count) + torch.linspace(-reach, reach, 20001, dtype=torch.float64)
    level, slope = (
        float(torch.sigmoid(scores).max()),
        float((torch.sigmoid(scores) * torch.sigmoid(-scores)).max()),
    )
    a, c = 0.2 * norm(key.mT @ query), norm(output @ value)
    slopes = 2 * a * radius + 0.2 * (
        size(query.mT @ heads.key_bias[0]) + size(key.mT @ heads.query_bias[0])
    )
    expected = count * (
        slope * (c * radius + size(output @ heads.value_bias[0])) * slopes + level * c
    )
    found = on_ball(Sigmoid(heads, bias=bias, tokens=tokens), 6, radius).named("S1").value
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n", [2, 3, 14, 15, 40, 1000])
def test_the_global_bound_of_tied_l2_attention(n: int) -> None:
    eye = 2 * torch.eye(2, dtype=torch.float64)[None]
    c, c2 = (brentq(lambda c, n=m: c * math.exp(c + 1) - (n - 1), 0, 20) for m in (n, 2))
    tau = min(c2 * (n - 1), math.sqrt(n / 2) * math.log(n / 2)) if n >= 15 else c2 * (n - 1)
    free, causal = (
        on_ball(L2(Heads(eye, eye, eye), causal=mask), n, 1.0).named("L2-global").value
        for mask in (False, True)
    )
    assert free == pytest.approx(2 * ((2 * n) ** 0.25 + 2 * math.sqrt(c * tau) + 2 * c))
    assert causal == pytest.approx(2 * (math.sqrt(n) + 2 * math.sqrt(c2 * c * (n - 1)) + 2 * c))


def test_the_local_bound_of_tied_l2_attention(randn) -> None:
    """U = 1, scale beta: covariances and squared distances of the projected tokens, the coupling of
    the tokens themselves.
    """
    query, beta, weights = randn(1, 3, 3), 0.7, torch.softmax(randn(5), 0)
    attention, mu = L2(Heads(query, query, query, scale=beta)), Particles(randn(5, 3), weights)
    z, p = mu.x @ query[0].mT, attention.coupling(mu.x, mu)[0]
    deviation = z - (p @ z)[:, None]
    spread = float(
        torch.linalg.matrix_norm(torch.einsum("ij,ijd,ije->ide", p, deviation, deviation), 2).max()
    )
    column, moved = (
        float((weights[:, None] * p * f).sum(0).div(weights).max())
        for f in (1.0, (z[:, None] - z).square().sum(-1))
    )
    expected = norm(query[0]) * (
        math.sqrt(column) + 2 * beta * math.sqrt(spread * moved) + 2 * beta * spread
    )
    assert smoothness(attention, mu).named("L2-local").value == pytest.approx(expected, rel=1e-6)


def test_queries_and_keys_with_other_biases_are_not_tied() -> None:
    """The tokens 0 and 2b with a query bias b read each other with weight 1/2 and stretch like
    b^2.
    """
    eye = torch.eye(1, dtype=torch.float64)[None]
    bias = torch.full((1, 1), 5.0, dtype=torch.float64)
    apart = L2(Heads(eye, eye, eye, query_bias=bias, scale=1.0))
    tied = L2(Heads(eye, eye, eye, query_bias=bias, key_bias=bias, scale=1.0))
    mu = Particles(torch.tensor([[0.0], [10.0]], dtype=torch.float64))
    truth = float(local_constant(apart, mu))
    assert truth > 5 * smoothness(tied, mu).named("L2-global").value
    for bound in smoothness(apart, mu):
        assert bound.value >= truth
        assert bound.name not in ("L2-global", "L2-local")


def test_every_token_at_the_same_place_leaves_only_the_values(randn) -> None:
    v = randn(2, 2)
    mu = Particles(randn(1, 2).expand(4, 2).contiguous())
    for name in ("U1''", "U1''-columns", "B1"):
        assert smoothness(single(randn(2, 2), v), mu).named(name).value == pytest.approx(
            norm(v), rel=1e-6
        )
