"""Runs side by side: their own numbers, and a sentence where they cannot be compared."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope as asc
from attnscope.cli import main
from attnscope.models import Model, load
from attnscope.studies import drawing
from attnscope.studies.compare import Value, compare

transformers = pytest.importorskip("transformers")
IDS = torch.randint(0, 30, (60,), generator=torch.Generator().manual_seed(3))


def network(layers: int, scale: float) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: Any = transformers.BertModel(
            transformers.BertConfig(
                hidden_size=8,
                num_hidden_layers=layers,
                num_attention_heads=2,
                intermediate_size=12,
                vocab_size=30,
                max_position_embeddings=20,
            )
        ).eval()
        for parameter in module.parameters():
            parameter.data = scale * torch.randn_like(parameter)
    return load(module)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of two models, one of other lengths, one of another part; two traces."""
    place = tmp_path_factory.mktemp("runs")
    small, large = network(2, 0.3), network(3, 0.5)
    usual: dict[str, Any] = {"heads": "none", "bounds": False, "samples": 2, "tol": 1e-2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "available", lambda: False)  # pictures cost more than the runs
        asc.measure(small, IDS, [2, 6], folder=place / "small", **usual)
        asc.measure(large, IDS, [3, 6], folder=place / "large", **usual)
        asc.measure(small, IDS, [4], folder=place / "other lengths", **usual)
        asc.measure(small, IDS, [6], folder=place / "block", part="block", **usual)
        asc.measure(small, IDS[:30], [6], folder=place / "other text", **usual)
        asc.trace(small, IDS, n=6, folder=place / "trace-small")
        asc.trace(large, IDS, n=6, folder=place / "trace-large")
        asc.trace(large, IDS, n=5, folder=place / "trace-short")
    return place


def test_two_models_in_one_table(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(runs / name) for name in ("small", "large")]
    found = compare(names)
    (series,) = found.quantities
    for run, one in zip(found.runs, series, strict=True):
        for layer, value in one.values.items():
            rows = [r for r in run.table if (r.layer, r.n) == (layer, 6)]
            assert len(rows) == 2
            assert value.low == pytest.approx(sum(r.lower for r in rows) / 2)
            assert value.high == pytest.approx(sum(r.upper for r in rows) / 2)
    _, sheet = found.sheets()
    assert sheet.columns == ("layer", "A", "B", "B/A", "")
    assert [line[0] for line in sheet.lines] == ["0", "1", "2"]
    a, b = (series[i].values[1].low for i in (0, 1))
    assert sheet.lines[1][3] == f"{b / a:.3g}"
    assert sheet.lines[2][1] == sheet.lines[2][3] == ""
    with pytest.raises(SystemExit) as left:
        main(["compare", *names, "--out", str(tmp_path)])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert max(map(len, said.split("In ")[0].splitlines())) <= 80
    with (tmp_path / "compare.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5
    assert {line["run"] for line in lines} == set(names)
    assert (tmp_path / "compare.png").stat().st_size > 1000


def test_traces_are_compared_depth_by_depth(runs: Path) -> None:
    found = compare([runs / "trace-small", runs / "trace-large"])
    titles = [series[0].title for series in found.quantities]
    assert titles[:3] == ["RMS norm", "anisotropy", "effective rank"]
    small, large = found.quantities[1]
    assert small.values[2].low == found.runs[0].table.rows[2].anisotropy
    assert sorted(large.values) == [0, 1, 2, 3]


def test_brackets_that_are_apart_are_marked() -> None:
    assert Value(1.0, 1.1).apart(Value(1.2, 1.3))
    assert Value(1.2, 1.3).apart(Value(1.0, 1.1))
    assert not Value(1.0, 1.3).apart(Value(1.2, 1.4))
    assert not Value(1.0).apart(Value(9.0, 9.1))


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["small"], "takes 2 to 6 runs, got 1"),
        (["small", "small"], "given twice"),
        (["small", "nowhere"], "holds no results: there is no results.sqlite in it"),
        (["small", "trace-small"], "is a run of measure, and .* is not"),
        (["small", "other lengths"], r"no length in common \(2, 6 and 4\)"),
        (["small", "block"], "the part is 'attention' in one and 'block' in the other"),
        (["small", "other text"], "the text is 'ids .*' in one and"),
        (["trace-large", "trace-short"], r"different numbers of tokens \(6 and 5\)"),
    ],
)
def test_runs_that_cannot_be_compared_say_why(
    runs: Path, names: list[str], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compare", *(str(runs / name) for name in names)])
    assert left.value.code == 2
    assert re.search(match, " ".join(capsys.readouterr().err.split()))
