r"""The largest constant $L(n, R)$ in a ball against the radius, between all proved bounds
[castin24].

U1 and its kin grow like $R^2$, M1 and M1' like an exponential of $R^2$: which is smaller changes
with R.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attnscope.bounds import constructions
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import new_figure
from attnscope.studies.papers._ball import FOUND, Level, draw_levels, head, levels
from attnscope.studies.papers._figure import PaperFigure
from attnscope.studies.papers.lipschitz_against_length import sound
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

ROUNDING = 1e-9


@dataclass(frozen=True)
class RadiusConfig:
    n: int = 32
    radii: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
    starts: int = 16
    steps: int = 150
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RadiiCell(Cell):
    """All radii at one length."""

    causal: bool
    n: int
    radii: tuple[float, ...]
    starts: int
    steps: int
    seed: int


class LipschitzAgainstRadius(PaperFigure):
    """The largest constant in a ball against its radius, between all proved bounds."""

    name = "lipschitz_against_radius"
    paper = "castin24"
    figure = "largest constant against the radius"
    topic = "smoothness"
    seconds = (6, 120)
    Config = RadiusConfig
    fast = RadiusConfig(n=16, radii=(0.25, 0.5, 1.0, 2.0, 4.0), starts=6, steps=40)
    tables: ClassVar[dict[str, type]] = {"results": Level}

    def cells(self, config: RadiusConfig, workbench: Workbench) -> Iterable[RadiiCell]:
        for causal in (False, True):
            yield RadiiCell(
                causal=causal,
                n=config.n,
                radii=config.radii,
                starts=config.starts,
                steps=config.steps,
                seed=config.seed,
            )

    def run(self, cell: RadiiCell, workbench: Workbench) -> list[Level]:
        attention = head(cell.causal)
        made = levels(
            attention, (cell.n,), cell.radii, cell.starts, cell.steps, cell.seed, workbench
        )
        if not cell.causal:  # two Diracs with free masses: no bound on n tokens
            for radius in cell.radii:
                bound = constructions.unbalanced(attention, radius).bound
                made.append(Level(False, 0, radius, bound.name, bound.side, bound.value))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        kinds = list(dict.fromkeys(row.causal for row in table))
        figure = new_figure(4.6 * len(kinds) + 0.4, 4)
        figure.suptitle(f"The largest constant found for n = {table.config.n}")
        for place, causal in enumerate(kinds, start=1):
            ax = figure.add_subplot(1, len(kinds), place)
            draw_levels(ax, [row for row in table if row.causal is causal], "radius")
            ax.set(yscale="log", xlabel="radius $R$", ylabel="$L(n, R)$")
            ax.set_title("causal" if causal else "unmasked")
            top = max(row.value for row in table if row.name == FOUND)
            ax.set_ylim(0.5, 1e3 * top)
            ax.legend(ncols=2)
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        if not len(table):
            return []
        made = [sound(_table(table))]
        plain = [row for row in table if not row.causal and row.name in ("U1'", "M1'")]
        best = {}
        for radius in sorted({row.radius for row in plain}):
            here = {row.name: row.value for row in plain if row.radius == radius}
            if len(here) == 2:
                best[radius] = min(here, key=lambda name: here[name])
        if best:
            order = list(best.values())
            made.append(
                Verdict(
                    "M1' is the tighter bound for small radii, U1' for large ones",
                    "mean-field and root-of-n regimes",
                    ", ".join(f"{name} at R = {radius:g}" for radius, name in best.items()),
                    order[0] == "M1'" and order[-1] == "U1'" and order == sorted(order),
                    "the smaller of the two changes once, from M1' to U1'",
                )
            )
        rows = sorted((r.radius, r.value) for r in table if r.name == FOUND and not r.causal)
        steps = np.diff([value for _, value in rows])
        if len(steps):
            made.append(
                Verdict(
                    "the largest constant found never falls with the radius",
                    "larger balls hold smaller ones",
                    f"smallest step {steps.min():+.2e}",
                    bool((steps >= -ROUNDING).all()),
                    "each search also begins at what was found before",
                )
            )
        return made


def _table(table: Table) -> Table:
    """Without the measures of any masses, which the bounds on n tokens do not cover."""
    return Table(table.study, table.config, {"results": [row for row in table if row.n]})
