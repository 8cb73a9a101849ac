"""The sweep over a real architecture: every number against a dense Jacobian, rows that say where
they come from.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope import Attention, LinearOperator, Particles, SpectralNorm, spectral_norm
from attnscope.models import PARTS, Model, Part, load
from attnscope.studies import Workbench, drawing, run
from attnscope.studies.measure import BoundRow, Measure, MeasureConfig, Row, measure
from attnscope.studies.measure.summary import sheets, summarise, tightest
from attnscope.studies.study import same

transformers = pytest.importorskip("transformers")


def tiny(kind: str) -> Model:
    sizes = {"vocab_size": 50, "max_position_embeddings": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            module = transformers.GPT2Model(
                transformers.GPT2Config(
                    n_embd=12,
                    n_layer=2,
                    n_head=3,
                    n_positions=64,
                    vocab_size=50,
                    attn_implementation="eager",
                )
            )
        else:
            module = transformers.BertModel(
                transformers.BertConfig(
                    hidden_size=12,
                    num_hidden_layers=2,
                    num_attention_heads=3,
                    intermediate_size=20,
                    attn_implementation="eager",
                    **sizes,
                )
            )
        for parameter in module.parameters():
            parameter.data = 0.3 * torch.randn_like(parameter)
    return load(module.eval(), dtype=torch.float64)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(3))


def dense_norm(model: Model, layer: int, part: Part, sequence: Tensor) -> float:
    x = model.tokens(sequence, layer, part)
    jacobian = torch.func.jacrev(model.function(layer, part))(x).reshape(x.numel(), x.numel())
    return float(torch.linalg.svdvals(jacobian.detach())[0])


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("part", PARTS)
def test_every_part_equals_the_dense_jacobian(kind: str, part: Part, ids: Tensor) -> None:
    model = tiny(kind)
    table = measure(
        model,
        ids,
        [1, 5],
        samples=2,
        part=part,
        heads="none",
        tol=1e-10,
        failure_probability=1e-3,
    )
    rows = table.rows
    assert len(rows) == 8
    for row in rows:
        truth = dense_norm(model, row.layer, part, ids[row.start : row.start + row.n])
        assert row.start == row.sequence * row.n
        assert row.lower == pytest.approx(truth, rel=1e-8)
        assert row.upper is not None
        assert row.lower <= truth * (1 + 1e-12) <= row.upper * (1 + 1e-12)
        assert row.converged
        read = model.tokens(ids[row.start : row.start + row.n], row.layer, "attention")
        assert row.radius == pytest.approx(float(read.square().sum(-1).mean().sqrt()))
        assert row.largest_norm == pytest.approx(float(read.norm(dim=-1).max()))
    bounded = set() if part in ("mlp", "block") else {0, 1}
    assert {bound.layer for bound in table["bounds"]} == bounded
    for layer in {bound.layer for bound in table["bounds"]}:
        first = next(row for row in rows if (row.layer, row.n, row.sequence) == (layer, 5, 0))
        best = tightest([bound for bound in table["bounds"] if bound.layer == layer])
        assert best is not None
        assert best.value >= first.upper * (1 - 1e-6)


def test_heads_and_the_released_estimator(ids: Tensor) -> None:
    model = tiny("gpt2")
    rows = measure(model, ids, [3, 6], layers=[1], samples=2, released=True, bounds=False).rows
    assert [row.head for row in rows if row.n == 3] == [None, None]
    assert {row.head for row in rows if row.n == 6} == {None, 0, 1, 2}
    heads = model.attention(1).heads
    for row in rows:
        x = model.tokens(ids[row.start : row.start + row.n], 1)
        attention = (
            model.attention(1)
            if row.head is None
            else type(model.attention(1))(heads.select(row.head), causal=True)
        )

        def layer(x: Tensor, attention: Attention = attention) -> Tensor:
            return attention.dense(x, Particles(torch.zeros_like(x)).at(x))

        value, pull = torch.func.vjp(layer, x)
        assert row.released_estimator == pytest.approx(
            math.sqrt(float(pull(value)[0].norm())), rel=1e-6
        )
        jacobian = torch.func.jacrev(layer)(x).reshape(x.numel(), x.numel())
        assert row.lower == pytest.approx(float(torch.linalg.svdvals(jacobian)[0]), rel=1e-5)


def test_the_calls_share_the_failure_probability(
    ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("attnscope.studies.measure.sweep")
    shares: list[float] = []

    def noted(op: LinearOperator, **options: Any) -> SpectralNorm:
        shares.append(options["failure_probability"])
        return spectral_norm(op, **options)

    monkeypatch.setattr(module, "spectral_norm", noted)
    options: dict[str, Any] = {"samples": 3, "failure_probability": 0.01, "bounds": False}
    for shard, calls in ((None, 2 + 2 * 2), (2, 2 * (2 + 2 * 2))):  # heads are one stack
        shares.clear()
        measure(tiny("gpt2"), ids, [2, 4], shard=shard, **options)
        assert len(shares) == calls
        assert sum(shares) == pytest.approx(0.01)
        assert max(shares) == pytest.approx(2 * min(shares) * (1 if shard is None else 2)), (
            "as the tokens of a stack: two lengths, three sequences or two and one of them"
        )


def rows_of(n: int) -> list[Row]:
    return [
        Row("m", 0, None, "attention", n, s, s * n, 1.0, 1.5, 2.0 + s, None, 0.0, 3, True, None)
        for s in range(2)
    ]


def test_the_summary_of_one_length() -> None:
    summary = summarise(rows_of(2))[0]
    assert (summary.median, summary.least, summary.most, summary.fit) == (2.5, 2.0, 3.0, None)
    bounds = [
        BoundRow(0, value, "upper", "proved", name, "s", "a")
        for value, name in ((math.inf, "M1"), (8.0, "P1"))
    ]
    (sheet,) = sheets(rows_of(2), bounds, MeasureConfig())
    assert sheet.lines == [("0", "2", "2.5", "", "", "1", "8 P1 (4.0x)", "0")]


def test_shards_give_the_rows_of_their_sequences(ids: Tensor) -> None:
    """A cell's rows depend on the cell alone, and its sequences are pieces of the same text."""
    model = tiny("gpt2")
    options: dict[str, Any] = {"samples": 3, "heads": "none", "bounds": False, "tol": 1e-12}
    whole, cut = (measure(model, ids, [4], shard=shard, **options).rows for shard in (None, 2))
    assert [(row.sequence, row.start) for row in cut if row.layer == 0] == [(0, 0), (1, 4), (2, 8)]
    found = {(row.layer, row.sequence): row.lower for row in cut}
    for row in whole:
        assert found[row.layer, row.sequence] == pytest.approx(row.lower, rel=1e-10)


