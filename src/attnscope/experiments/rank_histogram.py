"""Figure "rank histograms": the rank of the limit when K = -Q has rank d//2, softmax and L2, V = I
and V random [castin25].
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.attention import Heads
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.experiments._covariances import BLUE, GREY, RED, normal
from attnscope.flows import flow, spectral_gap_rank
from attnscope.measures import Gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure


GROWN = 1e6


class Case(NamedTuple):
    """One panel: how many runs ended with each rank (at the widest gap of the spectrum), those that
    stayed bounded and those that did not.

    A run that did not either blew up or grew by more than GROWN; the rank is then that of S / tr S
    where it ended.
    """

    attention: str
    values: str
    dim: int
    bounded: Counter[int]
    unbounded: Counter[int]
    failed: int


def run(
    dims: tuple[int, ...] = (3, 4, 5), runs: int = 100, seed: int = 0, end: float = 1e6
) -> list[Case]:
    cases = []
    for name in ("softmax", "L2"):
        for values in ("identity", "random"):
            for dim in dims:
                generator = torch.Generator().manual_seed(seed)
                cases.append(_case(name, values, dim, runs, generator, end))
    return cases


def _case(
    name: str, values: str, dim: int, runs: int, generator: torch.Generator, end: float
) -> Case:
    bounded: Counter[int] = Counter()
    unbounded: Counter[int] = Counter()
    failed = 0
    for _ in range(runs):
        q, z = normal(generator, 1, dim // 2, dim), normal(generator, dim, dim)
        v = (
            torch.eye(dim, dtype=torch.float64)[None]
            if values == "identity"
            else normal(generator, 1, dim, dim)
        )
        attention = (
            Softmax(Heads(q, -q, v, scale=dim**-0.5))
            if name == "softmax"
            else L2(Heads(q / dim**0.5, -q, v, scale=1.0))
        )
        got = flow(
            attention,
            Gaussian(torch.zeros(dim, dtype=torch.float64), z @ z.mT),
            [0, end],
            rtol=1e-6,
            atol=1e-9,
            max_steps=300,
        )
        grown = got.status == "blew up" or float(got.final.cov.trace() / got.cov[0].trace()) > GROWN
        if got.status == "failed" and not grown:
            failed += 1
        else:
            (unbounded if grown else bounded)[int(spectral_gap_rank(got.final.cov))] += 1
    return Case(name, values, dim, bounded, unbounded, failed)


def draw(cases: list[Case]) -> Figure:
    """One panel per case, ranks on the horizontal axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    dims = sorted({case.dim for case in cases})
    rows = len(cases) // len(dims)
    figure = Figure(figsize=(max(3 * len(dims), 5), 2.3 * rows), layout="constrained")
    figure.suptitle("Rank of the limit, $K = -Q$ of rank $\\lfloor d/2 \\rfloor$")
    for place, case in enumerate(cases, start=1):
        ax = figure.add_subplot(rows, len(dims), place)
        ranks = list(range(1, case.dim + 1))
        below = [case.bounded[rank] for rank in ranks]
        ax.bar(ranks, below, color=BLUE, label="bounded")
        ax.bar(
            ranks,
            [case.unbounded[rank] for rank in ranks],
            bottom=below,
            color=RED,
            label="unbounded: of $S/$trace",
        )
        ax.axvline((case.dim + 1) // 2, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
        ax.set(title=f"{case.attention}, $V$ {case.values}, $d = {case.dim}$", xticks=ranks)
        ax.title.set_fontsize(9)
        if place % len(dims) == 1 or len(dims) == 1:
            ax.set_ylabel("runs")
        if place > len(cases) - len(dims):
            ax.set_xlabel("rank")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return figure
