"""A progress bar for a search that can be ended early."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Watch:
    """What a search tells its progress; `stopped` once the user pressed Ctrl-C."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task, self.stopped = bar, task, False

    def __call__(self, fraction: float, value: float) -> bool:
        self._bar.update(self._task, completed=fraction, best=value)
        return not self.stopped


@contextmanager
def watched(console: Console, title: str) -> Iterator[Watch]:
    """The first Ctrl-C ends the search after its current step, the second ends the program."""
    columns = (
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %, best {task.fields[best]:.5g}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        watch = Watch(bar, bar.add_task(title, total=1.0, best=0.0))

        def interrupt(number: int, frame: object) -> None:
            if watch.stopped:
                raise KeyboardInterrupt
            watch.stopped = True
            console.print("stopping after this step; Ctrl-C again to give up what was found")

        try:
            before = signal.signal(signal.SIGINT, interrupt)
        except ValueError:  # not in the main thread: Ctrl-C is someone else's
            yield watch
            return
        try:
            yield watch
        finally:
            signal.signal(signal.SIGINT, before)
