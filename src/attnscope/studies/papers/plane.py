r"""Figure "convergence to a plane": two heads that write one coordinate each, the second empty:
limits satisfy $(Sq)_1 = 0$, rank 2 allowed [castin25].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attnscope.attention import Attention
from attnscope.studies.papers._covariances import (
    RANK_ONE,
    Array,
    GridConfig,
    GridFigure,
    Path,
    by_draw,
    draw_in_cone,
    earlier,
    first_draw,
    matrix,
    ratio,
    trace,
    two_heads,
)
from attnscope.studies.papers._figure import between, falls
from attnscope.studies.papers.line import direction, row
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

SMALL = 1e-3


@dataclass(frozen=True)
class PlaneConfig(GridConfig):
    end: float = 1e6


class Plane(GridFigure):
    """Two heads, one empty: covariances end on a plane of the cone."""

    name = "plane"
    figure = "convergence to a plane"
    topic = "dynamics"
    seconds = (2, 40)
    Config = PlaneConfig
    fast = PlaneConfig(points=3, draws=4)
    method = "LSODA"  # some directions come to rest long before others

    def attentions(self, config: Any) -> dict[str, Attention]:
        q = torch.cat([row(config.seed), torch.zeros(1, 2, dtype=torch.float64)])
        return {"two heads, one empty": two_heads(q, -q, torch.eye(2, dtype=torch.float64))}

    def figures(self, table: Table) -> dict[str, Any]:
        shown = {name: [row.path for row in rows] for name, rows in first_draw(table).items()}
        return {self.name: draw_in_cone(shown, "Two heads, one empty: to a plane")}

    def verdicts(self, table: Table) -> list[Verdict]:
        if not len(table):
            return []
        rows = table.rows
        ends = [off_the_plane(path.path[-1], direction(path.draw)) for path in rows]
        holds, counted = by_draw(rows, _on_the_plane)
        full = sum(bool(ratio(path.path[-1]) > RANK_ONE) for path in rows)
        return [
            Verdict(
                "limits lie on the plane (Sq)_1 = 0",
                "all do",
                f"{counted}; |(Sq)_1| / tr S {between(ends)}",
                holds,
                f"below {SMALL:g} counts as zero",
            ),
            Verdict(
                "limits may have rank 2",
                "some have",
                f"{full} of {len(rows)} starts",
                full > 0,
                f"rank 2: the eigenvalues are within a factor {1 / RANK_ONE:g}",
            ),
        ]


def _on_the_plane(path: Path) -> bool | None:
    if path.status == "blew up":
        return False
    q = direction(path.draw)
    return falls(off_the_plane(path.path[-1], q), off_the_plane(earlier(path), q), SMALL)


def off_the_plane(entry: Array, q: Array) -> float:
    """|(Sq)_1| / tr S."""
    return float(abs((matrix(entry) @ q)[0]) / trace(entry))
