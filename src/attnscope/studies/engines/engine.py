"""`Engine`: what the driver asks of whatever runs its cells. Scheduling is the executor's work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor, Future
from typing import Any, final

from attnscope.studies.cell import Cell
from attnscope.studies.engines.worker import Result, Task, work
from attnscope.studies.study import Study
from attnscope.studies.workbench import Workbench


class EngineError(ValueError):
    """Workers that cannot be reached or used, in one sentence."""


class Engine(ABC):
    """A source of executors, as `concurrent.futures` knows them."""

    @abstractmethod
    def open(self) -> Executor:
        """A fresh executor: at the beginning, and again after one broke."""

    @abstractmethod
    def capacity(self) -> int:
        """How many cells to hand out before one is back; 0 while there is nobody to work."""

    def submit(
        self, executor: Executor, study: Study, cell: Cell, workbench: Workbench
    ) -> Future[Result | None]:
        """Hand out a cell, with what a worker cannot find by its name."""
        return executor.submit(work, Task.of(study, cell, study.supplies(cell, workbench)))

    def check(self) -> None:  # noqa: B027, most engines have nothing to say
        """Raise `EngineError` if nobody answers any more."""

    def lost(self) -> EngineError:
        """What to say when cells come back that nobody ran."""
        return EngineError("the engine gave its cells up; what is stored is kept.")

    def ask_to_stop(self) -> None:  # noqa: B027
        """Tell running cells to return what they have, where this can be told."""

    def close(self, executor: Executor, at_once: bool = False) -> None:
        """Let go of an executor; at once, also of the cells that run."""
        executor.shutdown(wait=not at_once, cancel_futures=True)


@final
class Given(Engine):
    """An executor that the user made, and will close: mpi4py's, Ray's, or that of a test."""

    def __init__(self, executor: Executor, workers: int = 1) -> None:
        self._executor, self._workers, self._opened = executor, workers, False

    def open(self) -> Executor:
        if self._opened:
            raise EngineError("the executor that was given is broken; what is stored is kept.")
        self._opened = True
        return self._executor

    def capacity(self) -> int:
        return 2 * self._workers

    def close(self, executor: Executor, at_once: bool = False) -> None:
        """It is the user's."""


def engine_of(given: Any) -> Engine:
    """An engine, an executor, or nothing: then cells run in this process."""
    from attnscope.studies.engines.here import Here

    if given is None:
        return Here()
    if isinstance(given, Engine):
        return given
    if isinstance(given, Executor):
        return Given(given, getattr(given, "_max_workers", 1))
    raise TypeError(
        f"engine must be an Engine or a concurrent.futures.Executor, got {type(given).__name__}."
    )
