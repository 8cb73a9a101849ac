"""Spans as a study and a command: rows against dense Jacobians, the product of the pieces, mistakes
in one sentence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.cli import main
from attnscope.models import Model, load
from attnscope.studies import Workbench, run
from attnscope.studies.measure.door import put_model, put_text
from attnscope.studies.span import SpanConfig, SpanRow, Spans

transformers = pytest.importorskip("transformers")
IDS = torch.randint(0, 30, (40,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 with its head, and ids in a file."""
    place = tmp_path_factory.mktemp("model")
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 30}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: Any = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
        )
        for parameter in module.parameters():
            parameter.data = 0.4 * torch.randn_like(parameter)
    module.save_pretrained(place)
    (place / "ids.txt").write_text(" ".join(map(str, IDS.tolist())))
    return place


def measured(model: Model, **options: Any) -> Any:
    workbench = Workbench()
    name, kind = put_model(workbench, model, {})
    config = SpanConfig(name, put_text(workbench, name, IDS), **kind, **options)
    return run(Spans(), config, workbench=workbench).table


def test_rows_are_those_of_dense_jacobians(folder: Path) -> None:
    model = load(str(folder), dtype=torch.float64)
    options = {"stop": "next", "lengths": (3, 5), "samples": 2, "top": 2, "tol": 1e-6}
    table = measured(model, **options)
    rows: list[SpanRow] = table.rows
    assert [(row.n, row.sequence) for row in rows] == [(3, 0), (3, 1), (5, 0), (5, 1)]
    row = rows[1]
    left, sigma, right = torch.linalg.svd(model.jacobian((0, "next"), IDS[3:6]).to_dense())
    assert row.lower == pytest.approx(float(sigma[0]), rel=1e-6)
    assert row.upper is not None
    assert row.upper >= float(sigma[0]) * (1 - 1e-9)
    values = [v.value for v in table["values"] if (v.n, v.sequence) == (3, 1)]
    assert values == pytest.approx(sigma[:2].tolist(), rel=1e-6)
    carriers = [c for c in table["directions"] if (c.n, c.sequence) == (3, 1)]
    expected = right[0].reshape(3, 8).square().sum(-1)
    assert [c.carried for c in carriers] == pytest.approx(expected.tolist(), abs=1e-3)
    assert [c.received for c in carriers] == [None] * 3
    logits = [one for one in table["logits"] if (one.n, one.sequence) == (3, 1)]
    assert logits[0].id == int(left[:, 0].abs().argmax())
    pieces = [p for p in table["pieces"] if (p.n, p.sequence) == (3, 1)]
    assert [(p.start, p.stop) for p in pieces] == [
        *(("0", "1"), ("1", "last"), ("last", "final"), ("final", "next")),
    ]
    product = 1.0
    for piece in pieces:
        places = [int(p) if p.isdecimal() else p for p in (piece.start, piece.stop)]
        dense = model.jacobian((places[0], places[1]), IDS[3:6]).to_dense()  # type: ignore[arg-type]
        assert piece.lower == pytest.approx(float(torch.linalg.svdvals(dense)[0]), rel=1e-6)
        assert piece.upper is not None
        product *= piece.upper
    assert row.product == pytest.approx(product)
    assert row.product >= row.lower
    assert row.largest == max(p.lower for p in pieces)


def test_a_span_of_one_block_is_its_only_piece(folder: Path) -> None:
    table = measured(load(str(folder)), start="1", stop="2", lengths=(4,), failure_probability=None)
    (row,) = table.rows
    assert (row.product, row.largest_piece, row.upper) == (None, None, None)
    assert table["pieces"] == []
    model = load(str(folder), dtype=torch.float64)
    block = model.jacobian(1, IDS[:4], part="block").to_dense()
    assert row.lower == pytest.approx(float(torch.linalg.svdvals(block)[0]), rel=2e-2)


def test_the_command_measures_a_span(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = ["--from", "0", "--to", "next", "--lengths", "6", "--top", "2"]
    with pytest.raises(SystemExit) as left:
        main(["measure", str(folder), "--ids", str(folder / "ids.txt"), "--out", str(out), *asked])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "from 0 to next" in said
    assert "Which logits of the next token it moves" in said
    assert max(map(len, said.split("In ")[0].splitlines())) <= 80
    (row,) = map(json.loads, (out / "results.jsonl").read_text().splitlines())
    assert 0 < row["lower"] <= row["upper"] <= row["product"]
    assert (out / "span.svg").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--from", "2", "--to", "1"], "a span must end after it begins, got one from 2 to 1"),
        (["--to", "9"], "a number from 0 to 2, its number of layers, or last"),
        (["--from", "x", "--to", "last"], "got 'x'"),
        (["--to", "last", "--part", "mlp"], "leave out --part"),
        (["--top", "3"], "--top is for spans"),
        (["--to", "last", "--lengths", "99"], "at most 16 tokens"),
        (["--to", "last", "--tol", "0"], "tol must be"),
        (["--to", "last", "--certify", "2"], "strictly between 0 and 1"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    match: str,
) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(SystemExit) as left:
        main(["measure", str(folder), "--ids", str(folder / "ids.txt"), *options, "--out", out])
    assert left.value.code == 2
    assert match in " ".join(capsys.readouterr().err.split())


def test_ids_beyond_the_vocabulary_are_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "large.txt").write_text("1 2 3 4 5 6 7 999")
    asked = ["--ids", str(tmp_path / "large.txt"), "--to", "last", "--lengths", "8"]
    with pytest.raises(SystemExit) as left:
        main(["measure", str(folder), *asked, "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert "ids must lie in 0.." in " ".join(capsys.readouterr().err.split())
