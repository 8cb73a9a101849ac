"""`attnscope models`: the table is what tiny networks show."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnscope.cli import app
from attnscope.models import ARCHITECTURES, COLUMNS, table


def test_rows_say_what_was_tried() -> None:
    rows = {row.architecture: row for row in table(["mpnet", "falcon", "gpt2"])}
    assert rows["gpt2"][1:5] == ("gpt2.py", "yes", "in one stack", "at a point, on a ball")
    assert rows["mpnet"][1:5] == ("bert.py", "no", "in one stack", "on a ball")
    assert rows["falcon"][2:5] == ("no", "no", "no")


PARTS = {
    "gpt2": ("f(N(x))", "x + f(N(x))", "x + f(N(x))"),
    "bert": ("N(x + f(x))", "x + f(x)", "N(x + f(x))"),
    "gemma2": ("M(f(N(x)))", "x + M(f(N(x)))", "x + M(f(N(x)))"),
    "olmo2": ("N(f(x))", "x + N(f(x))", "x + N(f(x))"),
    "phi": ("f(N(x))", "x + f(N(x))", "x"),
}


def test_the_table_of_the_docs_is_up_to_date() -> None:
    """Every type has its line, in order; one of each kind of block is tried again."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    lines = page[page.index("| architecture |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(cells[0]) == COLUMNS
    written = {row[0]: tuple(row) for row in cells[2:]}
    assert tuple(written) == ARCHITECTURES
    for row in table(list(PARTS)):
        assert written[row.architecture] == row
        assert row[-3:] == PARTS[row.architecture]


def test_the_command_prints_them() -> None:
    result = CliRunner().invoke(app, ["models", "electra", "--markdown"])
    assert result.exit_code == 0
    assert "| electra |  | yes | in one stack | at a point | all | N(x + f(x)) |" in result.stdout


def test_a_type_that_nobody_knows_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="no tiny network of 'nonsense' could be made"):
        list(table(["nonsense"]))


def test_no_type_is_listed_twice() -> None:
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 45
