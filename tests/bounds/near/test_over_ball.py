"""What the bounds over a ball are made of: lemmas on softmax, and each quantity of the ball at
attacked points of the ball.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sensitivity_cases import Case, Layer, climb, random_case
from torch import Tensor

from attnscope import L2, Particles, Softmax
from attnscope.bounds.near import softmax
from attnscope.bounds.near._ball import Ball, spread
from attnscope.bounds.near._box import box
from attnscope.bounds.near._covariance import covariance_norm
from attnscope.bounds.near._direct import direct_norm
from attnscope.bounds.near._scores import ScoresAt
from attnscope.bounds.near._sums import falling, fullest, others
from attnscope.bounds.near._taylor import hessian_norm
from attnscope.bounds.near.place import Near
from attnscope.norms import largest_root, positive_norm
from derivatives import bend

logits = st.lists(st.floats(-30, 30), min_size=2, max_size=7).map(
    lambda s: torch.tensor(s, dtype=torch.float64)
)


def covariance(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p[..., None] * p[..., None, :]


@given(logits)
def test_s1_the_slope_of_softmax_is_at_most_p1_times_the_rest_and_p2(s: Tensor) -> None:
    p = torch.softmax(s, -1)
    exact = torch.linalg.eigvalsh(covariance(p))[-1]
    first, second = p.topk(2).values
    bound = first * (p.sort().values[:-1].sum() + second)
    assert exact <= bound + 1e-15
    assert exact <= spread(p.expand(1, 1, len(p), -1), p.expand(1, 1, len(p), -1))[0, 0, 0]
    assert bound <= min(float(first), 0.5) + 1e-15


@given(logits, st.integers(0, 10**6))
def test_s2_the_second_derivative_of_softmax(s: Tensor, seed: int) -> None:
    p, t = (
        torch.softmax(s, -1),
        torch.randn(len(s), generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
    )
    z = t - p @ t
    second = p * (z**2 - p @ z**2)
    _, check = torch.func.jvp(
        lambda s: torch.func.jvp(lambda s: torch.softmax(s, -1), (s,), (t,))[1], (s,), (t,)
    )
    torch.testing.assert_close(second, check, rtol=1e-8, atol=1e-14)
    variance = p @ z**2
    assert torch.linalg.vector_norm(second) <= torch.sqrt(1 + p.max()) * variance * (1 + 1e-9)
    assert (
        variance <= torch.linalg.eigvalsh(covariance(p))[-1] * t.square().sum() * (1 + 1e-9) + 1e-15
    )


@given(logits, st.integers(0, 10**6))
def test_s3_jensen(s: Tensor, seed: int) -> None:
    t = 5 * torch.randn(len(s), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = torch.softmax(s, -1)
    assert (torch.log_softmax(s + t, -1) <= torch.log_softmax(s, -1) + t - p @ t + 1e-9).all()


@given(logits, st.floats(0.01, 3), st.integers(0, 10**6))
def test_s4_the_slope_on_a_box(s: Tensor, width: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows = torch.softmax(s + width * torch.randn(50, len(s), generator=g, dtype=torch.float64), -1)
    low, high = (part.expand(1, 1, len(s), -1) for part in (rows.amin(0), rows.amax(0)))
    assert torch.linalg.eigvalsh(covariance(rows))[:, -1].max() <= spread(low, high)[0, 0, 0]


@given(logits, st.integers(0, 10**6))
def test_the_fullest_mean_is_that_of_a_linear_program(s: Tensor, seed: int) -> None:
    from scipy.optimize import linprog

    p = torch.softmax(s, -1)
    gain = torch.randn(len(s), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = 0.5 * p, (2 * p).clamp(max=1)
    exact = linprog(
        (-gain).tolist(),
        A_eq=[[1.0] * len(s)],
        b_eq=[1.0],
        bounds=list(zip(low.tolist(), high.tolist(), strict=True)),
        options={"primal_feasibility_tolerance": 1e-10},  # by default the solver may miss by 1e-7
    )
    assert float(fullest(gain, falling(gain), low, high)) == pytest.approx(-exact.fun, abs=1e-9)


def test_norms_of_non_negative_matrices_are_never_too_small(randn) -> None:  # type: ignore[no-untyped-def]
    for matrix in (
        randn(20, 5, 5).abs(),
        torch.eye(5, dtype=torch.float64).expand(2, 5, 5),
        torch.zeros(1, 3, 3, dtype=torch.float64),
    ):
        exact = torch.linalg.matrix_norm(matrix, 2)
        assert (positive_norm(matrix) >= exact).all()
        assert (positive_norm(matrix) <= exact * 1.05 + 1e-90).all()
        both = matrix + matrix.mT
        assert (largest_root(both) >= torch.linalg.eigvalsh(both)[:, -1]).all()
    assert torch.allclose(others(torch.arange(4.0)), torch.tensor([6.0, 5.0, 4.0, 3.0]))


@pytest.mark.parametrize("residual", [-1.0, 0.0, 0.7])
def test_the_direct_part_without_a_large_matrix(
    residual: float, randn, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    p, c = torch.softmax(3 * randn(6, 2, 4, 4), -1), randn(2, 3, 3)
    c[0] *= torch.tensor([0.0])
    exact = direct_norm(p, c, residual)
    dense = [
        residual * torch.eye(12) + sum(torch.kron(one[h], c[h]) for h in range(2)) for one in p
    ]
    torch.testing.assert_close(
        exact, torch.stack([torch.linalg.matrix_norm(one, 2) for one in dense]), rtol=1e-8, atol=0
    )
    monkeypatch.setattr("attnscope.bounds.near._direct.SMALL", 0)
    assert (direct_norm(p, c, residual) >= exact * (1 - 1e-9)).all()


def at(case: Case, x: Tensor) -> ScoresAt:
    return softmax.reading(Near(case.attention, x, case.eps))


def points(case: Case) -> list[Tensor]:
    """Points of the ball: random ones on its sphere, and those where an entry of the coupling has
    moved far.
    """
    found = []
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        start = torch.randn(case.x.shape, generator=g, dtype=torch.float64)
        i, j = (int(torch.randint(case.x.shape[-2], (1,), generator=g)) for _ in range(2))
        sign = 1 if seed % 2 else -1

        def entry(d: Tensor, i: int = i, j: int = j, sign: int = sign) -> Tensor:
            return (
                sign
                * case.attention.coupling(case.x + d, Particles(case.x).at(case.x + d))[
                    :, 0, i, min(i, j)
                ]
            )

        found += [
            case.x + climb(entry, start, case.eps, steps=10)[1],
            case.x + climb(entry, start, 0.5 * case.eps, steps=0)[1],
        ]
    return found


@pytest.mark.parametrize("variant", [Softmax, L2])
def test_every_quantity_of_the_ball_holds_at_attacked_points(variant: type[Layer]) -> None:
    for seed in range(9):
        case = random_case(seed, variant, stack=2)
        clean = at(case, case.x)
        ball = Ball.of(clean, case.eps)
        least, most = box(clean, case.eps[:, None, None, None])
        for x in points(case):
            there = at(case, x)
            tolerance = 1e-11 + 1e-9 * there.b.abs().max()
            assert (there.p <= ball.high + 1e-12).all()
            assert (there.p >= ball.low - 1e-12).all()
            seen = clean.p > 0
            assert (there.log_p <= clean.log_p + most + 1e-9)[seen].all()
            assert (there.log_p >= clean.log_p + least - 1e-9)[seen].all()
            assert (there.p - clean.p <= ball.rise + 1e-12).all()
            assert (clean.p - there.p <= ball.fall + 1e-12).all()
            assert (there.b <= ball.b + tolerance).all()
            assert (there.y <= ball.y + tolerance).all()
            assert (there.kappa <= ball.kappa + tolerance).all()
            assert ((there.p * there.b).sum(-1) <= ball.written + tolerance).all()
            assert (
                (there.p * there.b * there.y).sum(-1) <= ball.bent * (1 + 1e-9) + tolerance
            ).all()
            assert (torch.linalg.eigvalsh(covariance(there.p))[..., -1] <= ball.spread).all()


@pytest.mark.parametrize("variant", [Softmax, L2])
def test_constants_bound_the_jacobian_and_the_second_derivative_over_the_ball(
    variant: type[Layer],
) -> None:
    for seed in range(7):
        case = random_case(seed, variant, stack=2)
        near = Near(case.attention, case.x, case.eps, case.residual)
        clean, ball, xi = softmax.reading(near), softmax.ball(near), softmax.direct(near)
        constants = torch.minimum(softmax.capped(near), softmax.l3(case.attention, near) / case.eps)
        moved = (positive_norm(ball.slope) * clean.matrices.c_norm).sum(-1)
        constants = torch.minimum(
            constants, xi + moved + covariance_norm(clean, ball.high, ball.kappa, case.eps)
        )
        hessian, size = hessian_norm(ball), case.x[0].numel()
        for x in points(case)[:3]:
            for index in range(2):
                jacobian, second = derivatives(case, x[index], seed)
                assert (
                    torch.linalg.matrix_norm(jacobian.reshape(size, size), 2)
                    <= constants[index] * (1 + 1e-9) + 1e-9
                )
                assert torch.linalg.matrix_norm(second) <= hessian[index] * (1 + 1e-9) + 1e-9


def derivatives(case: Case, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """DF(X) and D^2F(X)[U, U] for a random U of norm one."""

    def function(x: Tensor) -> Tensor:
        return case(x[None])[0]

    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u = u / torch.linalg.matrix_norm(u)
    return torch.func.jacrev(function)(x), bend(function, x, u).detach()
