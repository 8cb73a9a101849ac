"""Cells elsewhere: the rows are the same, and whatever happens to a worker or to the driver,
nothing is lost and nothing is stored twice.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faulty_study
import pytest
from faulty_study import Faulty, FaultyConfig
from toy_study import Config, Squares, stored

from attnscope.studies import Stop, run
from attnscope.studies.engines import CellFailed, Engine, EngineError, Local
from attnscope.studies.engines import worker as at_work
from attnscope.studies.study import same

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["attnscope.studies", "faulty_study"])


def local(workers: int) -> Local:
    """Workers that need not import torch again."""
    engine = Local(workers, threads=1)
    engine._context = PROCESSES  # type: ignore[assignment]
    return engine


def until(true: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def began(folder: Path, number: int) -> list[int]:
    """The processes that began a cell."""
    log = folder / f"began-{number}"
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0]
    except OSError:
        return False


@pytest.mark.usefixtures("unchecked")
def test_any_executor_gives_the_rows_of_this_process(tmp_path: Path) -> None:
    here = run(Squares(), Config(cells=5), folder=tmp_path / "here", pictures=False)
    with ThreadPoolExecutor(2) as threads:
        there = run(
            Squares(), Config(cells=5), folder=tmp_path / "there", pictures=False, engine=threads
        )
        assert there.finished
        threads.submit(int)  # it is still the user's
    for kind in here.table.kinds:
        for one, two in zip(here.table[kind], there.table[kind], strict=True):
            assert same(one, two)
    with pytest.raises(TypeError, match=r"concurrent\.futures\.Executor, got int"):
        run(Squares(), Config(), engine=3)  # type: ignore[arg-type]


def test_workers_that_die_eat_or_fail_and_the_others_go_on(tmp_path: Path) -> None:
    deeds = ("fine", "dies once", "dies", "eats", "fails", "fine", "fails once", "fine")
    config = FaultyConfig(deeds, str(tmp_path))
    outcome = run(
        Faulty(),
        config,
        folder=tmp_path / "out",
        pictures=False,
        engine=local(2),
        keep_going=True,
    )
    assert outcome.finished
    assert [row.number for row in outcome.table] == [0, 1, 5, 7]
    reasons = [failure.reason for failure in outcome.failures]
    assert len(reasons) == 4
    assert reasons[0] == "its worker died again and again: killed, or out of memory"
    assert reasons[1].startswith("out of memory: ")
    assert reasons[2:] == ["this cell fails"] * 2
    assert len(began(tmp_path, 1)) >= 2  # done again after its worker was killed
    assert {row.process for row in outcome.table}.isdisjoint({os.getpid()})
    before = began(tmp_path, 4)
    again = run(Faulty(), config, folder=tmp_path / "out", pictures=False, keep_going=True)
    assert (len(again.failures), began(tmp_path, 4)) == (4, before)  # not tried without a word
    config_that_lives = FaultyConfig(("fine", "fails once", "fails"), str(tmp_path / "retried"))
    (tmp_path / "retried").mkdir()
    for retry, left in ((False, 2), (True, 1)):
        options = {"folder": tmp_path / "r", "pictures": False, "keep_going": True, "retry": retry}
        outcome = run(Faulty(), config_that_lives, **options)  # type: ignore[arg-type]
        assert len(outcome.failures) == left
    assert [row.number for row in outcome.table] == [0, 1]
    assert len(began(tmp_path / "retried", 0)) == 1


def test_without_keeping_on_the_first_failure_is_the_users(tmp_path: Path) -> None:
    config = FaultyConfig(("fine", "fails"), str(tmp_path))
    for engine in (None, ThreadPoolExecutor(1)):
        with pytest.raises(ValueError, match="this cell fails"):
            run(Faulty(), config, engine=engine)
    failure = CellFailed("ValueError", "a reason", "a story", 2.0)
    copy = pickle.loads(pickle.dumps(failure))
    assert (copy.kind, str(copy), copy.trace, copy.seconds) == (
        *failure.args[:1],
        "a reason",
        *failure.args[2:],
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_workers_too(tmp_path: Path, number: int, code: int) -> None:
    deeds, log = ("fine", "lasts", "lasts", "fine"), tmp_path / "log"
    driver = PROCESSES.Process(target=faulty_study.program, args=(tmp_path / "out", deeds, 2, log))
    driver.start()
    until(lambda: bool(began(tmp_path, 1) and began(tmp_path, 2)))
    os.kill(driver.pid or 0, number)
    driver.join(600)
    assert driver.exitcode == code
    assert log.read_text() in ("False 1", "False 2")  # a short cell may have gone out already
    until(lambda: not any(alive(one) for one in began(tmp_path, 1) + began(tmp_path, 2)))


def test_the_driver_is_killed_and_the_same_call_goes_on(tmp_path: Path) -> None:
    """The workers are spawned ones here; none of them outlives the driver."""
    deeds = ("fine", "lasts", "fine")
    driver = PROCESSES.Process(
        target=faulty_study.program, args=(tmp_path / "out", deeds, 1, tmp_path / "log")
    )
    driver.start()
    until(lambda: bool(began(tmp_path, 1)) and stored(tmp_path / "out") == 1)
    driver.kill()
    driver.join()
    until(lambda: not alive(began(tmp_path, 1)[0]))
    stop = Stop()
    stop.signal = signal.SIGINT
    config = FaultyConfig(deeds, str(tmp_path))
    kept = run(Faulty(), config, folder=tmp_path / "out", pictures=False, stop=stop)
    assert [row.number for row in kept.table] == [0]
    assert kept.taken_up == 1
    assert not kept.finished


class Breaks(Executor):
    """An executor whose every cell ends its worker, so that it can never be used."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenExecutor("gone"))
        return future


class Hopeless(Engine):
    def open(self) -> Executor:
        return Breaks()

    def capacity(self) -> int:
        return 2


def test_workers_that_never_work_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="sets of workers died before any finished a cell"):
        run(Squares(), Config(cells=50), folder=tmp_path, engine=Hopeless(), keep_going=True)
    with pytest.raises(EngineError, match="executor that was given is broken"):
        run(Squares(), Config(cells=2), engine=Breaks())


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = at_work.Task.of(Squares(), next(iter(Squares().cells(Config(), None))), {})  # type: ignore[arg-type]
    assert at_work.work(task) is not None
    with pytest.raises(at_work.Mismatch, match=r"a worker has torch .*, this process 1\.0"):
        at_work.work(task._replace(versions=task.versions | {"torch": "1.0"}))


def test_workers_share_the_cores() -> None:
    for workers in (1, 2, 64):
        engine = Local(workers)
        assert engine.workers * engine.threads <= max(workers, os.cpu_count() or 1)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        Local(0)
