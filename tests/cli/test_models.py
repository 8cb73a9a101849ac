"""`attnscope models`: the table is what tiny networks show."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from attnscope.cli import app
from attnscope.models import ARCHITECTURES, table


def test_rows_say_what_was_tried() -> None:
    rows = {row.architecture: row for row in table(["mpnet", "qwen3", "falcon", "gpt2"])}
    assert rows["qwen3"] == ("qwen3", "", "yes", "yes", "at a point", "all")
    assert rows["gpt2"][1:5] == ("gpt2.py", "yes", "yes", "at a point, on a ball")
    assert rows["mpnet"][1:5] == ("bert.py", "no", "yes", "on a ball")
    assert rows["falcon"][2:5] == ("no", "no", "no")


def test_the_command_prints_them() -> None:
    result = CliRunner().invoke(app, ["models", "electra", "--markdown"])
    assert result.exit_code == 0
    assert "| electra |  | yes | yes | at a point | all |" in result.stdout


def test_a_type_that_nobody_knows_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="no tiny network of 'nonsense' could be made"):
        list(table(["nonsense"]))


def test_no_type_is_listed_twice() -> None:
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 45
