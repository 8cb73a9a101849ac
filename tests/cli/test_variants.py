"""`attnscope variants`: the table of what the folder holds."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from attnscope import variants
from attnscope.cli import app, main
from attnscope.cli.variants import COLUMNS, rows


def test_there_is_a_row_for_every_variant() -> None:
    assert [row[0] for row in rows()] == sorted(variants())
    assert {len(row) for row in rows()} == {len(COLUMNS)}


@pytest.mark.parametrize(
    ("name", "closed", "normalised"),
    [
        ("softmax", "yes", "yes"),
        ("l2", "yes", "yes"),
        ("sinkhorn", "yes", "yes"),
        ("linear", "yes", "no"),
        ("sigmoid", "no", "no"),
        ("exponential", "no", "no"),
    ],
)
def test_the_rows_say_what_is_known(name: str, closed: str, normalised: str) -> None:
    (row,) = [dict(zip(COLUMNS, row, strict=True)) for row in rows() if row[0] == name]
    assert (row["closed form"], row["normalised"], row["reference"]) == (
        closed,
        normalised,
        variants()[name].reference,
    )


def test_the_table_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["variants"])
    assert result.exit_code == 0
    assert "…" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    for row in rows():
        assert row[0] in result.output
        assert row[-1] in result.output


def test_markdown_has_one_line_per_variant() -> None:
    result = CliRunner().invoke(app, ["variants", "--markdown"])
    assert result.output.splitlines()[0] == "| " + " | ".join(COLUMNS) + " |"
    assert len(result.output.splitlines()) == 2 + len(variants())


def test_a_mistake_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> str:
        raise ValueError("expected [this], got that")

    monkeypatch.setattr("attnscope.cli.variants.as_markdown", broken)
    with pytest.raises(SystemExit) as stop:
        main(["variants", "--markdown"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.strip() == "attnscope: expected [this], got that"


def test_the_command_is_installed() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from attnscope.cli import main; main(['--version'])"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0
    assert run.stdout.startswith("attnscope ")
