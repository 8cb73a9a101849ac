"""What a sweep costs beside its cells: driver, store, workers and `status`, at the sizes of
real studies. The store is tried at ten million simulated rows.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from attnscope.studies import Cell, Study, Workbench, run
from attnscope.studies._packing import pack
from attnscope.studies.driver import planned
from attnscope.studies.engines import Engine, Local
from attnscope.studies.engines.worker import carry_out
from attnscope.studies.export import export
from attnscope.studies.identity import Identity
from attnscope.studies.measure.rows import Row
from attnscope.studies.status import status
from attnscope.studies.store import FILE, Store
from attnscope.studies.sweep import Sweep, SweepConfig
from attnscope.studies.sweep.plan import SHARD
from benchmarks.timing import last_line_of

TRIVIAL, ROWS_PER_CELL, DISTINCT = 10_000, 100, 64
ONE_SECOND = 8
"""Cells of about a second on each side of the comparison of workers."""


class Number(NamedTuple):
    number: int
    value: float


@dataclass(frozen=True)
class WorkConfig:
    cells: int = TRIVIAL
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work(Cell):
    number: int
    seconds: float


class Working(Study):
    """Cells that keep one core busy for so long, counted in CPU time, and give one row."""

    name = "working"
    Config = WorkConfig
    fast = WorkConfig(10)
    tables: ClassVar[dict[str, type]] = {"results": Number}

    def cells(self, config: WorkConfig, workbench: Workbench) -> Iterator[Work]:
        for number in range(config.cells):
            yield Work(number=number, seconds=config.seconds)

    def run(self, cell: Work, workbench: Workbench) -> list[Any]:
        value, end = 0.0, time.process_time() + cell.seconds
        while time.process_time() < end:
            value = max(value, random.Random(cell.number).random())
        return [Number(cell.number, value)]


def main() -> dict[str, dict[str, float]]:
    """The bars of sweeps, and what the page on clusters quotes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = _driver(folder)
        found |= _workers(folder)
        found |= _engines_agree(folder)
        found |= _cost_of_a_cell()
        found |= _scale(folder)
    return found


def _driver(folder: Path) -> dict[str, dict[str, float]]:
    begun = time.perf_counter()
    run(Working(), WorkConfig(), folder=folder / "trivial", pictures=False)
    stored = time.perf_counter() - begun
    engine = Warm(1)
    with engine.ready():
        begun = time.perf_counter()
        run(Working(), WorkConfig(500), folder=folder / "sent", pictures=False, engine=engine)
        sent = (time.perf_counter() - begun) / 500
    return {
        f"{TRIVIAL:,} trivial cells run and stored here, in seconds": {
            "value": stored,
            "at most": 60,
        },
        "overhead of a cell that goes to a local worker, in milliseconds": {
            "value": 1e3 * sent,
            "at most": 20,
        },
    }


class Warm(Engine):
    """Local workers that are there already: what a run pays once is not a cost of its cells."""

    def __init__(self, workers: int) -> None:
        self._local, self._executor = Local(workers, threads=1), None

    @contextmanager
    def ready(self) -> Iterator[None]:
        executor = self._local.open()
        list(executor.map(_import_all, range(4 * self._local.workers)))
        self._executor = executor
        yield
        self._local.close(executor)

    def open(self) -> Executor:
        assert self._executor is not None
        return self._executor

    def capacity(self) -> int:
        return self._local.capacity()

    def close(self, executor: Executor, at_once: bool = False) -> None:
        """They stay for the next run."""


def _import_all(number: int) -> int:
    time.sleep(0.2)  # so that every worker gets one
    return number


def _workers(folder: Path) -> dict[str, dict[str, float]]:
    """Two workers against one. Both sides run in turn; a loaded machine shows as a lower ratio."""
    taken = {}
    for workers in (1, 2):
        engine = Warm(workers)
        with engine.ready():
            begun = time.perf_counter()
            config = WorkConfig(ONE_SECOND, 1.0)
            run(Working(), config, folder=folder / f"w{workers}", pictures=False, engine=engine)
            taken[workers] = time.perf_counter() - begun
    return {
        "two local workers against one, cells of a second": {
            "ratio": taken[1] / taken[2],
            "must": 1.7,
        }
    }


def _engines_agree(folder: Path) -> dict[str, dict[str, float]]:
    """Rows of minilm that differ in any bit between this process, local workers and Dask."""
    config = SweepConfig(lengths=(8, 16, 32), samples=4, layers=(0, 3), shard=2)
    tables = {}
    with _cluster() as address:
        from attnscope.studies.engines.dask import Dask

        for name, engine in (("local", Local(2, threads=1)), ("dask", Dask(address))):
            outcome = run(Sweep(), config, folder=folder / name, pictures=False, engine=engine)
            tables[name] = [outcome.table[kind] for kind in outcome.table.kinds]
    different = sum(
        repr(a) != repr(b)
        for one, two in zip(tables["local"], tables["dask"], strict=True)
        for a, b in zip(one, two, strict=True)
    )
    return {
        "rows of minilm that differ between local workers and Dask": {
            "value": different,
            "at most": 0,
        },
    }


def _cost_of_a_cell() -> dict[str, dict[str, float]]:
    """CPU time of a cell as sweeps have it: a shard of sequences, all layers, brackets of 1e-3."""
    found, workbench = {}, Workbench()
    for model, n in (("minilm", 128), ("bert-random", 128)):
        config = SweepConfig((model,), lengths=(n,), samples=SHARD, bounds=False)
        (cell,) = planned(Sweep(), config, workbench)
        begun = time.process_time()
        result = carry_out(Sweep(), cell, workbench)
        seconds, rows = time.process_time() - begun, result.rows
        name = f"{model}, n = {n}, all layers, brackets of 1e-3"
        found[f"CPU seconds per sequence, {name}"] = {"value": seconds / SHARD}
        found[f"kilobytes of a cell of {SHARD} sequences, {name}"] = {
            "value": len(rows.content) / 1e3
        }
    return found


@contextmanager
def _cluster() -> Iterator[str]:
    """A scheduler and two workers, as the page on clusters starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = "from distributed.cli.{} import main; main()"

    def start(what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program.format(what), *options, "--no-dashboard"]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    host, port = address.removeprefix("tcp://").split(":")
    processes = [start("dask_scheduler", "--host", host, "--port", port)]
    processes += [start("dask_worker", address, "--nthreads", "1", "--no-nanny") for _ in range(2)]
    time.sleep(10)
    try:
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


STATUS = """
import sys, time
from pathlib import Path
from attnscope.studies.status import status
begun = time.perf_counter()
found = status(Path(sys.argv[1]))
print(time.perf_counter() - begun)
"""


def _scale(folder: Path) -> dict[str, dict[str, float]]:
    """A million and ten million simulated rows: stored, looked at, and exported."""
    found = {}
    for rows, at_most in ((10**6, 1.0), (10**7, None)):
        place = folder / f"{rows}"
        seconds = _simulated(place, rows)
        name = f"{rows:,} simulated rows, {ROWS_PER_CELL} per cell"
        look = float(last_line_of(STATUS, str(place)))
        bar = {} if at_most is None else {"at most": at_most}
        found[f"status on {name}, in seconds"] = {"value": look, **bar}
        found[f"bytes per row, {name}"] = {"value": (place / FILE).stat().st_size / rows}
        found[f"microseconds to store a row, {name}"] = {"value": 1e6 * seconds / rows}
        assert status(place).rows == rows
        if rows == 10**6:
            begun = time.perf_counter()
            export(place, "parquet")
            taken = time.perf_counter() - begun
            found[f"microseconds to export a row as parquet, {name}"] = {
                "value": 1e6 * taken / rows
            }
            size = (place / "results.parquet").stat().st_size
            found[f"bytes per row as parquet, {name}"] = {"value": size / rows}
    return found


def _simulated(folder: Path, rows: int) -> float:
    """Cells as the driver stores them, with rows as `measure` makes them and random numbers; the
    seconds that packing and storing took. So many cells share a few sets of rows.
    """
    draw = random.Random(0)
    cells = [Work(number=number, seconds=0.0) for number in range(rows // ROWS_PER_CELL)]
    begun = time.perf_counter()
    packed = [pack(_random_rows(draw, place)) for place in range(DISTINCT)]
    packing = (time.perf_counter() - begun) / DISTINCT * len(cells)
    with Store(folder, Identity.of("working", "0", {}, [])) as store:
        begun = time.perf_counter()
        for place, cell in enumerate(cells):
            store.put(cell, packed[place % DISTINCT], place, 1.0)
        store.note(planned=len(cells))
        return packing + time.perf_counter() - begun


def _random_rows(draw: random.Random, place: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for layer in range(ROWS_PER_CELL):
        row = Row(
            "a-model/of-usual-name",
            *(layer, None, "attention", 128, place, 128 * place),
            *(draw.random() for _ in range(5)),
            *(draw.randrange(10, 40), True, None, "alice"),
        )
        yield "results", row._asdict()