@pytest.mark.usefixtures("unchecked")
def test_the_door_takes_texts_ids_modules_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny("gpt2")
    model._encoder = lambda text: [ord(letter) % 50 for letter in text]
    words = "how many roads must a man walk down"
    (tmp_path / "words.txt").write_text(words)
    ids = model.encode(words)
    options: dict[str, Any] = {"lengths": [3, 5], "samples": 2, "heads": "none"}
    tables = [measure(model, given, **options) for given in (words, Path("words.txt"), ids)]
    tables.append(measure(model.module, ids, **options))
    for table in tables[1:3]:
        pairs = [
            [row._replace(text="") for row in both] for both in zip(tables[0], table, strict=True)
        ]
        assert all(same(one, two) for one, two in pairs)
    assert [row.lower for row in tables[3]] == [row.lower for row in tables[0]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["words.txt"]
    assert "local Lipschitz constant" in tables[0]._repr_html_()
    monkeypatch.setattr(drawing, "available", lambda: False)
    kept = measure(model, ids, folder="out", **options)
    assert len(kept) == len(tables[0])
    assert (tmp_path / "out" / "bounds.json").exists()
    for wrong, message in (
        ({"speed": 3}, "measure knows bounds, device"),
        ({"dtype": "float64"}, "pass them to attnscope.load"),
    ):
        with pytest.raises(TypeError, match=message):
            measure(model, ids, **options, **wrong)
    with pytest.raises(TypeError, match=r"a name, a Model or an nn\.Module"):
        measure(3, ids)  # type: ignore[arg-type]


def test_a_changed_model_is_refused(
    ids: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same options and names, but other weights: nothing is mixed."""
    monkeypatch.setattr(drawing, "available", lambda: False)
    model = tiny("gpt2")
    options: dict[str, Any] = {"samples": 2, "heads": "none", "folder": tmp_path}
    measure(model, ids, [3], **options)
    model.blocks[0].attn.c_proj.weight.data[0, 0] += 1e-3
    with pytest.raises(ValueError, match="other weights, other code or another text"):
        measure(model, ids, [3], **options)
    cell = next(iter(Measure().cells(*made(model, ids))))
    bench = made(tiny("gpt2"), ids)[1]
    with pytest.raises(ValueError, match="changed since this run began"):
        Measure().run(cell, bench)


def made(model: Model, ids: Tensor, **options: Any) -> tuple[MeasureConfig, Workbench]:
    bench = Workbench()
    bench.put(("model", model.name, "cpu", "float64"), model)
    bench.put(("ids", model.name, "ids"), ids)
    fields = {"lengths": (2,), "dtype": "float64", **options}
    return MeasureConfig(model.name, "ids", **fields), bench


def test_bad_configs(ids: Tensor) -> None:
    for options, message in [
        ({"layers": (2,)}, "layers 0 to 1"),
        ({"lengths": (65,), "samples": 1}, "at most 64 tokens"),
        ({"lengths": (50,), "samples": 5}, "the text has 200"),
        ({"heads": (3,)}, "heads 0 to 2"),
        ({"heads": "some"}, "heads must be"),
        ({"lengths": (0,)}, "at least 1"),
        ({"lengths": (2, 2)}, "once only"),
        ({"layers": ()}, "at least one layer"),
        ({"part": "brain"}, "part must be one of"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"shard": 0}, "at least 1 sequence"),
        ({"failure_probability": 2.0}, "between 0 and 1"),
        ({"part": "block", "heads": "all"}, "attention only"),
    ]:
        config, bench = made(tiny("gpt2"), ids, **options)
        with pytest.raises(ValueError, match=message):
            run(Measure(), config, workbench=bench)


def test_the_tokens_that_carry_the_top_direction(ids: Tensor) -> None:
    """Shares of the dense singular vectors; of a causal model in one place: the longest length."""
    model = tiny("gpt2")
    table = measure(model, ids, [3, 6], samples=3, shard=2, tol=1e-9, heads="none", bounds=False)
    found = table["directions"]
    assert [(row.layer, row.token) for row in found] == [(i, j) for i in (0, 1) for j in range(6)]
    for layer in (0, 1):
        x = model.tokens(ids[:6], layer)
        dense = torch.func.jacrev(model.function(layer))(x).reshape(x.numel(), x.numel())
        left, _, right = torch.linalg.svd(dense)
        here = [row for row in found if row.layer == layer]
        for shares, vector in (
            ([row.carried for row in here], right[0]),
            ([row.received for row in here], left[:, 0]),
        ):
            expected = vector.reshape(x.shape).square().sum(-1)
            assert torch.allclose(torch.tensor(shares).double(), expected, atol=1e-4)
    assert [(row.id, row.text) for row in found[:6]] == [(int(i), f"#{i}") for i in ids[:6]]
