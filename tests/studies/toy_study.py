"""A study of squares, small enough to be killed, run twice and damaged."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attnscope.studies import Cell, Sheet, Stop, StoreError, Study, Table, Verdict, Workbench, run
from attnscope.studies.drawing import heading, new_figure
from attnscope.studies.store import FILE


class Square(NamedTuple):
    number: int
    square: float
    limit: float


class Curve(NamedTuple):
    number: int
    points: np.ndarray


@dataclass(frozen=True)
class Config:
    cells: int = 8
    rows: int = 3
    seconds: float = 0.0
    failure_probability: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Part(Cell):
    number: int
    rows: int
    seconds: float


class Squares(Study):
    name = "squares"
    Config = Config
    fast = Config(cells=2)
    tables: ClassVar[dict[str, type]] = {"results": Square, "curves": Curve}

    def cells(self, config: Config, workbench: Workbench) -> Iterable[Part]:
        for number in range(config.cells):
            yield Part(
                number=number,
                rows=config.rows,
                seconds=config.seconds,
                failure_probability=config.failure_probability / config.cells,
            )

    def run(self, cell: Part, workbench: Workbench) -> list[Any]:
        made: list[Any] = []
        for step in range(cell.rows):
            if not workbench.going(step / cell.rows, f"cell {cell.number}"):
                return made
            time.sleep(cell.seconds / cell.rows)
            i = cell.number * cell.rows + step
            made.append(Square(i, i**2 / 7, float("inf") if step == 0 else float("nan")))
        return [*made, Curve(cell.number, np.arange(4.0) * cell.number)]

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(3.0, 2.0)
        axes = figure.subplots()
        axes.plot([row.number for row in table], [row.square for row in table])
        axes.set_title(heading(model="costs $5 and [b]$6", n=len(table)))
        return {"squares": figure}

    def summary(self, table: Table) -> list[Sheet]:
        return [Sheet("<squares>", ("rows",), [(str(len(table)),)])]

    def verdicts(self, table: Table) -> list[Verdict]:
        grows = all(a.square < b.square for a, b in zip(table.rows, table.rows[1:], strict=False))
        return [Verdict("squares grow", "they do", f"{len(table)} rows", grows, "seen")]

    def remarks(self, table: Table) -> list[str]:
        return [f"{config_missing(table)} cells left out"] if config_missing(table) else []


def config_missing(table: Table) -> int:
    return table.config.cells - len(table["curves"])


def program(folder: Path, cells: int, seconds: float, log: Path) -> None:
    """A run in a process of its own, as a command would do it."""
    stop = Stop(lambda sentence: say(log, sentence))
    try:
        say(log, "ready")
        config = Config(cells=cells, seconds=seconds)
        outcome = run(Squares(), config, folder=folder, stop=stop, pictures=False)
    except StoreError as error:
        say(log, str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(stop.exit_code)
    sys.exit(outcome.exit_code)


def say(log: Path, sentence: str) -> None:
    with log.open("a") as file:
        file.write(sentence + "\n")


def stored(folder: Path) -> int:
    """Cells in the store, 0 if there is none yet."""
    if not (folder / FILE).exists():
        return 0
    base = sqlite3.connect(folder / FILE)
    try:
        return base.execute("SELECT COUNT(*) FROM cells").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        base.close()
