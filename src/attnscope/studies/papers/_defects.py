"""What the figures of exact identities share: one defect per case, zero up to rounding where the
identity holds, and far from zero where it must not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, RED, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, between, drawn
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

ROUNDING = 1e-10
LARGE = 1e-3
LEAST = 1e-18


class Defect(NamedTuple):
    """How far one case is from the identity, relative to the size of the output."""

    case: str
    repeat: int
    value: float


@dataclass(frozen=True)
class DefectConfig:
    n: int = 16
    dim: int = 8
    repeats: int = 20
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DefectCell(DefectConfig, Cell):
    case: str


class DefectFigure(PaperFigure):
    """A figure of one identity in many cases."""

    paper = "ablin24"
    topic = "talk"
    seconds = (3, 10)
    Config = DefectConfig
    fast = DefectConfig(n=8, dim=4, repeats=4)
    tables: ClassVar[dict[str, type]] = {"results": Defect}
    identity: ClassVar[str]
    """What holds, in a few words."""

    @abstractmethod
    def cases(self) -> Mapping[str, bool]:
        """The names of the cases, and whether the identity holds in them."""

    @abstractmethod
    def defect(self, case: str, x: Tensor, generator: torch.Generator) -> float:
        """How far tokens x (n, d) are from the identity."""

    def cells(self, config: Any, workbench: Workbench) -> Iterable[DefectCell]:
        for name in ("n", "dim", "repeats"):
            check_positive(name, getattr(config, name))
        for case in self.cases():
            yield DefectCell(
                n=config.n, dim=config.dim, repeats=config.repeats, seed=config.seed, case=case
            )

    def run(self, cell: DefectCell, workbench: Workbench) -> list[Defect]:
        made = []
        for repeat in range(cell.repeats):
            generator = drawn(cell.seed, cell.case, repeat)
            x = normal(generator, cell.n, cell.dim)
            made.append(Defect(cell.case, repeat, self.defect(cell.case, x, generator)))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        names = list(dict.fromkeys(row.case for row in table))
        figure = new_figure(6.4, 1.2 + 0.28 * len(names))
        ax = figure.add_subplot()
        for place, name in enumerate(names):
            values = [max(row.value, LEAST) for row in table if row.case == name]
            colour = BLUE if self.cases()[name] else RED
            ax.scatter(values, [place] * len(values), s=14, color=colour)
        ax.axvline(ROUNDING, color="black", linestyle=":", linewidth=1)
        ax.set(xscale="log", xlabel="relative defect; left of the line is rounding")
        ax.set_yticks(range(len(names)), names)
        ax.set_title(self.figure)
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.case for row in table):
            values = [row.value for row in table if row.case == name]
            exact = self.cases()[name]
            made.append(
                Verdict(
                    f"{name}: {self.identity}{'' if exact else ' fails'}",
                    "a theorem" if exact else "the identity needs what is missing here",
                    f"relative defects {between(values)}",
                    max(values) <= ROUNDING if exact else min(values) >= LARGE,
                    f"below {ROUNDING:g} is rounding, above {LARGE:g} a true difference",
                )
            )
        return made


def relative(one: Tensor, other: Tensor) -> float:
    """The distance of two arrays relative to their size."""
    size = float(torch.linalg.vector_norm(other))
    return float(torch.linalg.vector_norm(one - other)) / max(size, 1e-300)
