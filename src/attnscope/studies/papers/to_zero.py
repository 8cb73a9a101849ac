"""Figure "convergence to zero": with K = -Q and positive values every covariance shrinks to 0, for
four attentions [castin25].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attnscope.attention import Attention
from attnscope.studies.papers._covariances import (
    GridConfig,
    GridFigure,
    Path,
    by_draw,
    draw_in_cone,
    earlier,
    first_draw,
    normal,
    panels,
    single,
    trace,
    two_heads,
)
from attnscope.studies.papers._figure import between, drawn, falls
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

SMALL = 1e-2


@dataclass(frozen=True)
class ToZeroConfig(GridConfig):
    end: float = 1e6


class ToZero(GridFigure):
    """Keys that are minus the queries: covariances shrink to zero."""

    name = "to_zero"
    figure = "convergence to zero"
    topic = "dynamics"
    seconds = (8, 200)
    Config = ToZeroConfig
    fast = ToZeroConfig(points=2, draws=6)

    def attentions(self, config: Any) -> dict[str, Attention]:
        """Q uniform, K = -Q, V = R R^T; two heads take one row of each."""
        generator = drawn(config.seed)
        q = torch.rand(2, 2, dtype=torch.float64, generator=generator)
        r = normal(generator, 2, 2)
        v = r @ r.mT
        return {**single(q, -q, v), "two heads": two_heads(q, -q, v)}

    def figures(self, table: Table) -> dict[str, Any]:
        shown = {name: [row.path for row in rows] for name, rows in first_draw(table).items()}
        return {self.name: draw_in_cone(shown, "$K = -Q$, $V = RR^T$: to zero")}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, rows in panels(table).items():
            ends = [float(trace(row.path[-1])) for row in rows]
            holds, counted = by_draw(rows, _to_zero)
            why = f"a trace below {SMALL:g} of its start counts as zero; above, it must still fall"
            made.append(
                Verdict(
                    f"{name}: every covariance goes to 0",
                    "all do",
                    f"{counted}; traces {between(ends)} at t = {table.config.end:g}",
                    holds,
                    why,
                )
            )
        return made


def _to_zero(row: Path) -> bool | None:
    if row.status == "blew up":
        return False
    return falls(float(trace(row.path[-1])), float(trace(earlier(row))), SMALL)
