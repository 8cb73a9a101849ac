"""A Dask cluster of two processes: the same rows, a worker that is killed, a scheduler that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toy_study import Config, Squares

from attnscope.studies import run
from attnscope.studies.engines import EngineError
from attnscope.studies.engines import dask as module
from attnscope.studies.status import status
from attnscope.studies.store import FILE

pytest.importorskip("distributed", reason="needs attnscope[cluster]: no Dask engine is tested")

HERE = Path(__file__).parent
PROGRAM = "from distributed.cli.{} import main; main()"


class Cluster:
    """A scheduler and two workers, as the page on clusters starts them."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([str(HERE), *sys.path])
        self._environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._log, file = folder / "log", folder / "scheduler.json"
        said = ("--scheduler-file", str(file), "--no-dashboard")
        self.scheduler = self._start("dask_scheduler", *said, "--host", "127.0.0.1", "--port", "0")
        self.workers = [
            self._start("dask_worker", *said, "--nthreads", "1", "--no-nanny") for _ in range(2)
        ]
        self._until(file.exists)
        self.address = str(json.loads(file.read_text())["address"])

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(what), *options],
                env=self._environment,
                stderr=log,
            )

    def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            assert self.scheduler.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


def after(folder: Path, cells: int, do: Callable[[], None]) -> threading.Thread:
    """Do something once so many cells are stored."""

    def wait() -> None:
        while not (folder / FILE).exists() or status(folder).finished < cells:
            time.sleep(0.05)
        do()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.filterwarnings("ignore")  # of libraries below Dask
def test_a_cluster_gives_the_same_rows_and_survives_its_parts(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = Config(cells=12, seconds=0.2)  # of which the rows say nothing
    here = tmp_path / "here"
    run(Squares(), Config(cells=12), folder=here, pictures=False)
    there, lost = tmp_path / "there", tmp_path / "lost"
    killed = after(there, 2, cluster.workers[0].kill)
    outcome = run(
        Squares(), config, folder=there, pictures=False, engine=module.Dask(cluster.address)
    )
    killed.join()
    assert (outcome.finished, outcome.failures) == (True, [])
    for name in ("results.csv", "curves.csv"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    killed = after(lost, 2, cluster.scheduler.kill)
    engine = module.Dask(cluster.address)
    with pytest.raises(EngineError, match=r"does not answer any more; what is stored is kept"):
        run(Squares(), config, folder=lost, pictures=False, engine=engine)
    killed.join()
    again = run(Squares(), config, folder=lost, pictures=False)
    assert (again.finished, again.taken_up >= 2) == (True, True)
    assert (lost / "results.csv").read_bytes() == (here / "results.csv").read_bytes()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere:::", "http://x"])
def test_an_address_where_no_scheduler_answers(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.5)
    with pytest.raises(EngineError, match=r"no Dask scheduler answers at .*start one with"):
        module.Dask(address)
