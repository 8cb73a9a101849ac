r"""The largest constant $L(n, R)$ in a ball against the number of tokens, between proved bounds: it
grows like $\sqrt n$ while $n \ll e^{2\gamma R^2}$ [castin24].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnscope.studies.cell import Cell
from attnscope.studies.drawing import new_figure
from attnscope.studies.measure.fit import growth
from attnscope.studies.papers._ball import FOUND, Level, broken, draw_levels, head, levels
from attnscope.studies.papers._figure import PaperFigure
from attnscope.studies.papers._texts import plain_ticks, within
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

CLOSE = 0.05


@dataclass(frozen=True)
class LengthConfig:
    lengths: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128)
    radii: tuple[float, ...] = (0.5, 1.0, 2.0)
    starts: int = 16
    steps: int = 150
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class LadderCell(Cell):
    """All lengths at one radius."""

    causal: bool
    radius: float
    lengths: tuple[int, ...]
    starts: int
    steps: int
    seed: int


class LipschitzAgainstLength(PaperFigure):
    """The largest constant in a ball against the number of tokens, between all proved bounds."""

    name = "lipschitz_against_length"
    paper = "castin24"
    figure = "largest constant against the number of tokens"
    topic = "smoothness"
    seconds = (12, 300)
    Config = LengthConfig
    fast = LengthConfig(lengths=(2, 4, 8, 16, 32), radii=(0.5, 2.0), starts=6, steps=40)
    tables: ClassVar[dict[str, type]] = {"results": Level}

    def cells(self, config: LengthConfig, workbench: Workbench) -> Iterable[LadderCell]:
        for causal in (False, True):
            for radius in config.radii:
                yield LadderCell(
                    causal=causal,
                    radius=radius,
                    lengths=config.lengths,
                    starts=config.starts,
                    steps=config.steps,
                    seed=config.seed,
                )

    def run(self, cell: LadderCell, workbench: Workbench) -> list[Level]:
        return levels(
            head(cell.causal),
            cell.lengths,
            (cell.radius,),
            cell.starts,
            cell.steps,
            cell.seed,
            workbench,
        )

    def figures(self, table: Table) -> dict[str, Any]:
        places = list(dict.fromkeys((row.causal, row.radius) for row in table))
        columns = len({radius for _, radius in places})
        lines = len({causal for causal, _ in places})
        figure = new_figure(4 * columns + 0.6, 3.4 * lines + 0.3)
        figure.suptitle("The largest constant found in a ball, between proved bounds")
        for place, (causal, radius) in enumerate(places, start=1):
            ax = figure.add_subplot(lines, columns, place)
            some = [row for row in table if (row.causal, row.radius) == (causal, radius)]
            draw_levels(ax, some, "n")
            name = "causal" if causal else "unmasked"
            ax.set(xscale="log", yscale="log", title=f"{name}, $R = {radius:g}$")
            ax.set(xlabel="tokens $n$", ylabel="$L(n, R)$")
            plain_ticks(ax)
            ax.legend(ncols=2)
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        if not len(table):
            return []
        made = [sound(table)]
        largest = max(row.radius for row in table)
        for causal in dict.fromkeys(row.causal for row in table):
            for name in (FOUND, "K2" if causal else "U2"):
                rows = [
                    row
                    for row in table
                    if row.name == name and row.radius == largest and row.causal is causal
                ]
                what = "the largest constant found" if name == FOUND else f"the lower bound {name}"
                made += _rate(f"{'causal' if causal else 'unmasked'}: {what}", rows)
        return made


def _rate(what: str, rows: list[Level]) -> list[Verdict]:
    """Whether it grows like the root of n - 1."""
    some = [row for row in rows if row.n > 1]
    fit = growth([row.n - 1 for row in some], [row.value for row in some])
    if fit is None:
        return []
    return [
        Verdict(
            f"{what} grows like the root of n - 1 for R = {rows[0].radius:g}",
            "the rate of U1 is attained, up to a factor, while n is below e^(2 gamma R^2)",
            f"exponent {fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f})",
            within(fit.low, fit.high, 0.5, CLOSE),
            f"the 95 % interval of the exponent reaches 1/2 up to {CLOSE:g}; few tokens have large"
            " constants already, so that what is found grows more slowly over short ranges",
        )
    ]


def sound(table: Table) -> Verdict:
    """No input found is above an upper bound."""
    wrong = broken(table.rows)
    uppers = [row for row in table if row.side == "upper"]
    which = f": {', '.join(wrong[:3])}" if wrong else ""
    return Verdict(
        "no input found breaks an upper bound",
        "theorems",
        f"{len(uppers)} bounds checked, {len(wrong)} broken{which}",
        not wrong if uppers else None,
        "the largest constant found, and every lower bound, is below every upper bound",
    )
