"""Cells in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, final

from attnscope.studies.cell import Cell
from attnscope.studies.engines.engine import Engine
from attnscope.studies.engines.worker import Result, carry_out
from attnscope.studies.study import Study
from attnscope.studies.workbench import Workbench


@final
class AtOnce(Executor):
    """Runs what is submitted before `submit` returns; a second Ctrl-C comes through."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@final
class Here(Engine):
    """The usual engine: the workbench of the run serves every cell."""

    def open(self) -> Executor:
        return AtOnce()

    def capacity(self) -> int:
        return 1

    def submit(
        self, executor: Executor, study: Study, cell: Cell, workbench: Workbench
    ) -> Future[Result | None]:
        return executor.submit(carry_out, study, cell, workbench)
