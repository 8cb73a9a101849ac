"""Cells that do what cells should not: kill their worker, eat memory, fail, or take their time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from attnscope.studies import Cell, Stop, Study, Workbench, run
from attnscope.studies.engines import Local


class Answer(NamedTuple):
    number: int
    process: int


@dataclass(frozen=True)
class FaultyConfig:
    deeds: tuple[str, ...] = ("fine",)
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Deed(Cell):
    number: int
    what: str
    folder: str


class Faulty(Study):
    name = "faulty"
    Config = FaultyConfig
    fast = FaultyConfig()
    tables: ClassVar[dict[str, type]] = {"results": Answer}

    def cells(self, config: FaultyConfig, workbench: Workbench) -> Iterable[Deed]:
        for number, what in enumerate(config.deeds):
            yield Deed(number=number, what=what, folder=config.folder)

    def run(self, cell: Deed, workbench: Workbench) -> list[Any]:
        log = Path(cell.folder) / f"began-{cell.number}"
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        times = len(log.read_text().splitlines())
        if cell.what == "dies" or (cell.what == "dies once" and times == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.what == "eats":
            torch.empty(2**50)
        if cell.what == "fails" or (cell.what == "fails once" and times == 1):
            raise ValueError("this cell fails")
        end = time.monotonic() + (600 if cell.what == "lasts" else 0)
        while time.monotonic() < end:
            workbench.check()
            time.sleep(0.01)
        return [Answer(cell.number, os.getpid())]


def program(folder: Path, deeds: tuple[str, ...], workers: int, log: Path) -> None:
    """A run with workers in a process of its own, as a command would do it."""
    stop = Stop()
    try:
        outcome = run(
            Faulty(),
            FaultyConfig(deeds, str(folder.parent)),
            folder=folder,
            stop=stop,
            pictures=False,
            engine=Local(workers),
        )
    except KeyboardInterrupt:
        sys.exit(stop.exit_code)
    log.write_text(f"{outcome.finished} {len(outcome.table)}")
    sys.exit(outcome.exit_code)
