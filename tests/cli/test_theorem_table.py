"""`attnscope theorems`: the table of what is proved."""

from __future__ import annotations

from typer.testing import CliRunner

from attnscope.bounds import theorems
from attnscope.cli import app
from attnscope.cli.theorems import COLUMNS, rows


def test_every_theorem_is_a_row() -> None:
    assert [row[0] for row in rows()] == [known.name for known in theorems()]
    assert all(len(row) == len(COLUMNS) and all(row) for row in rows())
    by_name = {row[0]: row for row in rows()}
    assert by_name["M1'"][2:] == ("OnBall", "softmax, no mask", "M1 for p = 2")
    assert by_name["norm layer"][3] == "-"


def test_the_command_prints_the_table() -> None:
    result = CliRunner().invoke(app, ["theorems"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Sinkhorn-M1" in result.output


def test_the_table_as_markdown() -> None:
    result = CliRunner().invoke(app, ["theorems", "--markdown"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 2 + len(theorems())
