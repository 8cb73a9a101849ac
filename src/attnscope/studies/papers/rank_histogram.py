r"""Figure "rank histograms": the rank of the limit when K = -Q has rank d//2, softmax and L2, V = I
and V = R^T R [castin25].
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.flows import flow_each, spectral_gap_rank
from attnscope.measures import Gaussian
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, GREY, RED, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, drawn, every, share
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

GROWN = 1e6
NOTHING = 1e-10
"""Eigenvalues below this share of the largest are zero: the solver's error. It is no place to cut,
for S_0 = Z Z^T has eigenvalues of 5e-8 in some of a few hundred draws, and so has its limit.
"""
STAYS, FALLS = 0.8, 0.3
"""Shares of an eigenvalue that are left after the last nine tenths of the time."""
SHARD = 100
"""Draws of matrices that are one cell, all in one stack, each run with its own step sizes."""
VALUES = ("identity", "R^T R")


class Limit(NamedTuple):
    """One run. The rank of a bounded limit counts the eigenvalues that have stopped falling; one
    that blew up or grew by more than GROWN has the rank of S / tr S, at the widest gap.

    Eigenvalues that go to zero do so like 1/t, some earlier and some later, so that no gap of the
    last spectrum alone tells which they are.
    """

    attention: str
    values: str
    dim: int
    run: int
    status: str
    bounded: bool
    rank: int
    told: bool
    """Whether it came far enough: every eigenvalue has settled or is falling as if for ever."""


@dataclass(frozen=True)
class RankConfig:
    dims: tuple[int, ...] = (3, 4, 5)
    runs: int = 100
    end: float = 1e6
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RankCell(Cell):
    """The runs from number `first` up to `stop`, with V = I and with V = R^T R: one stack."""

    attention: str
    dim: int
    first: int
    stop: int
    end: float
    seed: int


class RankHistogram(PaperFigure):
    """The rank of the limit covariance when keys are minus queries of rank d/2."""

    name = "rank_histogram"
    paper = "castin25"
    figure = "rank histograms"
    topic = "dynamics"
    seconds = (50, 80)
    Config = RankConfig
    fast = RankConfig(runs=10)
    tables: ClassVar[dict[str, type]] = {"results": Limit}

    def cells(self, config: RankConfig, workbench: Workbench) -> Iterable[RankCell]:
        check_positive("end", config.end)
        check_positive("runs", config.runs)
        if min(config.dims, default=0) < 2:
            raise ValueError(f"dims must be at least 2, so that Q has a row, got {config.dims}.")
        for name in ("softmax", "L2"):
            for dim in config.dims:
                for first in range(0, config.runs, SHARD):
                    yield RankCell(
                        attention=name,
                        dim=dim,
                        first=first,
                        stop=min(first + SHARD, config.runs),
                        end=config.end,
                        seed=config.seed,
                    )

    def run(self, cell: RankCell, workbench: Workbench) -> list[Limit]:
        members = [(values, run) for values in VALUES for run in range(cell.first, cell.stop)]
        # softmax and L2 see the same matrices, as in the authors' script
        attentions, starts = zip(
            *(
                _problem(cell.attention, values, cell.dim, drawn(cell.seed, cell.dim, run))
                for values, run in members
            ),
            strict=True,
        )
        what = f"{cell.attention}, d = {cell.dim}, {len(members)} runs"

        def going(t: float) -> None:
            # steps grow with time, so that the logarithm tells how much is done
            workbench.check(math.log1p(t) / math.log1p(cell.end), what)

        # time scales differ by many orders when V does, so the solver is implicit
        got = flow_each(
            attentions,
            Gaussian(torch.zeros(len(members), cell.dim, dtype=torch.float64), torch.stack(starts)),
            [0, cell.end / 10, cell.end],
            rtol=1e-6,
            atol=1e-9,
            progress=going,
        )
        return [
            _limit(cell, values, run, outcome.status, got.cov[:, place])
            for place, ((values, run), outcome) in enumerate(
                zip(members, got.outcomes, strict=True)
            )
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        return {self.name: _histograms(_cases(table))}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, values in dict.fromkeys((row.attention, row.values) for row in table):
            rows = [row for row in table if (row.attention, row.values) == (name, values)]
            calm = [row for row in rows if row.bounded]
            told = [row for row in calm if row.told]
            low = sum(row.rank <= (row.dim + 1) // 2 for row in told)
            made.append(
                Verdict(
                    f"{name}, V {values}: bounded limits have rank at most ceil(d/2)",
                    "all that are counted",
                    f"{share(low, len(told))} bounded runs; {len(rows) - len(calm)} of"
                    f" {len(rows)} are not bounded, {len(calm) - len(told)} cannot be told",
                    every(row.rank <= (row.dim + 1) // 2 if row.told else None for row in calm),
                    "the rank counts eigenvalues that have stopped falling; the authors leave"
                    " higher ranks out of their histograms",
                )
            )
        exact = [row for row in table if (row.attention, row.values) == ("softmax", VALUES[0])]
        if exact:
            right = sum(row.bounded and row.rank == (row.dim + 1) // 2 for row in exact)
            made.append(
                Verdict(
                    "softmax, V identity: the rank is exactly ceil(d/2)",
                    "a theorem: dim ker A_s",
                    f"{share(right, len(exact))} runs",
                    every(
                        (row.bounded and row.rank == (row.dim + 1) // 2) if row.told else None
                        for row in exact
                    ),
                    "S_0 > 0 and A_s <= 0 of rank d//2",
                )
            )
        return made

    def remarks(self, table: Table) -> list[str]:
        lost = sum(not row.told for row in table)
        return [f"The limit of {lost} of {len(table)} runs cannot be told."] if lost else []


def _limit(
    cell: RankCell, values: str, run: int, status: str, cov: Float[Tensor, "times d d"]
) -> Limit:
    """What became of one run, from how it ended and its covariances in time."""
    growth = float(cov[-1].trace() / cov[0].trace())
    bounded = not (status == "blew up" or growth > GROWN)
    rank, told = int(spectral_gap_rank(cov[-1])), status != "failed" or not bounded
    if bounded and told:
        rank, told = settled_rank(*torch.linalg.eigvalsh(cov[-2:]))
    return Limit(cell.attention, values, cell.dim, run, status, bounded, rank, told)


def settled_rank(before: Float[Tensor, " d"], end: Float[Tensor, " d"]) -> tuple[int, bool]:
    """How many eigenvalues stay above zero, from those at a tenth of the time and at the end; and
    whether it can be told.

    What falls like 1/t, or faster, is a tenth of what it was.
    """
    above = end > NOTHING * end[-1]
    kept = end / before.clamp(min=1e-300)
    told = ((kept > STAYS) | (kept < FALLS) | ~above).all()
    return int((above & (kept > STAYS)).sum()), bool(told)


def _problem(
    name: str, values: str, dim: int, generator: torch.Generator
) -> tuple[Attention, torch.Tensor]:
    """Q = randn(d//2, d), K = -Q, V = I or R^T R, S_0 = Z Z^T."""
    q, z = normal(generator, 1, dim // 2, dim), normal(generator, dim, dim)
    r = normal(generator, dim, dim)
    v = (torch.eye(dim, dtype=torch.float64) if values == VALUES[0] else r.mT @ r)[None]
    if name == "softmax":
        return Softmax(Heads(q, -q, v, scale=dim**-0.5)), z @ z.mT
    return L2(Heads(q / dim**0.5, -q, v, scale=1.0)), z @ z.mT


def _cases(table: Table) -> dict[tuple[str, str, int], list[Limit]]:
    found: dict[tuple[str, str, int], list[Limit]] = {}
    for row in table:
        if row.told:
            found.setdefault((row.attention, row.values, row.dim), []).append(row)
    return found


def _histograms(cases: dict[tuple[str, str, int], list[Limit]]) -> Any:
    """One panel per case, ranks on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    dims = sorted({dim for _, _, dim in cases})
    kinds = list(dict.fromkeys((name, values) for name, values, _ in cases))
    figure = new_figure(max(3 * len(dims), 5), max(2.2 * len(kinds), 3))
    figure.suptitle(r"Rank of the limit, $K = -Q$ of rank $\lfloor d/2 \rfloor$")
    for (name, values, dim), rows in cases.items():
        line, column = kinds.index((name, values)), dims.index(dim)
        ax = figure.add_subplot(len(kinds), len(dims), line * len(dims) + column + 1)
        calm, wild = (Counter(r.rank for r in rows if r.bounded is kind) for kind in (True, False))
        ranks = list(range(1, dim + 1))
        below = [calm[rank] for rank in ranks]
        ax.bar(ranks, below, color=BLUE, label="bounded")
        ax.bar(
            ranks,
            [wild[rank] for rank in ranks],
            bottom=below,
            color=RED,
            hatch="//",
            label="unbounded: of $S/$trace",
        )
        ax.axvline((dim + 1) // 2, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
        shown = values.replace("R^T R", "$R^TR$").replace("identity", "$I$")
        ax.set(title=f"{name}, $V =$ {shown}, $d = {dim}$", xticks=ranks)
        ax.set(ylabel="" if column else "runs", xlabel="rank" if line == len(kinds) - 1 else "")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    if figure.axes:
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure
