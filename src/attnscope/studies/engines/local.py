"""Processes of this machine: as many as cores, one thread each, nobody outlives the driver."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, final

import torch

from attnscope.machine import cores, limit_memory
from attnscope.studies.engines.engine import Engine
from attnscope.studies.engines.worker import stop_when

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SHARE_OF_MEMORY = 0.9


@final
class Local(Engine):
    """Spawned processes.

    Args:
        workers: How many; one per core if left out.
        threads: Of each; the cores are shared among the workers if left out.
    """

    def __init__(self, workers: int | None = None, threads: int | None = None) -> None:
        for name, value in (("workers", workers), ("threads", threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.workers = cores() if workers is None else workers
        self.threads = max(1, cores() // self.workers) if threads is None else threads
        self._context = multiprocessing.get_context("spawn")
        self._stopping: Any = None
        self._line: Connection | None = None
        self._before: dict[str, str | None] = {}

    def open(self) -> Executor:
        # libraries read these when a worker imports them
        self._before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, str(self.threads)))
        self._stopping = self._context.Event()
        heard, self._line = self._context.Pipe(duplex=False)
        return ProcessPoolExecutor(
            self.workers,
            self._context,
            initializer=begin,
            initargs=(self.threads, self.workers, self._stopping, heard),
        )

    def capacity(self) -> int:
        return 2 * self.workers

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def close(self, executor: Executor, at_once: bool = False) -> None:
        if at_once and self._line is not None:
            self._line.close()
        super().close(executor, at_once)
        for name, before in self._before.items():
            os.environ.pop(name, None)
            if before is not None:
                os.environ[name] = before


def begin(threads: int, workers: int, stopping: Any, line: Connection) -> None:
    """The first thing that a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells all; the driver decides
    torch.set_num_threads(threads)
    limit_memory(SHARE_OF_MEMORY / workers)
    stop_when(stopping.is_set)
    threading.Thread(target=_leave_with_the_driver, args=(line,), daemon=True).start()


def _leave_with_the_driver(line: Connection) -> None:
    """The line ends when the driver lets go of it, or dies."""
    with suppress(EOFError, OSError):
        line.recv()
    os._exit(1)
