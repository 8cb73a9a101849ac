"""A cluster, through Dask: whatever Dask's own deployers start (Slurm, SSH, Kubernetes, a laptop).

Dask moves cells whose worker died to another one by itself; after three deaths it says so, and the
cell has failed. One process runs one cell at a time: start workers with one thread each.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import time
from concurrent.futures import Executor, Future
from typing import Any, final

from attnscope.studies.cell import Cell
from attnscope.studies.engines.engine import Engine, EngineError
from attnscope.studies.engines.worker import Result
from attnscope.studies.study import Study
from attnscope.studies.workbench import Workbench

PATIENCE = 10.0
"""Seconds to wait for a scheduler that does not answer."""
LOOK = 1.0
"""Seconds between two counts of the workers."""


@final
class Dask(Engine):
    """The workers of a Dask scheduler, as many as there are at any time.

    Args:
        scheduler: Its address, such as tcp://10.0.0.1:8786, or a `distributed.Client`.
    """

    def __init__(self, scheduler: Any) -> None:
        self._mine = isinstance(scheduler, str)
        self._client = _connected(scheduler) if self._mine else scheduler
        self._address = scheduler if self._mine else str(scheduler.scheduler.address)
        self._workers, self._counted, self._silent = 0, -LOOK, 0.0

    def open(self) -> Executor:
        if self._mine and self._client.status != "running":  # closed after another run
            self._client = _connected(self._address)
        return self._client.get_executor(pure=False)

    def submit(
        self, executor: Executor, study: Study, cell: Cell, workbench: Workbench
    ) -> Future[Result | None]:
        try:
            return super().submit(executor, study, cell, workbench)
        except RuntimeError as error:  # the client has closed
            raise self.lost() from error

    def capacity(self) -> int:
        """Two cells for each worker; none while there is no worker, or no answer."""
        now = time.monotonic()
        if now - self._counted > LOOK and self._client.status == "running":
            try:
                self._workers = len(self._client.nthreads())
                self._counted = now
            except (OSError, RuntimeError, TimeoutError, asyncio.CancelledError):
                self._workers = 0
        return 2 * self._workers

    def check(self) -> None:
        now = time.monotonic()
        if self._client.status == "running":
            self._silent = now
        elif self._client.status in ("closed", "closing") or now - self._silent > PATIENCE:
            raise self.lost()

    def close(self, executor: Executor, at_once: bool = False) -> None:
        if self._client.status == "running":
            executor.shutdown(wait=not at_once)  # what did not begin is cancelled by it
        if self._mine:
            self._client.close(timeout=2)

    def lost(self) -> EngineError:
        return EngineError(
            f"the Dask scheduler at {self._address} does not answer any more; what is stored is"
            " kept, and the same command with a new scheduler goes on."
        )


def _connected(address: str) -> Any:
    if importlib.util.find_spec("distributed") is None:
        raise ImportError('the engine dask needs dask: pip install "attnscope[cluster]".')
    distributed = importlib.import_module("distributed")
    # its own threads tell of every lost connection; the driver says it once, in a sentence
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EngineError(
            f"no Dask scheduler answers at {address!r} ({reason}): start one with `dask scheduler`"
            " and pass the address that it prints, such as tcp://127.0.0.1:8786."
        ) from error
