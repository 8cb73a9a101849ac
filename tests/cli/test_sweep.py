"""`attnscope sweep` as a user runs it: a study file, a plan, rows that do not depend on who
computed them, failures with their reason, and nothing twice.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from test_measure import folder, run

from attnscope.cli._study_file import read_study
from attnscope.cli.status import lines
from attnscope.studies.lock import at_work, only_one
from attnscope.studies.status import Status, status
from attnscope.studies.sweep import SweepConfig
from attnscope.studies.sweep.plan import check

__all__ = ["folder"]  # the tiny GPT-2 that measure's tests run on

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("without_pictures")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name of a folder, however long, breaks a sentence or shortens a cell of a table."""
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def study(folder: Path, tmp_path: Path) -> Path:
    """The model on its text and on another one, in two parts; a text stands beside the study."""
    shutil.copy(folder / "text.txt", tmp_path / "beside.txt")
    text = (folder / "text.txt").read_text()
    (tmp_path / "other.txt").write_text(" ".join(reversed(text.split())))
    file = tmp_path / "tiny.toml"
    file.write_text(
        f'models = ["{folder}"]\n'
        'texts = ["beside.txt", "other.txt"]\n'
        'parts = ["attention", "block"]\n'
        'lengths = "2:5:2"\nsamples = 2\nshard = 1\nfailure_probability = 1e-3\n'
    )
    return file


def rows(out: Path, name: str = "results.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def test_local_workers_give_the_rows_of_one_process(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ("--cache", tmp_path / "cache")
    assert run("sweep", study, "--dry-run") == 0
    planned = capsys.readouterr().out
    assert "18 cells: 1 model x 2 maps x 2 texts x 2 lengths x 2 samples." in planned
    assert "A rough estimate: " in planned
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("beside.txt", "other.txt", "tiny.toml"),
    ]
    here, there, known = tmp_path / "here", tmp_path / "there", tmp_path / "known"
    assert run("sweep", study, "--engine", "here", "--out", here, "--cache", "off") == 0
    printed = capsys.readouterr().out
    assert "4 sweeps" in printed
    assert "hold together but with probability 0.001." in printed
    found = rows(here)
    assert len(found) == 2 * 2 * 2 * 2 * 2  # texts, parts, lengths, samples, layers
    assert {row["text"] for row in found} == {
        str(tmp_path / n) for n in ("beside.txt", "other.txt")
    }
    assert all(row["lower"] <= row["upper"] for row in found)
    assert {(row["part"], row["n"]) for row in rows(here, "bounds.jsonl")} == {("attention", 4)}
    assert run("sweep", study, "--workers", 2, "--out", there, *cache) == 0
    for name in ("results.jsonl", "bounds.jsonl", "directions.jsonl", "results.csv"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    capsys.readouterr()
    assert run("sweep", study, "--engine", "here", "--out", known, *cache) == 0
    assert "18 cells were there already." in capsys.readouterr().out
    assert (known / "results.csv").read_bytes() == (here / "results.csv").read_bytes()
    assert run("export", here, "--layer", 1, "--length", "2", "--format", "jsonl") == 0
    some = rows(here, "results-some.jsonl")
    assert {(row["layer"], row["n"]) for row in some} == {(1, 2)}


def test_measure_finds_what_a_sweep_knows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = folder / "text.txt"
    file = tmp_path / "study.toml"
    file.write_text(
        f'models = ["{folder}"]\ntexts = ["{text}"]\nlengths = [2, 4]\nsamples = 2\nshard = 2\n'
    )
    cache = ("--cache", tmp_path / "cache")
    assert run("sweep", file, "--engine", "here", "--out", tmp_path / "sweep", *cache) == 0
    options = ("--text", text, "--lengths", "2,4", "--samples", 2, "--heads", "none")
    capsys.readouterr()
    assert run("measure", folder, *options, "--out", tmp_path / "measure", *cache) == 0
    assert "3 cells were there already." in capsys.readouterr().out


def test_what_cannot_be_measured_fails_with_its_reason_and_is_tried_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, late = tmp_path / "out", tmp_path / "late"
    file = tmp_path / "study.toml"
    file.write_text(
        f'models = ["late", "{folder}"]\ntexts = ["{folder / "text.txt"}"]\nlengths = [2, 3]\n'
        "samples = 1\n"
    )
    late.mkdir()
    again = ("sweep", file, "--engine", "here", "--out", out, "--cache", "off")
    assert run(*again) == 1
    printed = capsys.readouterr().out
    assert "Cannot be measured: " in printed
    assert "One cell failed, because" in printed
    assert {row["model"] for row in rows(out)} == {str(folder)}
    found = status(out)
    assert (found.failed, found.finished, found.left) == (1, 3, 0)
    assert run("status", out) == 0
    assert "1 failed: " in capsys.readouterr().out
    shutil.copytree(folder, late, dirs_exist_ok=True)
    assert run(*again, "--retry", "failed") == 0
    assert [row["model"] for row in rows(out)][:1] == [str(late)]
    assert len(rows(out)) == 2 * len(rows(out)) // 2 == 8
    assert "3 cells were there already." in capsys.readouterr().out
    assert status(out).failed == 0
    (late / "config.json").unlink()
    file.write_text(f'models = ["late"]\ntexts = ["{folder / "text.txt"}"]\nlengths = [2]\n')
    assert run("sweep", file, "--out", tmp_path / "none") == 2  # there is nothing to do at all


def test_spans_are_swept_like_parts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        f'models = ["{folder}"]\ntexts = ["{folder / "text.txt"}"]\nlengths = [3]\nsamples = 2\n'
        'parts = []\nspans = [[0, 2], [1, "final"]]\n'
    )
    cache = ("--cache", tmp_path / "cache")
    assert run("sweep", file, "--engine", "here", "--out", tmp_path / "out", *cache) == 0
    printed = capsys.readouterr().out
    assert "4 cells: 1 model x 2 maps" in printed
    assert "1 to final" in printed
    found = rows(tmp_path / "out", "spans.jsonl")
    assert [(row["start"], row["stop"], row["sequence"]) for row in found] == [
        *(("0", "2", 0), ("0", "2", 1), ("1", "final", 0), ("1", "final", 1)),
    ]
    assert all(row["lower"] <= row["upper"] for row in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model = ['minilm']", "unknown key 'model': did you mean 'models'?"),
        ("length = [8]", "did you mean 'lengths'?"),
        ("models = 'minilm'", 'models must be names such as ["a", "b"]'),
        ("models = []", "models must hold at least one entry"),
        ("models = ['a', 'a']", "each entry once, got 'a' again"),
        ("lengths = [8.5]", "lengths must be whole numbers"),
        ("lengths = '8:4'", "holds no number"),
        ("samples = '2'", "samples must be a int"),
        ("samples = 0", "samples must be at least 1"),
        ("parts = ['brain']", "part must be one of"),
        ("estimate = true\nfailure_probability = 0.1", "not both"),
        ("failure_probability = 2", "strictly between 0 and 1"),
        ("models = [", "is not TOML"),
        ("spans = ['0:2']", "spans must be pairs of places"),
        ("spans = [['a', 'b']]", "a place is a layer number or"),
        ("parts = []", "parts must hold at least one entry"),
    ],
)
def test_a_mistake_in_a_study_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(content)
    assert run("sweep", file, "--dry-run") == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_mistakes_in_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "study.toml"
    file.write_text('models = ["minilm"]\nlengths = [8, 16]\nsamples = 2\n')
    for options, message in (
        (("--engine", "cloud"), "--engine must be one of here, local, dask"),
        (("--engine", "dask"), "--scheduler ADDRESS goes with --engine dask"),
        (("--engine", "here", "--workers", 2), "--workers goes with --engine local"),
        (("--retry", "all"), "--retry takes the word failed"),
    ):
        assert run("sweep", file, *options) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert run("sweep", tmp_path / "nowhere.toml") == 2
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err
    assert read_study(file) == SweepConfig(("minilm",), lengths=(8, 16), samples=2)
    file.write_text("estimate = true\nheads = 'all'\nlayers = 'all'")
    assert (read_study(file).failure_probability, read_study(file).tol) == (None, 1e-6)


