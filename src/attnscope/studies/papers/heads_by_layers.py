r"""The local constant of every head of every layer at one length, and of the layers they make: at
most the sum over the heads [castin24].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attnscope.studies.cell import Cell
from attnscope.studies.drawing import new_figure, safe
from attnscope.studies.measure import Measure, MeasureConfig
from attnscope.studies.measure.rows import Row
from attnscope.studies.papers._figure import PaperFigure, between
from attnscope.studies.papers._texts import left_out, measured, present, quiet
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

TOLERANCE = 1e-3


@dataclass(frozen=True)
class HeadsConfig:
    models: tuple[str, ...] = ("bert-base-uncased", "gpt2", "gpt2-random")
    decoder: str | None = "bert-base-uncased"
    n: int = 98
    samples: int = 10
    text: str = "alice"


class HeadsByLayers(PaperFigure):
    """The local constant of every head of every layer, and of the layers they make."""

    name = "heads_by_layers"
    paper = "castin24"
    figure = "heads by layers"
    topic = "smoothness"
    seconds = (4, 400)
    Config = HeadsConfig
    fast = HeadsConfig(models=("minilm",), decoder=None, n=32, samples=1)
    tables: ClassVar[dict[str, type]] = {"results": Row}

    def cells(self, config: HeadsConfig, workbench: Workbench) -> Iterable[Cell]:
        for model in present(config.models, config.decoder, workbench):
            asked = MeasureConfig(
                model=model.name,
                text=config.text,
                lengths=(config.n,),
                samples=config.samples,
                tol=TOLERANCE,
                failure_probability=None,
                bounds=False,
            )
            with quiet():
                yield from list(Measure().cells(asked, workbench))

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        return measured(cell, workbench)

    def figures(self, table: Table) -> dict[str, Any]:
        models = list(dict.fromkeys(row.model for row in table))
        figure = new_figure(4.6 * len(models) + 0.4, 4)
        figure.suptitle(f"Local constant of each head, n = {table.config.n}")
        for place, name in enumerate(models, start=1):
            grid = _grid([row for row in table if row.model == name])
            ax = figure.add_subplot(1, len(models), place)
            image = ax.imshow(np.log10(grid), aspect="auto", origin="lower")
            figure.colorbar(image, ax=ax, label=r"$\log_{10}\sigma_{max}$")
            ax.set(title=safe(name), xlabel="head", ylabel="layer")
            ax.grid(False)
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.model for row in table):
            rows = [row for row in table if row.model == name]
            shares = _shares(rows)
            if not shares:
                continue
            made.append(
                Verdict(
                    f"{name}: a layer stretches at most as much as the sum of its heads",
                    "a theorem",
                    f"sigma of the layer over the sum {between(shares, '.2f')}",
                    max(shares) <= 1 + 2 * TOLERANCE,
                    f"{len(shares)} layers and sequences; sigma is known to {TOLERANCE:g}",
                )
            )
        return made

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)


def _grid(rows: list[Row]) -> np.ndarray:
    """Medians over the sequences, (layers, heads)."""
    single: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if row.head is not None:
            single.setdefault((row.layer, row.head), []).append(row.lower)
    shape = [1 + max((place[axis] for place in single), default=0) for axis in (0, 1)]
    grid = np.full(shape, np.nan)
    for place, values in single.items():
        grid[place] = np.median(values)
    return grid


def _shares(rows: list[Row]) -> list[float]:
    """Sigma of each layer over the sum of its heads, sequence by sequence."""
    sums: dict[tuple[int, int], float] = {}
    for row in rows:
        if row.head is not None:
            place = row.layer, row.sequence
            sums[place] = sums.get(place, 0.0) + row.lower
    return [
        row.lower / sums[row.layer, row.sequence]
        for row in rows
        if row.head is None and (row.layer, row.sequence) in sums
    ]
