"""The progress bar of a run: shown once it has lasted two seconds, and only where a console is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHOWN_AFTER = 2.0


@final
class Bar:
    """How many cells are done, and how much of the current one."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done = progress, 0
        self._task = None if progress is None else progress.add_task("", total=total)

    def part(self, part: float, what: str) -> None:
        """So much of the current cell is done."""
        if self._progress is not None and self._task is not None:
            within = self._done + min(max(part, 0.0), 1.0)
            self._progress.update(self._task, completed=within, description=what)

    def next(self, what: str = "") -> None:
        """A cell is done."""
        self._done += 1
        self.part(0.0, what)


@contextmanager
def shown(console: Console | None, total: int) -> Iterator[Bar]:
    """A bar for so many cells, gone at the end; an invisible one without a console."""
    if console is None:
        yield Bar(None, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
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
