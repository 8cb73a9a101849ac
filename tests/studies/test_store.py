"""Rows are wholly there or not: after a kill, a second run, a full disk, a damaged file."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_study
from toy_study import Config, Squares, stored

from attnscope.files import write_atomically
from attnscope.studies import Cell, Stop, StoreError, driver, run
from attnscope.studies._database import Database
from attnscope.studies._packing import pack
from attnscope.studies.export import export
from attnscope.studies.identity import Identity
from attnscope.studies.store import FILE, Damaged, OtherResults, Store
from attnscope.studies.study import same

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["attnscope.studies"])  # torch is imported once only


class Running:
    """A run in another process."""

    def __init__(self, folder: Path, cells: int, seconds: float) -> None:
        self.log = folder.parent / f"{folder.name}-{time.monotonic_ns()}.log"
        arguments = (folder, cells, seconds, self.log)
        self.process = PROCESSES.Process(target=toy_study.program, args=arguments)
        self.process.start()

    def ready(self) -> bool:
        return "ready" in self.told()

    def told(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            assert self.process.is_alive()
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def code(self) -> int:
        self.process.join(600)
        assert self.process.exitcode is not None
        return self.process.exitcode


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run that must not depend on how it went."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.suffix in (".csv", ".jsonl")
    }


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run of ten cells that nothing disturbed."""
    run(Squares(), Config(cells=10, seconds=0.03), folder=tmp_path / "whole", pictures=False)
    return contents(tmp_path / "whole")


