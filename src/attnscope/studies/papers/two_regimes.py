r"""The two regimes of $L(n, R)$: it grows like $\sqrt n$ up to $n \approx e^{2\gamma R^2}$, then
stops, as the bounds of the mean field do not depend on n.

At two clusters of r and n - r tokens the local constant is that of two atoms of masses r/n and
1 - r/n in $L^2(\mu)$, for any n: the largest over r is a lower bound of $L(n, R)$.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.bounds import constructions, on_ball
from attnscope.measures import Particles
from attnscope.operators import jacobian
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure
from attnscope.studies.measure.fit import growth
from attnscope.studies.papers._ball import head
from attnscope.studies.papers._figure import PaperFigure
from attnscope.studies.papers._texts import within
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

CLOSE = 0.05
FLAT = 0.02
LATE = 30.0
"""n is late above this many times e^(2 gamma R^2), early below this part of it."""


class Regime(NamedTuple):
    """Two clusters of n tokens: one of them rare as in U2, or the best number of them; and the
    tightest upper bound.
    """

    radius: float
    n: int
    single: float
    rare: int
    value: float
    upper: float


@dataclass(frozen=True)
class RegimesConfig:
    radii: tuple[float, ...] = (1.0, 2.0, 3.0)
    longest: int = 10**10
    per_decade: int = 4


@dataclass(frozen=True, kw_only=True)
class RegimeCell(Cell):
    radius: float
    longest: int
    per_decade: int


class TwoRegimes(PaperFigure):
    """The largest constant grows like the root of n, then not at all."""

    name = "two_regimes"
    paper = "ablin24"
    figure = "the two regimes of L(n, R)"
    topic = "talk"
    seconds = (6, 8)
    Config = RegimesConfig
    fast = RegimesConfig(per_decade=3)
    tables: ClassVar[dict[str, type]] = {"results": Regime}

    def cells(self, config: RegimesConfig, workbench: Workbench) -> Iterable[RegimeCell]:
        for radius in config.radii:
            yield RegimeCell(radius=radius, longest=config.longest, per_decade=config.per_decade)

    def run(self, cell: RegimeCell, workbench: Workbench) -> list[Regime]:
        attention = head(causal=False)
        tokens = constructions.opposite(attention, 2, cell.radius).mu.x
        made = []
        lengths = _geometric(2, cell.longest, cell.per_decade)
        for place, n in enumerate(lengths):
            workbench.check(place / len(lengths), f"R = {cell.radius:g}, n = {n}")
            tried = _geometric(1, max(n // 2, 1), 2 * cell.per_decade)
            values = [_two_atoms(attention, tokens, rare / n) for rare in tried]
            best = int(np.argmax(values))
            upper = on_ball(attention, n, cell.radius).tightest.value
            made.append(Regime(cell.radius, n, values[0], tried[best], values[best], upper))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(6, 4.4)
        ax = figure.add_subplot()
        for colour, radius in zip(
            COLOURS, dict.fromkeys(row.radius for row in table), strict=False
        ):
            rows = [row for row in table if row.radius == radius]
            ns = [row.n for row in rows]
            ax.plot(ns, [row.value for row in rows], "o-", color=colour, markersize=3)
            ax.plot(ns, [row.single for row in rows], "-.", color=colour, linewidth=1)
            ax.plot(ns, [row.upper for row in rows], "--", color=colour)
            ax.axvline(_change(radius), color=colour, linestyle=":", linewidth=1)
            ax.plot([], [], color=colour, label=f"$R = {radius:g}$")
        ax.plot([], [], "ko-", markersize=3, label="best two clusters")
        ax.plot([], [], "k-.", label="one rare token")
        ax.plot([], [], "k--", label="tightest proved bound")
        ax.plot([], [], "k:", label=r"$n = e^{2\gamma R^2}$")
        ax.set(xscale="log", yscale="log", xlabel="tokens $n$", ylabel="$L(n, R)$")
        ax.set_title("Two clusters: the root of n, then a plateau")
        ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for radius in dict.fromkeys(row.radius for row in table):
            rows = [row for row in table if row.radius == radius]
            above = max(row.value / row.upper for row in rows)
            made.append(
                Verdict(
                    f"R = {radius:g}: no two clusters break a bound",
                    "theorems",
                    f"largest constant over the tightest bound {above:.3f}",
                    above <= 1,
                    "the smallest proved bound on the ball at each n",
                )
            )
            change = _change(radius)
            for late in (False, True):
                some = [
                    row
                    for row in rows
                    if (row.n > LATE * change if late else row.n < change / LATE)
                ]
                # one rare token among n is the root of n - 1
                fit = (
                    growth([row.n for row in some], [row.value for row in some])
                    if late
                    else growth([row.n - 1 for row in some], [row.single for row in some])
                )
                if fit is None:
                    continue
                aim, reach = (0.0, FLAT) if late else (0.5, CLOSE)
                made.append(
                    Verdict(
                        f"R = {radius:g}: {'a plateau' if late else 'the root of n - 1'} for n"
                        f" {'above' if late else 'below'} {some[0 if late else -1].n}",
                        "the mean field" if late else "U2, tight up to constants",
                        f"exponent {fit.exponent:.3f} ({fit.low:.3f}, {fit.high:.3f})",
                        within(fit.low, fit.high, aim, reach),
                        f"the 95 % interval of the exponent reaches {aim:g} up to {reach:g}",
                    )
                )
        return made


def _change(radius: float) -> float:
    """Where the regimes meet: gamma of the head is 1."""
    return math.exp(2 * radius**2)


def _two_atoms(attention: Any, tokens: torch.Tensor, share: float) -> float:
    weights = torch.tensor([share, 1 - share], dtype=torch.float64)
    dense = jacobian(attention, Particles(tokens, weights)).to_dense()
    roots = weights.sqrt().repeat_interleave(tokens.shape[-1])  # the metric of L2(mu)
    return float(torch.linalg.matrix_norm(roots[:, None] * dense / roots, 2))


def _geometric(first: int, last: int, per_decade: int) -> list[int]:
    """Whole numbers from the first to the last, so many in each factor of ten."""
    count = max(2, round(per_decade * math.log10(max(last / first, 1))) + 1)
    return sorted({round(value) for value in np.geomspace(first, last, count)})
