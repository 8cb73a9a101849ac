"""The sweep over a real architecture: every number against a dense Jacobian, rows that say where
they come from.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope import Attention, LinearOperator, Particles, SpectralNorm, spectral_norm
from attnscope.measure import Plan, Row, growth, sweep
from attnscope.measure.store import Store
from attnscope.measure.summary import proved_bounds, summarise
from attnscope.models import PARTS, Model, Part, load

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
    plan = Plan(
        model,
        ids,
        [0, 1],
        [1, 5],
        samples=2,
        part=part,
        heads="none",
        tol=1e-10,
        failure_probability=1e-3,
    )
    rows = [row for batch in sweep(plan) for row in batch]
    assert len(rows) == plan.calls * 2 == 8
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
    for layer, bounds in proved_bounds(plan):
        first = next(row for row in rows if (row.layer, row.n, row.sequence) == (layer, 5, 0))
        assert bounds.tightest.value >= first.upper * (1 - 1e-6)


def test_heads_and_the_released_estimator(ids: Tensor) -> None:
    model = tiny("gpt2")
    plan = Plan(model, ids, [1], [3, 6], samples=2, heads="longest", released=True)
    rows = [row for batch in sweep(plan) for row in batch]
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
    module = importlib.import_module("attnscope.measure.sweep")
    shares: list[float] = []

    def noted(op: LinearOperator, **options: Any) -> SpectralNorm:
        shares.append(options["failure_probability"])
        return spectral_norm(op, **options)

    monkeypatch.setattr(module, "spectral_norm", noted)
    list(sweep(Plan(tiny("gpt2"), ids, [0, 1], [2, 4], samples=2, failure_probability=0.01)))
    assert sum(shares) == pytest.approx(0.01)


def test_growth_recovers_a_power_law() -> None:
    n = np.repeat([2, 4, 8, 16, 32], 10)
    held = 0
    for seed in range(40):
        noise = np.exp(0.1 * np.random.default_rng(seed).standard_normal(len(n)))
        fit = growth(n, 3.0 * n**0.25 * noise)
        assert fit is not None
        assert fit.low < fit.exponent < fit.high < fit.low + 0.1
        held += fit.low < 0.25 < fit.high
    assert held >= 33  # 38 expected at 95 %
    assert growth([2, 2, 4], [1, 1, 1]) is None


def rows_of(n: int) -> list[Row]:
    return [
        Row("m", 0, None, "attention", n, s, s * n, 1.0, 1.5, 2.0 + s, None, 0.0, 3, True, None)
        for s in range(2)
    ]


def test_the_store_keeps_rows_when_stopped(tmp_path: Path) -> None:
    def interrupted() -> Iterator[list[Row]]:
        yield rows_of(2)
        raise KeyboardInterrupt

    def keep_rows() -> None:
        with Store(tmp_path / "run", overwrite=False) as store:
            for batch in interrupted():
                store.add(batch)
                assert (
                    len((tmp_path / "run" / "results.jsonl.partial").read_text().splitlines()) == 2
                )

    with pytest.raises(KeyboardInterrupt):
        keep_rows()
    kept = [
        json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    ]
    assert [row["lower"] for row in kept] == [2.0, 3.0]
    assert (
        (tmp_path / "run" / "results.csv")
        .read_text()
        .splitlines()[0]
        .startswith("model,layer,head")
    )
    with pytest.raises(ValueError, match="already holds results"):
        Store(tmp_path / "run", overwrite=False)
    summary = summarise([Row(**row) for row in kept])[0]
    assert (summary.median, summary.least, summary.most, summary.fit) == (2.5, 2.0, 3.0, None)


def test_bad_plans(ids: Tensor) -> None:
    model = tiny("gpt2")
    for options, message in [
        ({"layers": [2]}, "layers 0 to 1"),
        ({"lengths": [65], "samples": 1}, "at most 64 tokens"),
        ({"lengths": [50], "samples": 5}, "the text has 200"),
        ({"heads": [3]}, "heads 0 to 2"),
        ({"lengths": [0]}, "at least 1"),
        ({"layers": []}, "at least one layer"),
        ({"part": "block", "heads": "all"}, "attention only"),
    ]:
        with pytest.raises(ValueError, match=message):
            Plan(**{"model": model, "ids": ids, "layers": [0], "lengths": [2], **options})  # type: ignore[arg-type]