def test_killed_at_random_moments_the_same_command_completes(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder, chance, kept = tmp_path / "killed", random.Random(0), 0
    for _ in range(4):
        running = Running(folder, 10, 0.03)
        running.until(running.ready)
        time.sleep(chance.uniform(0.0, 0.15))
        running.send(signal.SIGKILL)
        running.process.join()
        assert kept <= stored(folder)  # nothing that was there is lost
        kept = stored(folder)
    outcome = run(Squares(), Config(cells=10, seconds=0.03), folder=folder, pictures=False)
    assert outcome.finished
    assert outcome.taken_up == kept
    assert contents(folder) == whole
    assert not list(folder.glob("*.partial"))


def test_two_processes_in_one_folder(tmp_path: Path, whole: dict[str, bytes]) -> None:
    folder = tmp_path / "shared"
    pair = [Running(folder, 10, 0.03) for _ in range(2)]
    assert [running.code() for running in pair] == [0, 0], [running.told() for running in pair]
    assert contents(folder) == whole


def test_two_runs_of_different_options_never_mix(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    first = Running(folder, 6, 0.2)
    first.until(lambda: stored(folder) > 0)
    with pytest.raises(OtherResults, match=r"other options .*cells 6"):
        run(Squares(), Config(cells=2), folder=folder)
    run(Squares(), Config(cells=2), folder=folder, overwrite=True, pictures=False)
    assert first.code() == 2
    assert "another run has replaced" in first.told()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2 * 3
    assert stored(folder) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_rows_and_files(tmp_path: Path, number: signal.Signals, code: int) -> None:
    folder = tmp_path / "out"
    running = Running(folder, 50, 0.1)
    running.until(lambda: stored(folder) > 1)
    running.send(number)
    assert running.code() == code
    assert "stopping after this step" in running.told()
    rows = (folder / "results.jsonl").read_text().splitlines()
    assert 2 * 3 <= len(rows) < 50 * 3
    record = json.loads((folder / "run.json").read_text())
    assert not record["finished"]
    assert record["left_out"] == [f"{50 - len(rows) // 3} cells left out"]


def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    class Deaf(Squares):
        """Cells that never ask whether to go on."""

        def run(self, cell: Any, workbench: Any) -> list[Any]:
            if cell.number == 1:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
                raise AssertionError("the second signal did not stop it")
            return super().run(cell, workbench)

    stop, before = Stop(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(Deaf(), Config(cells=3), folder=tmp_path, stop=stop)
    assert stop.exit_code == 143
    assert stored(tmp_path) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_part_of_a_cell_is_kept_and_computed_again(tmp_path: Path) -> None:
    class Stopping(Squares):
        def run(self, cell: Any, workbench: Any) -> list[Any]:
            if cell.number == 1:
                asked = iter([True, True, False])
                workbench.watch = lambda part, what: next(asked)
                stop.signal = signal.SIGINT
            return super().run(cell, workbench)

    stop = Stop()
    outcome = run(Stopping(), Config(cells=3), folder=tmp_path, stop=stop, pictures=False)
    assert (outcome.exit_code, outcome.finished, len(outcome.table)) == (130, False, 3 + 2)
    again = run(Squares(), Config(cells=3), folder=tmp_path, pictures=False)
    assert (again.exit_code, again.finished, len(again.table), again.taken_up) == (0, True, 9, 1)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Database.__init__

    def small(base: Database, *arguments: Any) -> None:
        opened(base, *arguments)
        pages = base.one("PRAGMA page_count")[0]
        base.execute(f"PRAGMA max_page_count={pages + 3}")

    config, folder = Config(cells=4, rows=600), tmp_path / "full"
    with monkeypatch.context() as patched:
        patched.setattr(Database, "__init__", small)
        with pytest.raises(StoreError, match=r"no room left .* is kept"):
            run(Squares(), config, folder=folder)
    kept = stored(folder)
    assert 0 < kept < 4
    outcome = run(Squares(), config, folder=folder, pictures=False)
    assert (outcome.finished, outcome.taken_up, len(outcome.table)) == (True, kept, 2400)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "a.txt", "before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(tmp_path / "a.txt", "after")
        with pytest.raises(StoreError, match=r"cannot be written \(No space left on device\)"):
            run(Squares(), Config(cells=2), folder=tmp_path / "run", pictures=False)
    assert [path.name for path in tmp_path.glob("a.txt*")] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"
    assert stored(tmp_path / "run") == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [FILE]


@pytest.mark.parametrize("damage", ["head", "middle", "letter"])
def test_a_damaged_store_is_one_sentence(tmp_path: Path, damage: str) -> None:
    config = Config(cells=20, rows=40)
    run(Squares(), config, folder=tmp_path, pictures=False)
    content = bytearray((tmp_path / FILE).read_bytes())
    if damage == "letter":
        base = sqlite3.connect(tmp_path / FILE)
        place = content.index(base.execute("SELECT digest FROM cells").fetchone()[0].encode())
        base.close()
        content[place : place + 1] = b"x"
    else:
        place = 0 if damage == "head" else len(content) // 2 // 4096 * 4096
        content[place : place + 4096] = random.Random(0).randbytes(4096)
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(Damaged, match="are damaged"):
        run(Squares(), config, folder=tmp_path, pictures=False)
    if damage != "letter":  # that one is found when its cell is read
        assert (tmp_path / FILE).read_bytes() == content
    assert run(Squares(), config, folder=tmp_path, overwrite=True, pictures=False).finished
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 800


def test_overwriting_removes_every_file_of_the_run_before(tmp_path: Path) -> None:
    run(Squares(), Config(cells=2), folder=tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} >= {".svg", ".png", ".csv", ".jsonl"}
    before = (tmp_path / "results.jsonl").read_text()
    with pytest.raises(OtherResults, match="other options"):
        run(Squares(), Config(cells=3), folder=tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == before
    (tmp_path / "mine.txt").write_text("not a file of the run")
    run(Squares(), Config(cells=3), folder=tmp_path, overwrite=True, pictures=False)
    assert {path.name for path in tmp_path.iterdir()} == {
        FILE,
        "curves.csv",
        "curves.jsonl",
        "mine.txt",
        "results.csv",
        "results.jsonl",
        "run.json",
    }


def test_files_of_an_older_version_are_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(OtherResults, match=r"results\.jsonl of another run"):
        run(Squares(), Config(), folder=tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize("older", ["tables", "format"])
def test_a_store_of_another_version_is_replaced_only_on_request(tmp_path: Path, older: str) -> None:
    run(Squares(), Config(cells=2), folder=tmp_path, pictures=False)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as base, base:
        if older == "tables":
            base.execute("DROP TABLE cells")
            base.execute("CREATE TABLE cells (key TEXT PRIMARY KEY, place INTEGER NOT NULL)")
        base.execute("UPDATE about SET value = '1' WHERE name = 'format'")
    with pytest.raises(OtherResults, match="another version"):
        run(Squares(), Config(cells=2), folder=tmp_path, pictures=False)
    again = run(Squares(), Config(cells=2), folder=tmp_path, overwrite=True, pictures=False)
    assert again.finished
    assert again.taken_up == 0


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    config = Config(cells=3)
    here = run(Squares(), config).table
    there = run(Squares(), config, folder=tmp_path, pictures=False).table
    again = run(Squares(), config, folder=tmp_path, pictures=False)
    assert again.taken_up == 3
    for kind in here.kinds:
        for one, two, three in zip(here[kind], there[kind], again.table[kind], strict=True):
            assert same(one, two)
            assert same(two, three)
    assert isinstance(again.table["curves"][2].points, np.ndarray)


def test_export_gives_strict_json_and_csv(tmp_path: Path) -> None:
    run(Squares(), Config(cells=2), folder=tmp_path, pictures=False)
    before = contents(tmp_path)
    assert export(tmp_path, "jsonl") == ["results.jsonl", "curves.jsonl"]
    assert export(tmp_path, "csv") == ["results.csv", "curves.csv"]
    assert contents(tmp_path) == before

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row["limit"] for row in rows[:2]] == [None, None]
    table = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert float(table[0]["limit"]) == math.inf
    assert math.isnan(float(table[1]["limit"]))
    assert [float(row["square"]) for row in table] == [row["square"] for row in rows]
    assert (tmp_path / "curves.csv").read_text().splitlines()[0] == "number"
    with pytest.raises(StoreError, match="holds no results"):
        export(tmp_path / "nowhere", "csv")


def test_a_smaller_failure_probability_serves_a_larger_one() -> None:
    cell = Cell(failure_probability=1e-3)
    with Store(None, Identity.of("s", "1", {}, [cell])) as store:
        store.put(cell, pack([("results", {"x": 1.0})]), place=0)
        assert store.has(Cell(failure_probability=1e-2))
        assert not store.has(Cell(failure_probability=1e-4))
        store.put(Cell(failure_probability=1e-4), pack([("results", {"x": 2.0})]), place=0)
        assert store.has(Cell(failure_probability=1e-4))
        assert list(store.rows()) == [("results", {"x": 2.0})]
        store.put(cell, pack([("results", {"x": 3.0})]), place=0)
        assert list(store.rows()) == [("results", {"x": 2.0})]
        assert store.totals().failure_probability == 1e-4


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    class Never(Squares):
        def cells(self, config: Any, workbench: Any) -> list[Any]:
            raise AssertionError("cells were made")

    (tmp_path / "file").write_text("")
    for place in ("/proc/nothing", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="cannot be written"):
            driver.run(Never(), Config(), folder=Path(place))
