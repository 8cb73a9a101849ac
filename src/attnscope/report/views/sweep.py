"""The page of `sweep`: many models side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnscope.report.content import Block, Number, Opening, Standing
from attnscope.report.heatmap import Cell, heat_map
from attnscope.report.markup import number
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.measure import Row
from attnscope.studies.sweep import Sweep


class SweepView(View):
    kind = Sweep

    def opening(self, table: Table) -> Opening:
        config = table.config
        names = ", ".join(Path(model).name for model in config.models[:4])
        more = f" and {len(config.models) - 4} more" if len(config.models) > 4 else ""
        words = [
            f"How sensitive are the layers of {names}{more}, on {len(config.texts)} text"
            f"{'s' * (len(config.texts) > 1)}, at {len(config.lengths)} length"
            f"{'s' * (len(config.lengths) > 1)}?",
        ]
        numbers = [Number("measurements", str(len(table)), Standing.COUNTED)]
        rows = _whole(table)
        if rows:
            worst = max(rows, key=lambda row: row.lower)
            end = "." if worst.upper is None else f", at most {number(worst.upper)}."
            numbers.append(
                Number(
                    "largest σ of all",
                    number(worst.lower),
                    Standing.ESTIMATE if worst.upper is None else Standing.PROBABLE,
                    f"{Path(worst.model).name}, {worst.part} of layer {worst.layer}, {worst.n}"
                    f" tokens; a lower bound{end}",
                )
            )
        return Opening("Many models side by side", words, numbers)

    def blocks(self, table: Table) -> list[Block]:
        rows = _whole(table)
        parts = dict.fromkeys(row.part for row in rows)
        return [_map([row for row in rows if row.part == part], part) for part in parts]


def _whole(table: Table) -> list[Row]:
    return [row for row in table if row.head is None and math.isfinite(row.lower)]


def _map(rows: Sequence[Row], part: str) -> Block:
    """Models by layers, at the longest length that a model has."""
    models = list(dict.fromkeys(row.model for row in rows))
    layers = sorted({row.layer for row in rows})
    cells = {}
    for i, model in enumerate(models):
        longest = max(row.n for row in rows if row.model == model)
        for j, layer in enumerate(layers):
            place = (model, layer, longest)
            found = [row.lower for row in rows if (row.model, row.layer, row.n) == place]
            if found:
                median = float(np.median(found))
                told = (
                    f"{Path(model).name}, layer {layer}, {longest} tokens: σ = {number(median)}"
                    f"\nmedian of {len(found)}, {number(min(found))} to {number(max(found))}"
                )
                cells[i, j] = Cell(median, told)
    key = "; ".join(f"{i}: {Path(model).name}" for i, model in enumerate(models))
    body = heat_map(cells, range(len(models)), layers, "model", "layer", f"σ of {part}")
    note = f"{key}. σ at each model's longest length, median over texts and sequences."
    return Block(f"{part}: models by layers", body, note)