def test_the_examples_are_studies() -> None:
    examples = {path.stem: read_study(path) for path in (ROOT / "examples").glob("*.toml")}
    assert len(examples) >= 2
    figure = examples["papers-figure"]
    assert (len(figure.lengths), figure.samples, figure.released) == (49, 10, True)
    for config in examples.values():
        check(config)


def hold(folder: Path, end: Event) -> None:
    with only_one(folder, lambda: True, print):
        end.wait(600)


def test_a_second_driver_waits_and_says_so(tmp_path: Path) -> None:
    """The first one works for as long as the test wants it to, on however busy a machine."""
    context = multiprocessing.get_context("fork")
    end = context.Event()
    first = context.Process(target=hold, args=(tmp_path, end))
    first.start()
    while not at_work(tmp_path):
        assert first.is_alive()
        time.sleep(0.01)
    said: list[str] = []
    with only_one(tmp_path, lambda: False, said.append) as mine:
        assert not mine  # it was told to wait no longer
    with only_one(tmp_path, lambda: end.set() is None, said.append) as mine:
        assert mine
        first.join(600)
        assert not first.is_alive()
    assert said == [f"Another run is at work in {tmp_path}: waiting for it to end."] * 2
    assert not at_work(tmp_path)


def test_the_lines_of_a_status() -> None:
    told = lines(Status("sweep", True, 100, 40, 400, 2, [("why", 2)], 60.0, 1e-7, 0.5))
    assert told[0] == "sweep, at work: 40 of 100 cells done, 2 failed, 58 to go."
    assert told[3] == "30 cells/min, about 2 minutes left."
    assert told[4] == "2 failed: why"
