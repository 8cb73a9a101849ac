"""What a sweep says: a line for every model, part and text, and the tables of `measure` when there
are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnscope.studies.measure.rows import BoundRow, Row
from attnscope.studies.measure.summary import LayerSummary, summarise, tightest
from attnscope.studies.measure.summary import sheets as layer_sheets
from attnscope.studies.span.rows import SpanRow
from attnscope.studies.study import Sheet
from attnscope.studies.sweep.plan import SweepConfig, pieces

Where = tuple[str, str, str]
"""Model, part and text."""
FEW = 4
"""Pieces whose tables by layers are printed as well."""
COLUMNS = ("model", "part", "text", "layers", "n", "sigma", "largest", "exponent in n", "open")


def by_piece(rows: Sequence[Row]) -> dict[Where, list[Row]]:
    """The rows of each piece, in the order in which they come."""
    found: dict[Where, list[Row]] = {}
    for row in rows:
        found.setdefault((row.model, row.part, row.text), []).append(row)
    return found


def sheets(rows: Sequence[Row], bounds: Sequence[BoundRow], config: SweepConfig) -> list[Sheet]:
    """An overview, and the tables by layers of a few pieces."""
    found = by_piece(rows)
    made = [_overview(found, bounds)] if len(found) > 1 else []
    if len(found) > FEW:
        return made
    configs = {(one.model, one.part, one.text): one for one in pieces(config)}
    for where, held in found.items():
        here = [bound for bound in bounds if (bound.model, bound.part, bound.text) == where]
        title = f" on {Path(where[-1]).name}" if len(config.texts) > 1 else ""
        for sheet in layer_sheets(held, here, configs[where]):
            made.append(sheet._replace(title=sheet.title + title))
    return made


def _overview(found: Mapping[Where, Sequence[Row]], bounds: Sequence[BoundRow]) -> Sheet:
    lines, loosest = [], 0.0
    for (model, part, text), rows in found.items():
        layers = summarise(rows)
        medians = [line.median for line in layers]
        top = layers[int(np.argmax(medians))]
        lines.append(
            (
                *(_short(name) for name in (model, part, text)),
                str(len(layers)),
                str(max(line.n for line in layers)),
                f"{float(np.median(medians)):.4g}",
                f"{top.median:.4g} (layer {top.layer})",
                _exponents(layers),
                str(sum(line.unconverged for line in layers)),
            )
        )
        for line in layers:
            here = [
                bound
                for bound in bounds
                if (bound.model, bound.part, bound.text) == (model, part, text)
                and bound.layer == line.layer
            ]
            best = tightest(here)
            if best is not None and line.first > 0:
                loosest = max(loosest, best.value / line.first)
    told = (
        "sigma: lower bounds at the longest length, median over sequences and then over layers;"
        " largest: of the layers; exponent: an estimate, least to most over the layers; open:"
        " problems that did not converge."
    )
    if loosest:
        told += f" The tightest proved bound of a layer is at most {loosest:.3g} times its sigma."
    return Sheet(f"{len(found)} sweeps", COLUMNS, lines, told)


def _exponents(layers: Sequence[LayerSummary]) -> str:
    found = [line.fit.exponent for line in layers if line.fit is not None]
    return f"{min(found):.2f} to {max(found):.2f}" if found else ""


def _short(name: str) -> str:
    last = Path(name).name or name
    return last if len(last) <= 24 else last[:10] + "..." + last[-11:]


def span_sheet(rows: Sequence[SpanRow]) -> Sheet:
    """A line for every model, text, span and length."""
    found: dict[tuple[str, ...], list[SpanRow]] = {}
    for row in rows:
        found.setdefault((row.model, row.text, row.start, row.stop, str(row.n)), []).append(row)
    lines = [
        (
            *(_short(name) for name in where[:2]),
            f"{where[2]} to {where[3]}",
            where[4],
            f"{float(np.median([row.lower for row in held])):.4g}",
            str(sum(not row.converged for row in held)),
        )
        for where, held in found.items()
    ]
    note = "sigma: lower bounds of the constant of the whole span, median over sequences."
    return Sheet("Spans", ("model", "text", "span", "n", "sigma", "open"), lines, note)


def remarks(rows: Sequence[Row | SpanRow]) -> list[str]:
    """What did not converge."""
    left = sum(not row.converged for row in rows)
    return [f"{left} problems did not converge to the tolerance."] if left else []
