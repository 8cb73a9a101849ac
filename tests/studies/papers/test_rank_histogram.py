"""The stacked runs of the rank histograms against runs that are integrated one by one."""

from __future__ import annotations

import pytest
import torch

from attnscope.flows import flow, flow_each
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


def cell_of(attention: str, values: str, dim: int, runs: int) -> RankCell:
    return RankCell(
        attention=attention, values=values, dim=dim, first=0, stop=runs, end=END, seed=0
    )


@pytest.mark.parametrize("attention", ["softmax", "L2"])
@pytest.mark.parametrize(("values", "dim", "runs"), [(VALUES[0], 5, 2), (VALUES[1], 3, 4)])
def test_stacked_runs_end_as_those_integrated_one_by_one(
    attention: str, values: str, dim: int, runs: int
) -> None:
    cell, times = cell_of(attention, values, dim, runs), [0, END / 10, END]
    rows = RankHistogram().run(cell, Workbench())
    made = [_problem(attention, values, dim, drawn(0, dim, run)) for run in range(runs)]
    starts = torch.stack([start for _, start in made])
    stacked = flow_each(
        [one for one, _ in made], Gaussian(torch.zeros_like(starts[..., 0]), starts), times, 1e-6
    )
    for run, (one, start) in enumerate(made):
        alone = flow(
            one,
            Gaussian(torch.zeros_like(start[0]), start),
            times,
            rtol=1e-6,
            atol=1e-9,
            method="LSODA",
            settle=None,
        )
        assert rows[run] == _limit(cell, run, alone.status, alone.cov)
        size = torch.linalg.matrix_norm(alone.cov)
        apart = torch.linalg.matrix_norm(stacked.cov[:, run] - alone.cov)
        assert (apart <= 1e-4 * size).all()


def test_a_cell_is_a_stack_of_runs_and_no_run_is_left_out() -> None:
    cells = list(RankHistogram().cells(RankConfig(dims=(3,), runs=2 * SHARD + 1), Workbench()))
    kinds = {(cell.attention, cell.values) for cell in cells}
    assert len(kinds) == 4
    for kind in kinds:
        runs = [
            run
            for cell in cells
            if (cell.attention, cell.values) == kind
            for run in range(cell.first, cell.stop)
        ]
        assert runs == list(range(2 * SHARD + 1))


def test_a_run_has_its_matrices_whatever_cell_it_is_in() -> None:
    whole, part = (
        RankHistogram().run(
            RankCell(
                attention="softmax", values=VALUES[1], dim=3, first=first, stop=3, end=END, seed=4
            ),
            Workbench(),
        )
        for first in (0, 2)
    )
    assert whole[2:] == part


def test_a_stack_that_is_told_to_stop_leaves_nothing_half_done() -> None:
    told: list[float] = []

    def watch(part: float, what: str) -> bool:
        told.append(part)
        return len(told) < 5

    bench = Workbench(watch)
    with pytest.raises(Stopped):
        RankHistogram().run(cell_of("softmax", VALUES[0], 3, 2), bench)
    assert bench.cut
    assert told == sorted(told)
    assert 0 < told[-1] < 1
