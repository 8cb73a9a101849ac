"""Brackets in float64 from products in float32: as true as those of float64 alone, and handed over
to float64 where float32 cannot tell.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from test_operator import some_heads
from test_spectrum import of_matrix
from torch import Tensor

import attnscope as asc
from attnscope.operators import deflation
from attnscope.operators.deflation import bound_rest, deflated, most_of_rest, taken_out
from attnscope.operators.operator import LinearOperator
from attnscope.operators.search import search
from attnscope.operators.starts import Starts, draw


def with_coarse(m: Tensor) -> LinearOperator:
    """Matrices in float64 that have products in float32 too."""
    op = of_matrix(m)
    part = op.restrict
    return dataclasses.replace(
        op,
        coarse=lambda: of_matrix(m.float()),
        restrict=None if part is None else lambda index: with_coarse(m[index]),
    )


def of_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A matrix with these singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    left, right = (
        torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
        for _ in range(2)
    )
    return left * values @ right


def test_the_lemma_holds_at_any_vector() -> None:
    """sigma <= (1 + width) a whenever the rest is at most what the lemma allows."""
    generator = torch.Generator().manual_seed(0)
    used = 0
    for _ in range(300):
        m = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        top = torch.linalg.svd(m)[2][0]
        z = top + 0.1 * torch.randn(5, generator=generator, dtype=torch.float64)
        z = z / z.norm()
        image = m @ z
        a = float(image.norm())
        pulled = m.mT @ image / a**2 - z
        rest = float(torch.linalg.matrix_norm(m - torch.outer(image, z), 2))
        for width in (1e-3, 1e-2, 1e-1):
            if rest <= a * most_of_rest(np.array([float(pulled.norm())]), width)[0]:
                used += 1
                assert float(torch.linalg.matrix_norm(m, 2)) <= a * (1 + width) * (1 + 1e-12)
    assert used > 100


def begin(seed: int, op: LinearOperator, attempt: int) -> Starts:
    return draw(op, seed, attempt)


def test_what_is_taken_out_leaves_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is within its bound wherever what is left of it is within the smaller one; not
    always within its own, so that the residuals of what was taken out count.
    """
    monkeypatch.setattr(deflation, "DEAREST", 0.5)
    used, dear = 0, 0
    for seed in range(40):
        values = torch.cat([torch.tensor([1.0, 0.8, 0.75, 0.6]), torch.linspace(0.55, 0, 30)])
        m = of_spectrum(values.double(), seed)
        for tol in (3e-2, 1e-2, 1e-3):
            op = of_matrix(m).flat()
            found = search(op, partial(begin, seed), tol, None, 40, deflation.BESIDE)
            beside = torch.eye(len(m)) - found.right.T @ found.right
            rest = float(torch.linalg.matrix_norm(m @ beside, 2))
            for most in np.linspace(0.7, 0.99, 30):
                basis, left = taken_out(found, np.array([most]), 0.0)
                count = int(basis[0].any(-1).sum())
                torch.testing.assert_close(
                    basis[0] @ basis[0].T,
                    torch.eye(3).double() * basis[0].any(-1),
                    atol=1e-9,
                    rtol=0,
                )
                out = torch.eye(len(m)) - basis[0].T @ basis[0]
                last = float(torch.linalg.matrix_norm(m @ out, 2))
                if count > 1 and last <= left[0]:
                    used += 1
                    assert rest <= most * (1 + 1e-9)
                dear += count > 1 and last <= most < rest
    assert used > 100
    assert dear > 0


def test_taking_more_out_takes_fewer_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.cat([torch.tensor([1.0, 0.9, 0.85]), torch.linspace(0.6, 0, 60)]).double()
    op = with_coarse(torch.stack([of_spectrum(values, seed) for seed in range(4)]))
    more = asc.spectral_norm(op, tol=1e-6, failure_probability=1e-9)
    monkeypatch.setattr(deflation, "DEAREST", -1.0)
    less = asc.spectral_norm(op, tol=1e-6, failure_probability=1e-9)
    assert more.converged.all()
    assert less.converged.all()
    assert (more.pairs < less.pairs).all()
    assert (more.upper >= 1 - 1e-13).all()


