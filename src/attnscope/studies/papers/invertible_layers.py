r"""Invertible residual layers $y = x + f(x)$, f a proved contraction: tokens are found again by
iteration, the faster the smaller the contraction [behrmann19].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure
from attnscope.studies.invert import Invert, InvertConfig, Trip
from attnscope.studies.papers._figure import PaperFigure, between
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

EXACT = 1e-8


class Back(NamedTuple):
    """The distance to the input after so many iterations per layer, its proved bound, and what
    floating point may add.
    """

    contraction: float
    iterations: int
    error: float
    bound: float
    rounding: float


@dataclass(frozen=True)
class BackConfig:
    contractions: tuple[float, ...] = (0.5, 0.7, 0.9)
    layers: int = 24
    tokens: int = 16
    dim: int = 8
    seed: int = 0


class InvertibleLayers(PaperFigure):
    """Residual attention that can be undone: the error of the inverse beside its proved bound."""

    name = "invertible_layers"
    paper = "behrmann19"
    figure = "invertible residual layers"
    topic = "talk"
    seconds = (2, 30)
    Config = BackConfig
    fast = BackConfig(contractions=(0.5, 0.9), layers=6, tokens=8, dim=4)
    tables: ClassVar[dict[str, type]] = {"results": Back}

    def cells(self, config: BackConfig, workbench: Workbench) -> Iterable[Cell]:
        for contraction in config.contractions:
            asked = InvertConfig(
                contraction=contraction,
                layers=config.layers,
                tokens=config.tokens,
                dim=config.dim,
                seed=config.seed,
            )
            yield from Invert().cells(asked, workbench)

    def run(self, cell: Any, workbench: Workbench) -> list[Back]:
        return [
            Back(cell.contraction, row.iterations, row.error, row.bound, row.rounding)
            for row in Invert().run(replace(cell), workbench)
            if isinstance(row, Trip)
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(5.8, 4.2)
        ax = figure.add_subplot()
        for colour, (contraction, rows) in zip(COLOURS, _groups(table).items(), strict=False):
            counts = [row.iterations for row in rows]
            label = f"contraction {contraction:g}"
            ax.plot(counts, [row.error for row in rows], color=colour, label=label)
            ax.plot(counts, [row.bound for row in rows], "--", color=colour, linewidth=1)
        ax.plot([], [], "k--", label="proved bound")
        ax.set(yscale="log", xlabel="iterations per layer", ylabel="distance to the input")
        ax.set_title(f"The inverse of {table.config.layers} layers")
        ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for contraction, rows in _groups(table).items():
            beyond = [row.error - row.bound - row.rounding for row in rows]
            made.append(
                Verdict(
                    f"contraction {contraction:g}: the error stays below its proved bound",
                    "a theorem",
                    f"error over bound and rounding {between(_shares(rows), '.2g')}",
                    max(beyond) <= 0,
                    f"every number of iterations up to {rows[-1].iterations}",
                )
            )
            made.append(
                Verdict(
                    f"contraction {contraction:g}: the tokens are found again",
                    "the layers are invertible",
                    f"error {rows[-1].error:.1e} after {rows[-1].iterations} iterations per layer",
                    rows[-1].error <= EXACT,
                    f"below {EXACT:g} counts as found",
                )
            )
        return made


def _groups(table: Table) -> dict[float, list[Back]]:
    found: dict[float, list[Back]] = {}
    for row in table:
        found.setdefault(row.contraction, []).append(row)
    return found


def _shares(rows: list[Back]) -> list[float]:
    return [row.error / max(row.bound + row.rounding, 1e-300) for row in rows]
