r"""Figure "convergence to a line": with Q one unit row q and K = -q, V = I, covariances end on the
ray of $p p^T$, p orthogonal to q [castin25].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.studies.papers._covariances import (
    Array,
    GridConfig,
    GridFigure,
    Path,
    by_draw,
    draw_in_cone,
    earlier,
    first_draw,
    matrix,
    normal,
    panels,
    single,
    trace,
)
from attnscope.studies.papers._figure import between, drawn, falls
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

SMALL = 1e-3


@dataclass(frozen=True)
class LineConfig(GridConfig):
    end: float = 1e6


class Line(GridFigure):
    """Scores of rank one: covariances end on a line of the cone."""

    name = "line"
    figure = "convergence to a line"
    topic = "dynamics"
    seconds = (2, 40)
    Config = LineConfig
    fast = LineConfig(points=3, draws=4)

    def attentions(self, config: Any) -> dict[str, Attention]:
        q, made = row(config.seed), torch.eye(2, dtype=torch.float64)
        return {name: one for name, one in single(q, -q, made).items() if name != "Sinkhorn"}

    def figures(self, table: Table) -> dict[str, Any]:
        shown = {name: [row.path for row in rows] for name, rows in first_draw(table).items()}
        return {self.name: draw_in_cone(shown, "$K = -Q$ of rank one, $V = I$: to a line")}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, rows in panels(table).items():
            ends = [off_the_ray(path.path[-1], direction(path.draw)) for path in rows]
            holds, counted = by_draw(rows, _on_the_ray)
            made.append(
                Verdict(
                    f"{name}: limits lie on the ray of pp^T, p orthogonal to q",
                    "all do",
                    f"{counted}; |Sq| / tr S {between(ends)}",
                    holds,
                    f"Sq = 0 on the ray alone; below {SMALL:g} counts as zero",
                )
            )
        return made


def _on_the_ray(path: Path) -> bool | None:
    if path.status == "blew up":
        return False
    q = direction(path.draw)
    return falls(off_the_ray(path.path[-1], q), off_the_ray(earlier(path), q), SMALL)


def direction(draw: int) -> Array:
    """q of this draw."""
    return row(draw).numpy()[0]


def off_the_ray(entry: Array, q: Array) -> float:
    """|Sq| / tr S."""
    return float(np.linalg.norm(matrix(entry) @ q) / trace(entry))


def row(seed: int) -> Float[Tensor, "1 2"]:
    """A random unit row."""
    q = normal(drawn(seed), 1, 2)
    return q / torch.linalg.vector_norm(q)
