"""Cells go out to an engine, rows come back and are stored as they arrive.

A worker that dies takes its executor with it, and nobody can tell which of the cells that were out
was to blame. So a new executor gets these one at a time; a cell whose worker dies again, alone, has
failed. Everything else is done again, and a cell is stored once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from typing import NamedTuple, final

from attnscope.studies.cache import Cache
from attnscope.studies.cell import Cell
from attnscope.studies.engines.engine import Engine, EngineError
from attnscope.studies.engines.worker import CellFailed, Mismatch, Result, as_failure
from attnscope.studies.progress import Meter
from attnscope.studies.stop import Stop
from attnscope.studies.store import Store
from attnscope.studies.study import Study
from attnscope.studies.workbench import Stopped, Workbench

TICK = 0.1
"""Seconds between two looks at signals and at the engine."""
DEATHS = 2
"""How often a cell may end its worker alone before it counts as failed."""
MOST_BREAKS = 20
"""Executors that may break one after the other without a single result."""
KINDS: Mapping[str, type[Exception]] = {
    kind.__name__: kind for kind in (ValueError, TypeError, ImportError, OverflowError, MemoryError)
} | {"OSError": ValueError, "FileNotFoundError": ValueError}
"""What becomes of an error in a worker, so that a mistake of the user stays one."""


class Errand(NamedTuple):
    """A cell on its way. `suspect` counts the executors that broke while it was out."""

    place: int
    cell: Cell
    suspect: int = 0


@final
class Dispatch:
    """One run's cells, from the first to the last.

    Args:
        keep_going: Whether a cell that fails is kept with its reason, and the others go on;
            otherwise the first failure is raised.
    """

    def __init__(
        self,
        study: Study,
        store: Store,
        engine: Engine,
        workbench: Workbench,
        stop: Stop,
        bar: Meter,
        cache: Cache | None = None,
        keep_going: bool = False,
    ) -> None:
        self.study, self.store, self.engine, self.workbench = study, store, engine, workbench
        self.stop, self.bar, self.cache, self.keep_going = stop, bar, cache, keep_going
        self._waiting: deque[Errand] = deque()
        self._suspects: deque[Errand] = deque()
        self._out: dict[Future[Result | None], Errand] = {}
        self._broken, self._breaks, self._told = False, 0, False
        self._whole = True

    def run(self, errands: Iterable[Errand]) -> bool:
        """Run them all; False when a signal ended it early."""
        self._waiting.extend(errands)
        if not self._waiting:
            return True

        def watch(part: float, what: str) -> bool:
            self.bar.part(part, what)
            return not self.stop.asked

        self.workbench.watch = watch
        executor = self.engine.open()
        try:
            while self._suspects or self._waiting or self._out:
                if self.stop.asked:
                    self._wind_down()
                self._hand_out(executor)
                self._take_in()
                if self._broken and not self._out and not self.stop.asked:
                    self.engine.close(executor, at_once=True)
                    executor = self._anew()
        except BaseException:
            self.engine.close(executor, at_once=True)
            raise
        self.engine.close(executor, at_once=self.stop.asked)  # nothing is out any more
        return self._whole

    def _wind_down(self) -> None:
        """After a signal nothing more goes out, and what did not begin comes back."""
        self._whole = self._whole and not self._waiting and not self._suspects
        self._waiting.clear()
        self._suspects.clear()
        if not self._told:
            self._told = True
            self.engine.ask_to_stop()
            for future in self._out:
                future.cancel()

    def _hand_out(self, executor: Executor) -> None:
        while not self._broken and not self.stop.asked and (self._suspects or self._waiting):
            if self._suspects and self._out:  # a suspect goes alone
                return
            if len(self._out) >= self.engine.capacity():
                return
            errand = (self._suspects or self._waiting).popleft()
            try:
                future = self.engine.submit(executor, self.study, errand.cell, self.workbench)
            except BrokenExecutor:
                (self._suspects if errand.suspect else self._waiting).appendleft(errand)
                self._broken = True
                return
            self._out[future] = errand
            if errand.suspect or future.done():
                return

    def _take_in(self) -> None:
        if not self._out:
            if not self._broken:
                time.sleep(TICK)  # nobody is there to work yet
                self.engine.check()
            return
        done = wait(self._out, timeout=TICK, return_when=FIRST_COMPLETED).done
        if not done:
            self.engine.check()
        alone = len(self._out) == 1
        for future in done:
            self._settle(self._out.pop(future), future, alone)

    def _settle(self, errand: Errand, future: Future[Result | None], alone: bool) -> None:
        """A cell is back: with rows, with a part, with nothing, or it is to go out again."""
        try:
            result = future.result()
        except BrokenExecutor:
            self._broken = True
            if self.stop.asked:
                self._whole = False
                return
            if alone and errand.suspect >= DEATHS:
                said = "its worker died again and again: killed, or out of memory"
                self._fail(errand, CellFailed("RuntimeError", said))
                return
            self._suspects.append(errand._replace(suspect=errand.suspect + 1))
            return
        except (CancelledError, Stopped) as error:
            if not self.stop.asked and isinstance(error, CancelledError):
                raise self.engine.lost() from error
            self._whole = False
            return
        except Mismatch as error:
            raise EngineError(str(error)) from error
        except Exception as error:
            if not self.keep_going and not isinstance(error, CellFailed):
                raise
            self._fail(errand, as_failure(error))
            return
        self._breaks = 0
        if result is None:  # the worker was told to stop and had nothing
            self._whole = False
        else:
            self._keep(errand, result)

    def _keep(self, errand: Errand, result: Result) -> None:
        rows, seconds, finished = result
        self.store.put(errand.cell, rows, errand.place, seconds, finished)
        self._whole = self._whole and finished
        if finished:
            if self.cache is not None:
                self.cache.put(self.study.owner(errand.cell), errand.cell, rows, seconds)
            self.bar.next()

    def _fail(self, errand: Errand, failure: CellFailed) -> None:
        if not self.keep_going:
            raise KINDS.get(failure.kind, RuntimeError)(failure.reason) from failure
        self.store.fail(errand.cell, failure.reason, errand.place, failure.seconds)
        self.bar.failed()

    def _anew(self) -> Executor:
        self._broken, self._breaks = False, self._breaks + 1
        if self._breaks > MOST_BREAKS:
            raise EngineError(
                f"{self._breaks} sets of workers died before any finished a cell; what is stored is"
                " kept."
            )
        return self.engine.open()
