"""What a run says, layer by layer: the constant at the longest length, its growth, and the proved
bounds beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attnscope.bounds import Bounds, smoothness, through_norm
from attnscope.data.texts import windows
from attnscope.measure.fit import Fit, growth
from attnscope.measure.sweep import Plan, Row
from attnscope.measures import Particles


@dataclass(frozen=True)
class LayerSummary:
    """One line of the table: over the sequences of the longest length measured, and the fits over
    all lengths.
    """

    layer: int
    n: int
    median: float
    least: float
    most: float
    first: float
    """The constant at the first sequence, where the bounds are evaluated."""
    width: float | None
    """The widest relative gap between lower and upper bound, when upper bounds were asked for."""
    radius: float
    fit: Fit | None
    released_fit: Fit | None
    unconverged: int


def summarise(rows: Sequence[Row]) -> list[LayerSummary]:
    """A summary of each layer, from the rows of the whole layer."""
    made = []
    for layer in sorted({row.layer for row in rows}):
        here = [row for row in rows if row.layer == layer and row.head is None]
        longest = max(row.n for row in here)
        last = [row.lower for row in here if row.n == longest]
        gaps = [
            row.upper / row.lower - 1 for row in here if row.upper is not None and row.lower > 0
        ]
        released = [
            (row.n, row.released_estimator) for row in here if row.released_estimator is not None
        ]
        made.append(
            LayerSummary(
                layer=layer,
                n=longest,
                median=float(np.median(last)),
                least=min(last),
                most=max(last),
                first=last[0],
                width=max(gaps) if gaps else None,
                radius=float(np.median([row.radius for row in here if row.n == longest])),
                fit=growth([row.n for row in here], [row.lower for row in here]),
                released_fit=growth([n for n, _ in released], [value for _, value in released]),
                unconverged=sum(not row.converged for row in rows if row.layer == layer),
            )
        )
    return made


def proved_bounds(plan: Plan) -> Iterator[tuple[int, Bounds]]:
    """Every proved bound on the measured part of each layer, at the first sequence of the longest
    length.

    Nothing for whole blocks and for networks whose heads could not be rebuilt: no theorem covers
    them.
    """
    if plan.part == "block" or not plan.model.rebuilt:
        return
    ids = windows(plan.ids, max(plan.lengths), plan.samples)[:1]
    for layer, x, read in plan.model.points(ids, plan.layers):
        found = smoothness(plan.model.attention(layer), Particles(read[0]))
        yield layer, found if plan.part == "attention" else _through_norm(plan, layer, x[0], found)


def _through_norm(plan: Plan, layer: int, x: Tensor, found: Bounds) -> Bounds:
    """Bounds on the attention turned into bounds on a part with residual and norm."""
    model, residual = plan.model, plan.part == "residual"
    norm = model.norm(layer)
    if model.pre_norm:
        return through_norm(found, norm, x, norm_first=True, residual=residual)
    moved = x + model.attention(layer)(x, Particles(x))
    return through_norm(found, None if residual else norm, moved, norm_first=False, residual=True)
