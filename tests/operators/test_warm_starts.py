"""Warm starts: the overlap theorem with its rate, brackets that hold, streams that do not repeat,
fewer pairs, and a value that overtakes another is not missed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.operators import Near
from attnscope.operators.operator import LinearOperator
from attnscope.operators.starts import draw

FAILURE = 0.1


def diagonal(values: Tensor, runs: int) -> LinearOperator:
    """So many copies of a diagonal map."""

    def product(u: Tensor) -> Tensor:
        return u * values

    def restrict(index: Tensor) -> LinearOperator:
        return diagonal(values, len(index))

    shape: Any = (len(values),)
    device = values.device
    return LinearOperator(
        product, product, shape, shape, values.dtype, device, (runs,), restrict=restrict
    )


def blend(size: int, **weights: float) -> Tensor:
    """A unit vector with these weights at the places p0, p1, ..."""
    made = torch.zeros(size, dtype=torch.float64)
    for place, weight in weights.items():
        made[int(place[1:])] = weight
    return made / made.norm()


def spectrum(*top: float) -> Tensor:
    return torch.cat([torch.tensor(top), torch.linspace(0.9, 0, 600)]).double()


@pytest.mark.parametrize("towards", [0.0, 0.3, 1.0])
def test_the_overlap_with_a_fixed_direction_is_rarely_smaller(towards: float) -> None:
    """At the rate itself where w is orthogonal to the direction: no better constant holds."""
    size, runs = 30, 8000
    w = blend(size, p0=towards, p1=math.sqrt(1 - towards**2))
    op = diagonal(torch.ones(size, dtype=torch.float64), runs)
    made = draw(op, 0, near=w.expand(runs, -1), run=(5,))
    rate = float((made.vectors[:, 0].abs().numpy() < made.overlap(FAILURE)).mean())
    spread = math.sqrt(FAILURE * (1 - FAILURE) / runs)
    assert rate <= FAILURE + 4 * spread
    assert towards > 0 or rate >= FAILURE - 4 * spread
    assert np.ptp(made.noise) > 0  # of norms as they were drawn


def test_upper_bounds_hold_at_their_rate_from_a_misleading_start() -> None:
    """w is the second singular vector alone: only its noise lets the search see the first. With the
    overlap of a start that is all noise the bounds would fail too often.
    """
    values, runs = torch.tensor([1.0, 0.9, 0.2, 0.1, 0.05, 0.0], dtype=torch.float64), 4000
    wrong = blend(6, p1=1).expand(runs, -1)
    starts = draw(diagonal(values, runs), 0, near=wrong, run=(1,))
    unseen = starts.vectors[:, 0].abs().numpy() < starts.overlap(FAILURE)
    found = asc.spectral_norm(
        diagonal(values, runs),
        tol=1e-9,
        failure_probability=FAILURE,
        max_pairs=3,
        near=Near(wrong, (1,)),
    )
    missed = ~(torch.as_tensor(found.upper) >= 1).numpy()  # NaN where withdrawn
    assert missed.mean() <= FAILURE / runs + 4 * math.sqrt(FAILURE / runs)
    assert abs(unseen.mean() - FAILURE) <= 4 * math.sqrt(FAILURE / runs)


def test_noise_comes_from_a_stream_of_its_own() -> None:
    op = diagonal(torch.ones(200, dtype=torch.float64), 1)
    near = blend(200, p0=1)[None]
    drawn = [draw(op, 3).vectors] + [
        draw(op, 3, near=near, run=run).vectors
        - draw(op, 3, near=near, run=run).vectors[:, :1] * near
        for run in ((0,), (1,), (1, 0))
    ]
    units = torch.cat([part / part.norm() for part in drawn])
    assert ((units @ units.mT).fill_diagonal_(0).abs() < 0.3).all()


def test_a_warm_start_needs_fewer_pairs_for_the_same_error() -> None:
    before, now = spectrum(1.0, 0.92), spectrum(1.01, 0.925)
    first = asc.spectral_norm(diagonal(before, 40))
    cold = asc.spectral_norm(diagonal(now, 40))
    warm = asc.spectral_norm(diagonal(now, 40), near=Near(first.around, (2,)))
    pairs = [float(torch.as_tensor(one.pairs).double().mean()) for one in (cold, warm)]
    assert pairs[1] < 0.75 * pairs[0]
    assert (1 - torch.as_tensor(warm.lower) / now[0]).max() < 2e-6


@pytest.mark.parametrize("ahead", [1e-3, 1e-2, 0.1])
def test_a_value_that_overtakes_another_is_missed_no_more_often_than_cold(ahead: float) -> None:
    """The second vector of the nearby problem is in the start: from the first alone nearly all
    searches would stop at the value that was the largest, where it is close.
    """
    before, now = spectrum(1.0, 1 - ahead), spectrum(1.0, 1 + ahead)
    first = asc.spectral_norm(diagonal(before, 100))
    only = blend(len(now), p0=1).expand(100, -1)

    def missed(near: Near | None) -> float:
        found = asc.spectral_norm(diagonal(now, 100), near=near)
        off = 1 - torch.as_tensor(found.lower) / now[1]
        return float((off[torch.as_tensor(found.converged)] > 2e-6).double().mean())

    assert missed(Near(first.around, (2,))) <= missed(None) + 0.05
    if ahead == 1e-3:
        assert missed(Near(only, (2,))) > 0.9


def test_wrong_shapes_are_refused() -> None:
    op = diagonal(spectrum(1.0), 2)
    with pytest.raises(ValueError, match=r"shape \(2, 601\).*got \(601,\)"):
        asc.spectral_norm(op, near=Near(torch.zeros(601), (1,)))