@pytest.mark.parametrize("stack", [(), (3,), (2, 2)])
def test_attention_brackets_hold_and_are_narrow(stack: tuple[int, ...]) -> None:
    x = torch.randn(*stack, 9, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    op = asc.jacobian(asc.Softmax(some_heads()), asc.Particles(x))
    assert op.coarse is not None
    assert op.coarse().dtype == torch.float32
    found = asc.spectral_norm(op, tol=1e-6, failure_probability=1e-6)
    truth = torch.linalg.svdvals(op.whitened().to_dense())[..., 0]
    lower, upper = (
        torch.as_tensor(side, dtype=torch.float64) for side in (found.lower, found.upper)
    )
    assert (lower <= truth * (1 + 1e-13)).all()
    assert (upper >= truth).all()
    assert (upper / lower - 1 <= 1e-6).all()
    assert torch.as_tensor(found.converged).all()
    moved = op.mv(found.right) - lower[..., None, None] * found.left
    assert float(moved.abs().max()) < 1e-9 * float(truth.max())


def test_problems_of_a_stack_are_settled_alone() -> None:
    """A gap that float32 sees, one that it does not, and none: each is bracketed by what can."""
    rest = torch.linspace(0.8, 0, 38, dtype=torch.float64)
    tops = ([1.0, 0.9], [1.0, 1 - 1e-5], [1.0, 1.0])
    spectra = [torch.cat([torch.tensor(top, dtype=torch.float64), rest]) for top in tops]
    op = with_coarse(torch.stack([of_spectrum(values) for values in spectra]))
    found = asc.spectral_norm(op, tol=1e-6, failure_probability=1e-6)
    assert found.converged.all()
    assert (found.lower <= 1 + 1e-13).all()
    assert (found.upper >= 1 - 1e-13).all()
    assert (found.upper / found.lower - 1 <= 1e-6).all()
    for number, values in enumerate(spectra):
        alone = asc.spectral_norm(
            with_coarse(of_spectrum(values)), tol=1e-6, failure_probability=1e-6
        )
        assert found.lower[number].item() == pytest.approx(alone.lower, rel=2e-6)


@pytest.mark.parametrize("size", [0.0, 1e-60, 1e60])
def test_what_float32_cannot_hold_goes_to_float64(size: float) -> None:
    m = size * of_spectrum(torch.linspace(1, 0, 30, dtype=torch.float64) ** 2)
    found = asc.spectral_norm(with_coarse(m), tol=1e-6, failure_probability=1e-6)
    assert found.converged
    assert found.lower == pytest.approx(size, rel=1e-6)
    assert found.lower <= size * (1 + 1e-12) <= found.upper * (1 + 1e-12)


def test_narrower_brackets_than_float32_can_serve() -> None:
    m = of_spectrum(torch.linspace(1, 0, 30, dtype=torch.float64) ** 2)
    found = asc.spectral_norm(with_coarse(m), tol=1e-11, failure_probability=1e-6)
    assert found.lower <= 1 + 1e-13
    assert 1 - 1e-13 <= found.upper <= found.lower * (1 + 1.01e-11)


def test_a_norm_above_its_goal_is_missed_no_more_often_than_said() -> None:
    """The largest value of the rest, just above the goal: shown to be below it by unlucky starts
    alone.
    """
    runs, size, chance = 600, 100, 0.2
    values = torch.cat([torch.ones(2), torch.linspace(0.2, 0, size - 2)]).double()
    found = torch.eye(size, dtype=torch.float64)[:1].expand(runs, 1, -1)

    def product(u: Tensor) -> Tensor:
        return u * values

    whole = LinearOperator(
        product, product, (size,), (size,), torch.float64, values.device, (runs,)
    )
    goal = np.full(runs, 0.999)
    rest = bound_rest(deflated(whole, found), draw(whole, 1).beside(found), goal, chance, 40)
    assert rest.below.mean() <= chance + 3 * (chance * (1 - chance) / runs) ** 0.5
    above = bound_rest(deflated(whole, found), draw(whole, 1).beside(found), goal * 1.1, 1e-6, 40)
    assert above.below.all()


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 2), (2, 1), (3, 1)])
def test_maps_too_small_for_a_rest(n: int, d: int) -> None:
    """The vectors that are taken out fill the space: nothing is left to start from."""
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        key, value, x = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((d, d), (d, d), (n, d))
        )
        op = asc.jacobian(asc.Softmax(asc.Heads.from_matrices(key, value)), asc.Particles(x))
        true = float(torch.linalg.matrix_norm(op.to_dense(), 2))
        found = asc.spectral_norm(op, failure_probability=1e-9, seed=seed)
        assert found.lower <= true * (1 + 1e-12)
        assert found.upper >= true * (1 - 1e-12)


def test_float32_does_not_stand_for_values_with_much_in_common() -> None:
    """It loses the digits in which they differ, which is what scores weigh."""
    heads, x = some_heads(), asc.Particles(torch.randn(6, 4, dtype=torch.float64))
    attention = asc.Softmax(heads)
    assert asc.jacobian(attention, x).coarse is not None
    near = asc.jacobian(attention, x.at(1e5 + x.x))
    assert near.coarse is None
    assert near.rounding > 1e-12
    along = torch.eye(4, dtype=torch.float64)[0]  # what no value reads is common to tokens too
    blind = dataclasses.replace(heads, value=heads.value * (1 - along))
    assert asc.jacobian(asc.Softmax(blind), x).coarse is not None
    assert asc.jacobian(asc.Softmax(blind), x.at(x.x + 1e5 * along)).coarse is None
