"""The driver, tables and figures, on a study of squares."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from toy_study import Config, Part, Squares

from attnscope.studies import Workbench, drawing, progress, run
from attnscope.studies.workbench import check_hash, hash_ids, hash_module

pytest.importorskip("matplotlib")


def test_the_record_and_the_sum_of_the_failure_probabilities(tmp_path: Path) -> None:
    config = Config(cells=4, failure_probability=0.01)
    outcome = run(Squares(), config, folder=tmp_path, options={"seed": 3})
    assert outcome.failure_probability == pytest.approx(0.01)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["study"] == "squares"
    assert record["options"] == {"seed": 3}
    assert record["finished"]
    assert record["cells"] == {"all": 4, "done": 4, "taken_up": 0}
    assert {"attnscope", "python", "torch", "numpy", "seconds"} <= set(record)
    assert sorted(outcome.files) == sorted(
        path.name for path in tmp_path.iterdir() if path.suffix != ".sqlite"
    )


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(Squares(), Config())
    assert len(outcome.table) == 24
    assert not list(tmp_path.iterdir())


def test_two_equal_cells_are_refused() -> None:
    class Twice(Squares):
        def cells(self, config: Any, workbench: Workbench) -> list[Any]:
            return [*super().cells(config, workbench)] * 2

    with pytest.raises(ValueError, match="two cells of this run are the same"):
        run(Twice(), Config())


def test_rows_that_would_not_come_back_are_refused() -> None:
    class Tensors(Squares):
        def run(self, cell: Any, workbench: Workbench) -> list[Any]:
            return [row._replace(square=torch.ones(1)) for row in super().run(cell, workbench)[:1]]

    with pytest.raises(TypeError, match=r"Square.square must be .*\.item\(\)"):
        run(Tensors(), Config())


def test_without_matplotlib_the_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "available", lambda: False)
    outcome = run(Squares(), Config(cells=1), folder=tmp_path)
    assert outcome.remarks == ['Figures need matplotlib: pip install "attnscope[plot]".']
    assert (tmp_path / "results.csv").exists()
    with pytest.raises(ImportError, match="attnscope\\[plot\\]"):
        outcome.table.plot()


def test_figures_are_pure_and_titles_survive_any_name() -> None:
    table = run(Squares(), Config(cells=2)).table
    pictures = [drawing.as_svg(table.plot()) for _ in range(2)]
    assert pictures[0] == pictures[1]
    assert b"costs $5 and [b]$6" in pictures[0]
    assert drawing.as_png(table.plot("squares"))[:4] == b"\x89PNG"
    assert len(drawing.safe("x" * 500)) == drawing.LONGEST_NAME
    assert drawing.heading("a/b/minilm", "alice", "softmax", 8) == "minilm, alice, softmax, n = 8"


def test_the_table_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    table = run(Squares(), Config(cells=2)).table
    assert "&lt;squares&gt;" in table._repr_html_()
    assert repr(table) == "Table(squares: 6 results, 2 curves)"
    assert [row.number for row in table] == list(range(6))
    assert table.verdicts()[0].outcome == "holds"
    with pytest.raises(KeyError, match="results, curves"):
        table["nothing"]

    class Frame(list[Any]):
        def __init__(self, rows: list[Any], columns: list[str]) -> None:
            super().__init__(rows)
            self.columns = columns

    stand_in = type(sys)("pandas")
    stand_in.DataFrame = Frame  # type: ignore[attr-defined]
    stand_in.__spec__ = type(sys.__spec__)("pandas", None)  # type: ignore[call-arg]
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    frame = table.to_pandas()
    assert frame.columns == ["number", "square", "limit"]
    assert len(frame) == 6
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        table.to_pandas()


def test_the_bar_comes_late_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(after: float) -> str:
        monkeypatch.setattr(progress, "SHOWN_AFTER", after)
        console = Console(file=io.StringIO(), force_terminal=True)
        run(Squares(), Config(cells=4, seconds=0.15), console=console)
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert printed(60.0) == ""
    assert "cell " in printed(0.0)


def test_cells_are_names_and_numbers() -> None:
    part = Part(number=1, rows=2, seconds=0.5, failure_probability=0.1)
    assert Part.from_dict(json.loads(json.dumps(part.as_dict()))) == part
    assert part.key == Part(number=1, rows=2, seconds=0.5).key
    assert part.key != Part(number=2, rows=2, seconds=0.5).key
    for wrong in (torch.ones(1), float("nan"), [1], {"a": 1}):
        with pytest.raises((TypeError, ValueError), match=r"Part\.seconds must be"):
            Part(number=1, rows=2, seconds=wrong)  # type: ignore[arg-type]


def test_the_workbench_loads_once_and_checks_hashes(tmp_path: Path) -> None:
    workbench, file = Workbench(), tmp_path / "text.txt"
    file.write_text("one two")
    assert workbench.text(str(file)) == "one two"
    file.write_text("three")
    assert workbench.text(str(file)) == "one two"
    with pytest.raises(ValueError, match="changed since this run began"):
        Workbench().text(str(file), expected="0" * 64)
    check_hash("x", "a", "a")
    assert hash_ids(torch.tensor([1, 2])) != hash_ids(torch.tensor([2, 1]))
    assert hash_ids(torch.tensor([1, 2])) == hash_ids(torch.tensor([1, 2], dtype=torch.int32))


def test_the_hash_of_a_network_sees_weights_buffers_and_settings() -> None:
    def network(eps: float = 1e-5) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, eps=eps))

    with torch.random.fork_rng():
        first, same, other, moved, shifted = (
            network(eps) for eps in (1e-5, 1e-5, 1e-3, 1e-5, 1e-5)
        )
    moved[0].weight.data[1, 2] += 1e-7
    shifted[1].running_mean[0] = 1e-7
    hashes = [hash_module(net) for net in (first, other, moved, shifted)]
    assert len(set(hashes)) == 4
    assert hash_module(same) == hashes[0]
