"""What a worker does: a cell becomes packed rows. One workbench per process, so that a model is
loaded once.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from attnscope.machine import is_out_of_memory
from attnscope.studies._packing import Packed, pack
from attnscope.studies.cell import Cell
from attnscope.studies.study import Study, check_row
from attnscope.studies.workbench import Stopped, Workbench

SAME_EVERYWHERE = ("torch", "numpy", "scipy", "transformers")
"""Packages whose version may change the bits of a row."""
LONGEST_REASON = 500


class Result(NamedTuple):
    """The rows of a cell, or the part of them that was there when it was told to stop."""

    rows: Packed
    seconds: float
    finished: bool


class CellFailed(Exception):
    """A cell that has no rows, for a reason; what it was travels by name, so that any exception
    can.
    """

    def __init__(self, kind: str, reason: str, trace: str = "", seconds: float = 0.0) -> None:
        super().__init__(kind, reason, trace, seconds)  # so that it can be pickled
        self.kind, self.reason, self.trace, self.seconds = kind, reason, trace, seconds

    def __str__(self) -> str:
        return self.reason


class Mismatch(Exception):
    """The worker has other versions than the driver."""


class Task(NamedTuple):
    """What is sent to a worker."""

    study: Study
    cell: Cell
    supplies: Mapping[Any, Any]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, study: Study, cell: Cell, supplies: Mapping[Any, Any]) -> Task:
        return cls(study, cell, supplies, versions())


def versions() -> dict[str, str]:
    """The versions that matter to the bits of a row."""
    from attnscope import __version__

    if not _versions:
        _versions["attnscope"] = __version__
        for name in SAME_EVERYWHERE:
            try:
                _versions[name] = version(name)
            except PackageNotFoundError:
                _versions[name] = "not there"
    return dict(_versions)


def carry_out(study: Study, cell: Cell, workbench: Workbench) -> Result:
    """Run a cell; `Stopped` if it was told to stop and had nothing."""
    begun, workbench.cut = time.monotonic(), False
    rows = study.run(cell, workbench)
    for row in rows:
        check_row(row)
    packed = pack((study.kind(row), row._asdict()) for row in rows)
    return Result(packed, time.monotonic() - begun, finished=not workbench.cut)


def work(task: Task) -> Result | None:
    """Run a cell in a worker; None if it was told to stop and had nothing."""
    other = {name: at for name, at in versions().items() if at != task.versions.get(name)}
    if other:
        name, at = next(iter(other.items()))
        raise Mismatch(
            f"a worker has {name} {at}, this process {task.versions.get(name)}: rows would differ."
            " Install the same versions everywhere."
        )
    begun = time.monotonic()
    with _alone:  # torch and the workbench belong to one cell at a time
        _bench.watch = lambda part, what: not _stopping()
        for name, value in task.supplies.items():
            _bench.put(name, value)
        try:
            return carry_out(task.study, task.cell, _bench)
        except Stopped:
            return None
        except Exception as error:
            raise as_failure(error, time.monotonic() - begun) from None
        finally:
            for name in task.supplies:
                _bench.drop(name)


def as_failure(error: BaseException, seconds: float = 0.0) -> CellFailed:
    """Why a cell failed, in a sentence, and the whole story for those who mend it."""
    if isinstance(error, CellFailed):
        return error
    said = " ".join(str(error).split()) or "no reason was given"
    kind = type(error).__name__
    if is_out_of_memory(error):
        kind, said = MemoryError.__name__, f"out of memory: {said}"
    story = "".join(traceback.format_exception(error))
    return CellFailed(kind, said[:LONGEST_REASON], story, seconds)


def stop_when(stopping: Callable[[], bool]) -> None:
    """How this process is told to stop."""
    global _stopping
    _stopping = stopping


_versions: dict[str, str] = {}
_bench = Workbench()
_alone = threading.Lock()
_stopping: Callable[[], bool] = lambda: False  # noqa: E731
