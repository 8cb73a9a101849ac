"""What a run says, layer by layer: the constant at the longest length, its growth, and the proved
bounds beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnscope.operators.bracket import ROUNDING, narrowest
from attnscope.studies.measure.fit import Fit, growth
from attnscope.studies.measure.rows import BoundRow, MeasureConfig, Row
from attnscope.studies.study import Sheet


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


def summarise(rows: Sequence[Row], fit_from: int = 1) -> list[LayerSummary]:
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
                fit=growth([row.n for row in here], [row.lower for row in here], fit_from),
                released_fit=growth(
                    [n for n, _ in released], [value for _, value in released], fit_from
                ),
                unconverged=sum(not row.converged for row in rows if row.layer == layer),
            )
        )
    return made


def sheets(rows: Sequence[Row], bounds: Sequence[BoundRow], config: MeasureConfig) -> list[Sheet]:
    """The printed table, and one of the released estimator if it was asked for."""
    summaries = summarise(rows, config.fit_from)
    released = any(line.released_fit for line in summaries)
    certified = any(line.width is not None for line in summaries)
    samples = len({row.sequence for row in rows})
    columns = ("layer", "n", "sigma", "exponent in n", "local", "R", "proved bound", "open")
    main = Sheet(
        f"{Path(rows[0].model).name}: local Lipschitz constant of {rows[0].part}, {samples}"
        f" sequence{'s' * (samples > 1)} per length",
        (*columns, *["bracket"] * certified),
        [
            (
                *_entries(line, [bound for bound in bounds if bound.layer == line.layer]),
                *[f"+{line.width:.0e}" if line.width is not None else ""] * certified,
            )
            for line in summaries
        ],
        _note(summaries, config, certified),
    )
    other = Sheet(
        "The quantity of the papers' scripts, sqrt(||J^T f(X)||):",
        ("layer", "exponent in n"),
        [(str(line.layer), _exponent(line.released_fit)) for line in summaries],
    )
    return [main, other] if released else [main]


def _note(lines: Sequence[LayerSummary], config: MeasureConfig, certified: bool) -> str:
    """What the columns are, and which of them are estimates."""
    fits = [line.fit for line in lines if line.fit is not None]
    told = [
        "sigma: a lower bound, median over the sequences,"
        + (" within the bracket of the truth;" if certified else " its accuracy an estimate;"),
        "open: problems that did not converge.",
    ]
    if fits:
        told[1:1] = [
            f"exponent: an estimate over n = {fits[0].shortest:.0f} to {fits[0].longest:.0f} with"
            " its 95 % interval, misfit included; local: over the upper half of these lengths"
            + (" (!: no power law);" if any(fit.bent for fit in fits) else ";")
        ]
    if config.bounds and config.samples > 1 and config.part not in ("mlp", "block"):
        told.insert(1, "proved bound: at the first sequence, and over its sigma;")
    if certified:
        closed = narrowest(ROUNDING[config.dtype])
        told.append("bracket: widest relative gap to the probable upper bound")
        told[-1] += (
            f"; in {config.dtype} it counts as closed at {closed:.0e}, which is"
            f" rounding, and not at the tolerance of {config.tol:g}."
            if closed > config.tol
            else "."
        )
    return " ".join(told)


def tightest(bounds: Sequence[BoundRow]) -> BoundRow | None:
    """The smallest proved upper bound, if there is one."""
    upper = [bound for bound in bounds if bound.side == "upper" and bound.kind == "proved"]
    return min(upper, key=lambda bound: bound.value, default=None)


def _entries(line: LayerSummary, bounds: Sequence[BoundRow]) -> list[str]:
    best = tightest(bounds)
    loose = f" ({best.value / line.first:.1f}x)" if best is not None and line.first > 0 else ""
    return [
        str(line.layer),
        str(line.n),
        f"{line.median:.4g}",
        _exponent(line.fit),
        "" if line.fit is None else f"{line.fit.local:.2f}" + "!" * line.fit.bent,
        f"{line.radius:.3g}",
        "" if best is None else f"{best.value:.3g} {best.name}{loose}",
        str(line.unconverged),
    ]


def _exponent(fit: Fit | None) -> str:
    return "" if fit is None else f"{fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f})"
