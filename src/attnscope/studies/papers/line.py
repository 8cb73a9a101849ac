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
    draw_in_cone,
    earlier,
    matrix,
    normal,
    panels,
    single,
    trace,
)
from attnscope.studies.papers._figure import between, drawn, every, falls
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

SMALL = 1e-3


@dataclass(frozen=True)
class LineConfig(GridConfig):
    end: float = 1e6


class Line(GridFigure):
    name = "line"
    figure = "convergence to a line"
    Config = LineConfig
    fast = LineConfig(points=4)

    def attentions(self, config: Any) -> dict[str, Attention]:
        q, made = row(config.seed), torch.eye(2, dtype=torch.float64)
        return {name: one for name, one in single(q, -q, made).items() if name != "Sinkhorn"}

    def figures(self, table: Table) -> dict[str, Any]:
        shown = {name: [row.path for row in rows] for name, rows in panels(table).items()}
        return {self.name: draw_in_cone(shown, "$K = -Q$ of rank one, $V = I$: to a line")}

    def verdicts(self, table: Table) -> list[Verdict]:
        q = row(table.config.seed).numpy()[0]
        made = []
        for name, rows in panels(table).items():
            ends = [off_the_ray(path.path[-1], q) for path in rows]
            before = [off_the_ray(earlier(path), q) for path in rows]
            holds = every(
                False if path.status == "blew up" else falls(end, was, SMALL)
                for path, end, was in zip(rows, ends, before, strict=True)
            )
            made.append(
                Verdict(
                    f"{name}: limits lie on the ray of pp^T, p orthogonal to q",
                    "all do",
                    f"|Sq| / tr S {between(ends)}, {len(rows)} starts",
                    holds,
                    f"Sq = 0 on the ray alone; below {SMALL:g} counts as zero",
                )
            )
        return made


def off_the_ray(entry: Array, q: Array) -> float:
    """|Sq| / tr S."""
    return float(np.linalg.norm(matrix(entry) @ q) / trace(entry))


def row(seed: int) -> Float[Tensor, "1 2"]:
    """A random unit row."""
    q = normal(drawn(seed), 1, 2)
    return q / torch.linalg.vector_norm(q)
