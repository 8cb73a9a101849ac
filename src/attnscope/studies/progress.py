"""The progress bar of a run: shown once it has lasted two seconds, and only where a console is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, final, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHOWN_AFTER = 2.0


@runtime_checkable
class Meter(Protocol):
    """What a run tells of its progress."""

    def part(self, part: float, what: str) -> None:
        """So much of the current cell is done."""

    def next(self, what: str = "") -> None:
        """A cell is done."""

    def skip(self, count: int) -> None:
        """So many cells were there already."""

    def failed(self) -> None:
        """A cell has failed, so it is done with."""


@final
class Bar:
    """How many cells are done, how fast, how many failed, and how much of the current one."""

    def __init__(self, progress: Progress | None, total: float) -> None:
        self._progress, self._done, self._known, self._failed = progress, 0, 0, 0
        self._begun = time.monotonic()
        self._task = None if progress is None else progress.add_task("", total=total, told="")

    def part(self, part: float, what: str) -> None:
        """So much of the current cell is done."""
        self.at(self._done + min(max(part, 0.0), 1.0), what)

    def next(self, what: str = "") -> None:
        """A cell is done."""
        self._done += 1
        self.part(0.0, what)

    def skip(self, count: int) -> None:
        """So many cells were there already: the rate does not count them."""
        self._known += count
        self._done += count
        if self._progress is not None and self._task is not None:
            self._progress.reset(self._task, completed=self._done, start=True)

    def failed(self) -> None:
        """A cell has failed, so it is done with."""
        self._failed += 1
        self.next()

    def at(self, done: float, what: str) -> None:
        """So much of the total is done."""
        if self._progress is not None and self._task is not None:
            told = self._told()
            self._progress.update(self._task, completed=done, description=what, told=told)

    def _told(self) -> str:
        new = self._done - self._known
        rate = new / max(time.monotonic() - self._begun, 1e-9)
        told = [spoken_rate(rate)] * (new > 0) + [f"{self._failed} failed"] * (self._failed > 0)
        return ", ".join(told)


def spoken_rate(rate: float) -> str:
    """Cells per second, minute or hour, whichever says it with the fewest zeros.

    >>> spoken_rate(0.25)
    '15 cells/min'
    """
    for unit, seconds in (("s", 1), ("min", 60)):
        if rate * seconds >= 1:
            return f"{rate * seconds:.3g} cells/{unit}"
    return f"{rate * 3600:.3g} cells/h"


@final
class Stretch:
    """The stretch of a bar that one of several runs fills, from `start` on, `length` long."""

    def __init__(self, bar: Bar, start: float, length: float, cells: int, name: str) -> None:
        self._bar, self._start, self._name = bar, start, name
        self._each, self._done = length / max(cells, 1), 0

    def part(self, part: float, what: str) -> None:
        done = self._start + self._each * (self._done + min(max(part, 0.0), 1.0))
        self._bar.at(done, f"{self._name}: {what}" if what else self._name)

    def next(self, what: str = "") -> None:
        self._done += 1
        self.part(0.0, what)

    def skip(self, count: int) -> None:
        self._done += count
        self.part(0.0, "")

    def failed(self) -> None:
        self.next()


@contextmanager
def shown(console: Console | None, total: float, counted: bool = True) -> Iterator[Bar]:
    """A bar for so many cells, gone at the end; an invisible one without a console. A total that
    counts nothing, such as expected seconds, is shown in percent.
    """
    if console is None:
        yield Bar(None, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *[TextColumn("{task.fields[told]}", markup=False)] * counted,
    )
    progress = Progress(*columns, console=console, transient=True)
    timer = threading.Timer(SHOWN_AFTER, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield Bar(progress, total)
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
