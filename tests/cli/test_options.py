"""What every command asks of its options, and how a mistake is told: one line, exit code 2."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console

from attnscope import cli
from attnscope.cli import app, main
from attnscope.cli._options import MOST_NUMBERS, check, fraction, numbers
from attnscope.cli._run import show
from attnscope.studies.study import Sheet


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("attnscope: ")
    return told


@pytest.mark.parametrize("command", ["measure", "attack", "certify", "train"])
def test_more_threads_than_a_machine_can_use_are_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["minilm"] if command == "measure" else []
    told = refusal(capsys, command, *model, "--threads", "100000")
    assert f"from 1 to {4 * (os.cpu_count() or 1)}" in told


@pytest.mark.parametrize("command", ["measure", "attack", "certify", "train", "flow", "invert"])
def test_seeds_beyond_the_range_of_generators_are_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["minilm"] if command == "measure" else []
    assert "from 0 to 4294967295" in refusal(capsys, command, *model, "--seed", "4294967296")


@pytest.mark.parametrize("device", ["meta", "nonsense", "", "cuda:x", "mkldnn"])
def test_a_device_that_cannot_compute_is_refused(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cannot be used here" in refusal(capsys, "train", "--device", device)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tol", float("nan"), "--tol must be a finite number"),
        ("half_width", float("inf"), "--half-width must be a finite number"),
        ("particles", 10**30, "--particles must be a whole number up to"),
        ("out", "a\0b", "zero bytes"),
        ("out", "x/" * 900, "must not lie more than 200 folders deep, got 900"),
    ],
)
def test_values_that_no_command_can_use(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check({name: value})


def test_good_values_pass() -> None:
    check({"threads": 1, "seed": 2**32 - 1, "tol": 1e-3, "device": "cpu", "out": "x", "flag": True})


def test_the_parser_still_sees_the_options_of_every_command() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        own = importlib.import_module(f"attnscope.cli.{name}").command
        named = list(inspect.signature(own).parameters)
        assert [each.name for each in command.params if each.name != "help"] == named


@pytest.mark.parametrize(
    "given", ["2:100000000000", "0:1000000000000000000000:3", f"0:{MOST_NUMBERS},{MOST_NUMBERS}"]
)
def test_ranges_are_counted_before_they_are_built(given: str) -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_NUMBERS} numbers"):
        numbers("--lengths", given)


def test_the_count_of_a_range_is_exact() -> None:
    assert numbers("--lengths", "2:11:3,5:2,7") == [2, 5, 7, 8]
    assert len(numbers("--lengths", f"0:{2 * MOST_NUMBERS}:2")) == MOST_NUMBERS


@pytest.mark.parametrize(("given", "value"), [("36/255", 36 / 255), (" 0.5 ", 0.5), ("1e-3", 1e-3)])
def test_fractions(given: str, value: float) -> None:
    assert fraction("--eps", given) == value


@pytest.mark.parametrize(
    "given", ["1/0", "1e400", "nan", "", "a", "1/2/3", "1e99999999", "1/inf/2"]
)
def test_fractions_that_are_none(given: str) -> None:
    with pytest.raises(ValueError, match="--eps must be a"):
        fraction("--eps", given)


def planted(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(args: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)


@pytest.mark.parametrize("name", ["[red]", "[/red]", "a[b]c", ":smile:", "x\udcff", "\x1b[31m"])
def test_any_name_can_be_told(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(monkeypatch, ValueError(f"there is no {name}."))
    told = refusal(capsys)
    assert "[31m" in told or name.encode("utf-8", "backslashreplace").decode() in told


def test_a_long_name_does_not_fill_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(monkeypatch, ValueError(f"there is no {'x' * 10_000}:\n\nchoose another."))
    told = refusal(capsys)
    assert len(told) < 1100
    assert told.endswith("choose another.\n")


@pytest.mark.parametrize("size", [10**15, 10**19 // 8 - 1])
def test_too_little_memory_is_a_sentence(
    size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda args: torch.empty(size, dtype=torch.float64))
    assert "more memory than there is" in refusal(capsys)


def test_an_unknown_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        main([])


def test_a_reader_that_leaves_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(monkeypatch, BrokenPipeError())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 141
    assert capsys.readouterr().err == ""


def test_a_terminal_of_ascii_shows_tables() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attnscope", "theorems"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [["--" + 9000 * "a"], ["flow", 9000 * "a"], ["flow", "--" + 9000 * "a"], [9000 * "a"]]
)
def test_what_the_parser_cannot_read_is_quoted_in_part(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "aaa" in told
    assert "Usage: " in told
    assert told.count("a") < 1200


def test_tables_keep_short_columns_whole_on_a_narrow_terminal() -> None:
    """The widest column breaks: names and numbers beside it are still there."""
    lines = [("36/255", "the control, smoothed", "90.0", "layer-wise 6, margin form 1, NT4 11")]
    lines.append(("", "this network", "95.0", "a second order of the margin, layer by layer"))
    seen = io.StringIO()
    show(Console(file=seen, width=60), Sheet("", ("eps", "network", "clean", "by"), lines))
    for word in ("eps", "36/255", "the control, smoothed", "this network", "clean", "90.0", "95.0"):
        assert word in seen.getvalue()
    assert "…" not in seen.getvalue()
