"""The stacked runs of the rank histograms against runs that are integrated one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnscope.flows import Trajectory, flow, flow_each
from attnscope.measures import Gaussian
from attnscope.studies.papers._figure import drawn
from attnscope.studies.papers.rank_histogram import (
    SHARD,
    VALUES,
    RankCell,
    RankConfig,
    RankHistogram,
    _limit,
    _problem,
)
from attnscope.studies.workbench import Stopped, Workbench

END = 1e6


def cell_of(attention: str, dim: int, first: int, stop: int) -> RankCell:
    return RankCell(attention=attention, dim=dim, first=first, stop=stop, end=END, seed=0)


@pytest.mark.parametrize("attention", ["softmax", "L2"])
@pytest.mark.parametrize(("dim", "runs"), [(3, 2), (5, 1)])
def test_stacked_runs_end_as_those_integrated_one_by_one(
    attention: str, dim: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Trajectory[Gaussian]] = []

    def keeping(*told: Any, **options: Any) -> Trajectory[Gaussian]:
        kept.append(flow_each(*told, **options))
        return kept[-1]

    monkeypatch.setattr("attnscope.studies.papers.rank_histogram.flow_each", keeping)
    cell, times = cell_of(attention, dim, 0, runs), [0, END / 10, END]
    rows = RankHistogram().run(cell, Workbench())
    (stacked,) = kept
    members = [(values, run) for values in VALUES for run in range(runs)]
    made = [_problem(attention, values, dim, drawn(0, dim, run)) for values, run in members]
    for place, (one, start) in enumerate(made):
        alone = flow(
            one,
            Gaussian(torch.zeros_like(start[0]), start),
            times,
            rtol=1e-6,
            atol=1e-9,
            method="LSODA",
            settle=None,
        )
        assert rows[place] == _limit(cell, *members[place], alone.status, alone.cov)
        size = torch.linalg.matrix_norm(alone.cov)
        apart = torch.linalg.matrix_norm(stacked.cov[:, place] - alone.cov)
        assert (apart <= 1e-4 * size).all()


def test_a_cell_is_a_stack_of_runs_and_no_run_is_left_out() -> None:
    cells = list(RankHistogram().cells(RankConfig(dims=(3,), runs=2 * SHARD + 1), Workbench()))
    for attention in ("softmax", "L2"):
        ranges = [(cell.first, cell.stop) for cell in cells if cell.attention == attention]
        assert ranges == [(0, SHARD), (SHARD, 2 * SHARD), (2 * SHARD, 2 * SHARD + 1)]


def test_a_run_has_its_matrices_whatever_cell_it_is_in() -> None:
    whole, part = (
        RankHistogram().run(cell_of("softmax", 3, first, 2), Workbench()) for first in (0, 1)
    )
    assert [row for row in whole if row.run == 1] == part
    assert [row.values for row in part] == list(VALUES)


def test_a_stack_that_is_told_to_stop_leaves_nothing_half_done() -> None:
    told: list[float] = []

    def watch(part: float, what: str) -> bool:
        told.append(part)
        return len(told) < 5

    bench = Workbench(watch)
    with pytest.raises(Stopped):
        RankHistogram().run(cell_of("softmax", 3, 0, 2), bench)
    assert bench.cut
    assert told == sorted(told)
    assert 0 < told[-1] < 1
