"""`attnscope reproduce`: the list, what it leaves, what it does not redo, and how it ends when one
figure fails, its data is missing, or a signal comes. The figures here take no time; those of the
papers have tests of their own.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

import attnscope
from attnscope.cli import main
from attnscope.studies import Cell, Table, Verdict, Workbench, drawing
from attnscope.studies.papers import Missing, PaperFigure, find

command = importlib.import_module("attnscope.cli.reproduce")
CALLS: list[tuple[str, int]] = []


class Value(NamedTuple):
    number: int
    value: float


@dataclass(frozen=True)
class Settings:
    cells: int = 5
    text: str = "alice"


@dataclass(frozen=True, kw_only=True)
class Number(Cell):
    number: int
    text: str


class First(PaperFigure):
    """Numbers are what they are."""

    name = "first"
    paper = "castin24"
    figure = "numbers"
    number = "Fig. 3"
    topic = "smoothness"
    seconds = (1.0, 7200.0)
    Config = Settings
    fast = Settings(cells=2)
    tables: ClassVar[dict[str, type]] = {"results": Value}

    def cells(self, config: Settings, workbench: Workbench) -> Iterable[Cell]:
        return [Number(number=number, text=config.text) for number in range(config.cells)]

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        CALLS.append((self.name, cell.number))
        return [Value(cell.number, 2.0 * cell.number)]

    def figures(self, table: Table) -> dict[str, Any]:
        figure = drawing.new_figure(2, 2)
        figure.subplots().plot([row.value for row in table])
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        right = all(row.value == 2 * row.number for row in table)
        return [Verdict("[doubled]", "they are", f"{len(table)} rows", right, "all")]


class Second(First):
    """Others."""

    name = "second"
    number = None
    topic = "dynamics"


class Fails(Second):
    """Fails in its second cell."""

    name = "fails"

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if cell.number:
            raise RuntimeError("a planted\nmistake")
        return super().run(cell, workbench)


class Needs(Second):
    """Needs what is not here."""

    name = "needs"

    def cells(self, config: Settings, workbench: Workbench) -> Iterable[Cell]:
        raise Missing("the data set is not here.")


class Stops(Second):
    """Asks to be stopped in its first cell."""

    name = "stops"

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if ("stops", 0) not in CALLS:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().run(cell, workbench)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *arguments])
    return int(end.value.code or 0)


def record() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(Path("reproduce/verdicts.json").read_text())
    return held


def states() -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in record()["figures"]}


@pytest.fixture(autouse=True)
def _planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    known = {made.name: made() for made in (First, Fails, Needs, Stops, Second)}
    monkeypatch.setattr(command, "find", lambda: known)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    CALLS.clear()


def test_the_list_says_where_each_figure_is_from_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("list") == 0
    shown = capsys.readouterr().out
    assert "castin24 Fig. 3" in shown
    assert "2.0 hours" in shown
    assert "5 figures" in shown
    assert run("list", "--markdown") == 0
    assert "| `second` | castin24, number not known | Others. |" in capsys.readouterr().out
    assert run("list", "first") == 2


def test_a_figure_leaves_rows_pictures_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("first", "second", "first") == 0
    shown = capsys.readouterr().out
    assert "[doubled]" in shown
    assert "2 of 2 figures finished; verdicts: 2 holds." in shown
    for name in ("first", "second"):
        there = {path.name for path in Path("reproduce", name).iterdir()}
        assert {"results.csv", f"{name}.svg", f"{name}.png", "run.json", "verdicts.json"} <= there
    with Path("reproduce/verdicts.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["figure"], line["verdict"]) for line in lines] == [
        ("first", "holds"),
        ("second", "holds"),
    ]
    assert record()["counts"] == {"holds": 2}
    assert record()["figures"][0]["number"] == "Fig. 3"


def test_a_finished_figure_is_not_redone_and_others_join_it() -> None:
    assert run("first") == 0
    picture = Path("reproduce/first/first.svg")
    before, calls = picture.stat().st_mtime_ns, list(CALLS)
    assert run("first", "second") == 0
    assert picture.stat().st_mtime_ns == before
    assert calls == [call for call in CALLS if call[0] == "first"]
    assert run("second") == 0
    assert states() == {"first": "finished", "second": "finished"}
    picture.unlink()  # half-written results are completed
    Path("reproduce/verdicts.json").write_text('{"figures": [{')
    assert run("first", "second") == 0
    assert picture.exists()
    assert len(CALLS) == 4


def test_a_figure_that_fails_or_misses_its_data_stops_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("fails", "needs", "first") == 1
    assert states() == {"fails": "failed", "needs": "missing", "first": "finished"}
    shown = capsys.readouterr().out
    assert "fails: failed. RuntimeError: a planted mistake" in shown
    assert "needs: missing. the data set is not here." in shown
    assert run("needs", "first") == 0  # what is missing is no failure


def test_a_signal_keeps_what_was_computed_and_the_same_command_goes_on() -> None:
    assert run("stops", "first") == 143
    assert states() == {"stops": "stopped", "first": "waiting"}
    assert CALLS == [("stops", 0)]
    assert run("stops", "first") == 0
    assert states() == {"stops": "finished", "first": "finished"}
    assert CALLS == [("stops", 0), ("stops", 1), ("first", 0), ("first", 1)]


def test_results_of_another_version_are_kept_and_redone_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("first") == 0
    rows = Path("reproduce/first/results.csv").read_text()
    monkeypatch.setattr(attnscope, "__version__", "99.0")
    assert run("first", "second") == 0
    shown = capsys.readouterr().out
    assert "first: kept." in shown
    assert "of attnscope" in shown
    assert "--redo replaces them" in shown
    assert states() == {"first": "finished", "second": "finished"}
    assert Path("reproduce/first/results.csv").read_text() == rows
    calls = len(CALLS)
    assert run("first", "second", "--redo") == 0
    assert len(CALLS) == calls + 2  # those of this version stay
    assert json.loads(Path("reproduce/first/run.json").read_text())["attnscope"] == "99.0"


def test_the_papers_settings_go_to_another_folder_and_say_how_long_they_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("all", "--full") == 143
    shown = capsys.readouterr().out
    assert "take about 10.0 hours" in shown
    assert Path("reproduce-full/first").is_dir()


def test_options_reach_the_figures_that_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("first", "--text", "other.txt", "--data", "folder") == 0
    assert "none of these figures reads --data" in capsys.readouterr().out
    options = json.loads(Path("reproduce/first/run.json").read_text())["options"]
    assert options["text"] == "other.txt"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["frist"], "did you mean 'first'"),
        (["first", "--markdown"], "--markdown goes with"),
        (["first", "--out", "file/sub"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert run(*arguments) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not Path("reproduce").exists()


def test_every_figure_says_what_it_shows_and_where_it_is_from() -> None:
    for figure in find().values():
        assert figure.says().endswith(".")
        assert 0 < figure.seconds[0] <= figure.seconds[1]
        assert figure.paper
        assert figure.figure
