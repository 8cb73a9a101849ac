"""`Study`: what a question is made of. The driver runs any study; nothing here prints or writes."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from attnscope.studies.cell import Cell, check_plain, tuples
from attnscope.validation import described

if TYPE_CHECKING:  # these know the study, not the other way round
    from attnscope.studies.table import Table
    from attnscope.studies.workbench import Workbench

Row = Any
"""A NamedTuple of strings, numbers, None and, rarely, NumPy arrays. NaN and infinity are allowed.

Arrays (trajectories, pictures) are stored with their row, and left out of CSV and JSON lines.
"""


class Verdict(NamedTuple):
    """A statement of a paper beside what was measured; `holds` is None when it cannot be told."""

    statement: str
    paper: str
    measured: str
    holds: bool | None
    why: str

    @property
    def outcome(self) -> str:
        """ "holds", "does not hold" or "cannot be told"."""
        if self.holds is None:
            return "cannot be told"
        return "holds" if self.holds else "does not hold"


class Sheet(NamedTuple):
    """A table for people: every entry is a string already."""

    title: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]
    note: str = ""
    wrap: bool = False
    """Whether the entries are sentences, which may take several lines."""


class Study(ABC):
    """A question asked of models, networks or flows, cut into cells.

    A study has no state. Its `Config` is a frozen dataclass of names and numbers, with the papers'
    settings as defaults; `fast` is a config that two cores finish in minutes. `tables` maps the
    name of each kind of row to its NamedTuple, the main one first.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    fast: ClassVar[Any]
    tables: ClassVar[Mapping[str, type]]
    aside: ClassVar[tuple[str, ...]] = ()
    """Fields of the config that no row depends on: a run with others of them goes on."""

    @abstractmethod
    def cells(self, config: Any, workbench: Workbench) -> Iterable[Cell]:
        """The cells of a run, in the order of its rows. Everything wrong with the config is said
        here, before anything is computed.

        The workbench is there because a cell names weights and texts by their hash.
        """

    @abstractmethod
    def run(self, cell: Any, workbench: Workbench) -> list[Row]:
        """The rows of one cell, which depend on the cell alone.

        Long cells ask `workbench.going(part done)` from time to time. When it says no they return
        what they have, which is kept and shown, and computed again by the next run.
        """

    def owner(self, cell: Any) -> str:
        """The study whose cell this is, by name: equal cells of equal owners have equal rows."""
        return self.name

    def supplies(self, cell: Any, workbench: Workbench) -> Mapping[Hashable, Any]:
        """What a worker elsewhere cannot find by its name, to be put on its workbench: the driver
        sends it along with the cell.
        """
        return {}

    def figures(self, table: Table) -> dict[str, Any]:
        """Matplotlib figures by file name without suffix, from the rows alone; made inside
        `drawing.style()`.
        """
        return {}

    def summary(self, table: Table) -> list[Sheet]:
        """What is printed at the end of a run."""
        return []

    def verdicts(self, table: Table) -> list[Verdict]:
        """What the rows say about the statements of the papers."""
        return []

    def remarks(self, table: Table) -> list[str]:
        """Sentences on what was left out and what did not converge, for the record of the run."""
        return []

    def files(self, table: Table) -> dict[str, bytes]:
        """Other files by name, from the rows alone: arrays, animations."""
        return {}

    def kind(self, row: Row) -> str:
        """The name of the table that a row belongs to."""
        for name, made in self.tables.items():
            if type(row) is made:
                return name
        raise TypeError(
            f"a row of {self.name} must be one of"
            f" {', '.join(made.__name__ for made in self.tables.values())}, got {described(row)}."
        )

    def read_config(self, fields: Mapping[str, Any]) -> Any:
        """The config whose fields went through JSON."""
        return self.Config(**{name: tuples(value) for name, value in fields.items()})


def config_fields(config: Any) -> dict[str, Any]:
    """The fields of a config, all of them names and numbers, ready for JSON."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name, value in fields.items():
        check_plain(name, value)
    return fields


def check_row(row: Row) -> None:
    """Refuse values that a store would not give back as they are."""
    for name, value in row._asdict().items():
        if value is None or type(value) in (str, int, float, bool):
            continue
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
            continue
        raise TypeError(
            f"{type(row).__name__}.{name} must be a string, a number, None or an array of numbers,"
            f" got {described(value)}: convert it with .item() or float()."
        )


def same(one: Row, other: Row) -> bool:
    """Whether two rows are equal bit for bit, NaN and arrays included."""
    return type(one) is type(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, True)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b
