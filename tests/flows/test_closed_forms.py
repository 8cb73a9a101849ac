"""Gaussian flows against the closed forms of [castin25] and against particles."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import exp1

from attnscope import L2, Exponential, Gaussian, Heads, Linear, Particles, Sinkhorn, Softmax
from attnscope.flows import flow

Randn = Callable[..., torch.Tensor]
EYE = torch.eye(2, dtype=torch.float64)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def centred(cov: torch.Tensor) -> Gaussian:
    return Gaussian(torch.zeros_like(cov[..., 0]), cov)


def covariance(seed: int, d: int) -> torch.Tensor:
    z = normal(seed, d, d)
    return z @ z.mT / d


def identity_value_solution(a: torch.Tensor, cov: torch.Tensor, t: float) -> torch.Tensor:
    """S(t) = S0^{1/2} (I - 2tM)^{-1} S0^{1/2}, M = S0^{1/2} A_s S0^{1/2}."""
    root = centred(cov).factor()
    m = root @ ((a + a.mT) / 2) @ root
    return root @ torch.linalg.inv(torch.eye(len(cov), dtype=cov.dtype) - 2 * t * m) @ root


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 4), part=st.floats(0.05, 0.95))
def test_softmax_with_identity_values_follows_its_closed_form(
    seed: int, d: int, part: float
) -> None:
    a, cov = normal(seed, d, d), covariance(seed + 1, d)
    root = centred(cov).factor()
    top = float(torch.linalg.eigvalsh(root @ (a + a.mT) @ root)[-1])
    end = part / top if top > 0 else 3.0
    got = flow(
        Softmax(Heads.from_matrices(a, torch.eye(d, dtype=a.dtype))),
        centred(cov),
        [0, end / 3, end],
        settle=None,
    )
    for t, s in zip(got.times.tolist(), got.cov, strict=True):
        expected = identity_value_solution(a, cov, t)
        assert torch.linalg.matrix_norm(s - expected) <= 1e-6 * torch.linalg.matrix_norm(expected)


@settings(max_examples=5)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 3))
def test_softmax_blows_up_at_the_time_of_the_theorem(seed: int, d: int) -> None:
    z = normal(seed, d, d)
    a, cov = z @ z.mT + 0.1 * torch.eye(d, dtype=z.dtype), covariance(seed + 1, d)
    root = centred(cov).factor()
    blow_up = 1 / (2 * float(torch.linalg.eigvalsh(root @ a @ root)[-1]))
    got = flow(
        Softmax(Heads.from_matrices(a, torch.eye(d, dtype=a.dtype))),
        centred(cov),
        [0, 10 * blow_up],
    )
    assert got.status == "blew up"
    assert got.stop_time == pytest.approx(blow_up, rel=1e-6)
    before = flow(
        Softmax(Heads.from_matrices(a, torch.eye(d, dtype=a.dtype))),
        centred(cov),
        [0, 0.999 * blow_up],
    )
    assert before.status == "finished"


def test_skew_scores_leave_the_covariance_where_it_is(randn: Randn) -> None:
    z, cov = randn(3, 3), covariance(3, 3)
    got = flow(
        Softmax(Heads.from_matrices(z - z.mT, torch.eye(3, dtype=z.dtype))), centred(cov), [0, 5.0]
    )
    assert torch.allclose(got.final.cov, cov, atol=1e-6, rtol=0)


def test_one_token_of_linear_and_exponential_attention_blows_up_in_finite_time() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    linear = flow(Linear(Heads.from_matrices(one, one)), Particles(2 * one), [0, 1.0])
    assert (linear.status, linear.stop_time) == ("blew up", pytest.approx(1 / 8, rel=1e-6))
    exponential = flow(Exponential(Heads.from_matrices(one, one)), Particles(one), [0, 1.0])
    assert (exponential.status, exponential.stop_time) == (
        "blew up",
        pytest.approx(exp1(1.0) / 2, rel=1e-6),
    )


def test_l2_with_a_key_that_is_not_injective_blows_up_when_the_proof_says() -> None:
    key, query, value = (
        torch.zeros(1, 2, dtype=torch.float64),
        torch.zeros(1, 2, dtype=torch.float64),
        torch.zeros(2, 2, dtype=torch.float64),
    )
    key[0, 0], query[0, 1], value[1, 1] = 0.7, 1.3, 1.0
    cov = torch.tensor([[0.5, 0.3], [0.3, 0.9]], dtype=torch.float64)
    rate = 2 * 0.7 * 1.3 / (1 + 2 * 0.7**2 * 0.5)
    got = flow(L2(Heads(query[None], key[None], value[None], scale=1.0)), centred(cov), [0, 20.0])
    assert (got.status, got.stop_time) == ("blew up", pytest.approx(1 / (rate * 0.3), rel=1e-6))


@pytest.mark.parametrize("variant", [L2, Sinkhorn])
def test_exponential_growth_is_not_a_blow_up(variant: type[L2] | type[Sinkhorn]) -> None:
    got = flow(variant(Heads.from_matrices(EYE, EYE)), centred(covariance(0, 2)), [0, 12.0])
    assert got.status == "finished"
    assert got.cov[-1].trace() > 1e6
    if variant is Sinkhorn:
        assert got.cov[-1].trace() <= math.exp(24) * got.cov[0].trace()


def test_the_trace_obeys_its_identity_for_positive_values() -> None:
    a, cov, z = normal(1, 3, 3), covariance(2, 3), normal(3, 3, 3)
    v = z @ z.mT + torch.eye(3, dtype=z.dtype)
    h = 1e-4
    got = flow(
        Softmax(Heads.from_matrices(a, v)), centred(cov), [0, h, 2 * h], rtol=1e-12, atol=1e-14
    )
    weighted = torch.einsum("ij,tji->t", torch.linalg.inv(v), got.cov)
    s = got.cov[1]
    assert (weighted[2] - weighted[0]) / (2 * h) == pytest.approx(
        float(2 * torch.trace(s @ (a + a.mT) / 2 @ s)), rel=1e-5
    )


@pytest.mark.parametrize("variant", [Softmax, L2, Sinkhorn, Linear])
def test_determinant_follows_the_trace_of_the_field_and_rank_is_kept(
    variant: type[Softmax],
) -> None:
    att, cov = (
        variant(Heads.from_matrices(0.3 * normal(1, 3, 3), 0.5 * normal(2, 3, 3))),
        covariance(5, 3),
    )
    times = torch.linspace(0, 1, 201, dtype=torch.float64)
    got = flow(att, centred(cov), times, settle=None)
    traces = torch.stack([torch.trace(att.affine(state).matrix) for state in got.states])
    assert torch.logdet(got.final.cov) - torch.logdet(cov) == pytest.approx(
        2 * float(torch.trapezoid(traces, times)), abs=1e-4
    )
    flat = covariance(6, 3)
    flat[2], flat[:, 2] = 0, 0
    values = torch.linalg.eigvalsh(flow(att, centred(flat), [0, 1.0], settle=None).final.cov)
    assert values[0] <= 1e-14 * values[-1] < values[1]


@pytest.mark.parametrize("variant", [Softmax, L2, Sinkhorn, Linear])
def test_particles_and_gaussian_agree_on_a_quadrature_cloud(variant: type[Softmax]) -> None:
    heads = Heads.from_matrices(
        0.3 * torch.stack([normal(1, 2, 2), normal(2, 2, 2)]),
        0.5 * torch.stack([normal(3, 2, 2), normal(4, 2, 2)]),
    )
    start = Gaussian(0.3 * normal(5, 2), 0.2 * covariance(6, 2))
    by_gaussian = flow(variant(heads), start, [0, 0.5, 1.0], settle=None)
    by_particles = flow(variant(heads), start.quadrature(14), [0, 0.5, 1.0], settle=None)
    assert torch.allclose(by_particles.mean, by_gaussian.mean, rtol=0, atol=1e-5)
    assert torch.allclose(by_particles.cov, by_gaussian.cov, rtol=0, atol=1e-5)


def test_a_stack_of_gaussians_equals_a_loop_and_each_member_ends_by_itself() -> None:
    a = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    covs = torch.stack(
        [
            torch.diag(torch.tensor([0.0, 0.5])),
            torch.diag(torch.tensor([0.5, 0.5])),
            torch.diag(torch.tensor([0.25, 0.5])),
        ]
    )
    att = Softmax(Heads.from_matrices(a, EYE))
    stack = flow(att, centred(covs.double()), [0, 0.4, 1.5, 3.0])
    loop = [flow(att, centred(cov.double()), [0, 0.4, 1.5, 3.0]) for cov in covs]
    assert [outcome.status for outcome in stack.outcomes] == ["finished", "blew up", "blew up"]
    assert stack.status == "mixed"
    assert [outcome.time for outcome in stack.outcomes] == pytest.approx([3.0, 1.0, 2.0], rel=1e-6)
    for place, single in enumerate(loop):
        assert stack.outcomes[place].status == single.status
        assert torch.allclose(stack.states[1].cov[place], single.states[1].cov, rtol=1e-7)
    assert torch.allclose(stack.final.cov[0], loop[0].final.cov, rtol=1e-7)
