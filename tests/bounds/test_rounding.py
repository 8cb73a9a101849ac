"""Bounds hold where almost everything cancels, so that only their allowance for rounding stands
between them and the truth.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bound_cases import jacobian, local_constant

from attnscope import Heads, Particles, Softmax
from attnscope.bounds import BlockNorms, smoothness
from attnscope.bounds.at import At
from attnscope.bounds.smooth._query_path import QueryPath
from attnscope.bounds.smooth.blocks import outputs, values
from attnscope.norms import LARGE, spectral


@pytest.mark.parametrize("width", [1e-4, 1e-6, 1e-8])
def test_no_norm_is_too_small_where_almost_everything_cancels(width: float, randn) -> None:
    """Close neighbours read each other alone: covariances at the level of rounding, large gradients
    of the scores.
    """
    centres = torch.tensor(
        [[1.0, 0.0, 0.3], [-1.0, 0.2, 0.0], [0.1, -1.0, 0.5]], dtype=torch.float64
    )
    sharp = 100 * torch.eye(3, dtype=torch.float64).expand(2, 3, 3).contiguous()
    for _ in range(6):
        attention = Softmax(Heads(sharp, sharp, randn(2, 2, 3), randn(2, 3, 2), scale=1.0))
        mu = Particles(centres[[0, 0, 1, 1, 2, 2, 2]] + width * randn(7, 3))
        at = At.of(attention, mu)
        deviation = mu.x - (at.coupling @ mu.x)[:, :, None]
        exact = torch.linalg.matrix_norm(
            torch.einsum("hij,hijd,hije->hide", at.coupling, deviation, deviation), 2
        )
        assert (at.covariances >= exact).all()
        truth = torch.linalg.matrix_norm(jacobian(attention, mu), 2)
        for examples in ([], [mu]):
            assert (BlockNorms(attention, examples).blocks(at) >= truth).all()
        assert all(
            bound.value >= float(local_constant(attention, mu))
            for bound in smoothness(attention, mu)
        )
        centred = at.k[:, None] - (at.coupling @ at.k)[:, :, None]
        moved = torch.einsum("hij,hijd,hijk->hidk", at.coupling, deviation, centred)
        query = (outputs(at.heads) @ at.heads.value)[:, None] @ moved @ at.heads.query[:, None]
        found = QueryPath(at.heads, outputs(at.heads)).norms(
            at, values(at), torch.ones(7, dtype=torch.float64)
        )
        assert (found >= torch.linalg.matrix_norm(query.sum(0), 2)).all()


@pytest.mark.parametrize("excess", [1e-3, 1e-5, 1e-6, 1e-7, 1e-9])
def test_no_norm_is_too_small_where_heads_cancel(excess: float, randn) -> None:
    """The second head takes back what the first one writes, but for a small excess."""
    for _ in range(5):
        value, output, query = randn(1, 2, 3), randn(1, 3, 2), randn(1, 2, 3)
        heads = Heads(
            *(torch.cat([part, part]) for part in (query, randn(1, 2, 3), value)),
            torch.cat([output, -(1 + excess) * output]),
        )
        attention, mu = Softmax(heads), Particles(randn(5, 3))
        at = At.of(attention, mu)
        truth = torch.linalg.matrix_norm(jacobian(attention, mu), 2)
        for examples in ([], [mu]):
            assert (BlockNorms(attention, examples).blocks(at) >= truth).all()


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7, 1e-9])
def test_no_norm_is_too_small_where_queries_hardly_meet_keys(angle: float, randn) -> None:
    """Queries along one direction, keys along the other: only the small turn between places makes
    them meet.
    """
    for _ in range(5):
        plane = torch.linalg.qr(randn(2, 2)).Q
        query, key = (plane[:, [side]] @ randn(1, 3) for side in (0, 1))
        turn = torch.tensor([angle], dtype=torch.float64)
        at = At.of(
            Softmax(Heads(query[None], key[None], randn(1, 3, 3), rotary=turn)),
            Particles(randn(6, 3)),
        )
        deviation = at.x - (at.coupling @ at.x)[0][:, None]
        for row, found in enumerate(at.query_paths[0]):
            meet = at.k[0] @ at.query_turned(row)[0]
            own = torch.einsum("j,jd,je->de", at.coupling[0, row], deviation[row], meet)
            assert found >= torch.linalg.matrix_norm(own, 2) * (1 - 1e-5)


@pytest.mark.parametrize("shape", [(LARGE + 6, LARGE + 16), (LARGE + 16, LARGE + 6)])
def test_norms_of_large_matrices_are_close_and_never_too_small(
    shape: tuple[int, int], randn
) -> None:
    for matrix in (randn(*shape), randn(shape[0], 1) @ randn(1, shape[1])):
        truth = float(torch.linalg.matrix_norm(matrix, 2))
        assert truth <= float(spectral(matrix)) <= truth * (1 + 1e-7)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e7])
def test_the_allowance_covers_the_rounding_of_large_scores(size: float) -> None:
    """The coupling against the same in extended precision: it errs relatively by what its scores
    err absolutely.
    """
    generator = torch.Generator().manual_seed(5)
    a, x = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 3), (1, 3))
    )
    tokens = x + torch.randn(6, 3, generator=generator, dtype=torch.float64) / size
    attention = Softmax(Heads.from_matrices(size * a, torch.eye(3, dtype=torch.float64)))
    at = At.of(attention, Particles(tokens))
    exact = tokens.numpy().astype(np.longdouble)
    scores = exact @ (size * a).numpy().astype(np.longdouble).T @ exact.T
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    wrong = float(
        np.abs(at.coupling[0].numpy() / (odds / odds.sum(axis=1, keepdims=True)) - 1).max()
    )
    assert wrong <= at.allowance + 1e-14
    assert at.allowance <= 1e-10 or size > 1e3
