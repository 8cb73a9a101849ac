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
    draw_in_cone,
    earlier,
    normal,
    panels,
    single,
    trace,
    two_heads,
)
from attnscope.studies.papers._figure import between, drawn, every, falls
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

SMALL = 1e-2


@dataclass(frozen=True)
class ToZeroConfig(GridConfig):
    end: float = 1e4


class ToZero(GridFigure):
    name = "to_zero"
    figure = "convergence to zero"
    Config = ToZeroConfig
    fast = ToZeroConfig(points=4)

    def attentions(self, config: Any) -> dict[str, Attention]:
        """Q uniform, K = -Q, V = R R^T; two heads take one row of each."""
        generator = drawn(config.seed)
        q = torch.rand(2, 2, dtype=torch.float64, generator=generator)
        r = normal(generator, 2, 2)
        v = r @ r.mT
        return {**single(q, -q, v), "two heads": two_heads(q, -q, v)}

    def figures(self, table: Table) -> dict[str, Any]:
        shown = {name: [row.path for row in rows] for name, rows in panels(table).items()}
        return {self.name: draw_in_cone(shown, "$K = -Q$, $V = RR^T$: to zero")}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, rows in panels(table).items():
            ends = [float(trace(row.path[-1])) for row in rows]
            before = [float(trace(earlier(row))) for row in rows]
            holds = every(
                False if row.status == "blew up" else falls(end, was, SMALL)
                for row, end, was in zip(rows, ends, before, strict=True)
            )
            why = f"a trace below {SMALL:g} of its start counts as zero; above, it must still fall"
            made.append(
                Verdict(
                    f"{name}: every covariance goes to 0",
                    "all do",
                    f"traces {between(ends)} at t = {table.config.end:g}, {len(rows)} starts",
                    holds,
                    why,
                )
            )
        return made
