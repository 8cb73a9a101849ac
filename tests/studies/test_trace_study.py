"""Tokens through depth: every number by another way, the closed form against quadrature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.cli import main
from attnscope.measures import Gaussian
from attnscope.models import Model, load
from attnscope.studies.trace import State, Step
from attnscope.studies.trace.gaussian import moments, predicted, uniform_motion
from attnscope.studies.trace.states import effective_rank

transformers = pytest.importorskip("transformers")
Draw = Callable[..., Tensor]


def test_the_gaussian_step_is_exact_on_a_gaussian(randn: Draw) -> None:
    """Gauss-Hermite particles of N(m, S): attention that reads the stream, and attention that reads
    an affine image of it, with several heads and biases.
    """
    factor = 0.5 * randn(2, 2)
    cloud = Gaussian(0.3 * randn(2), factor @ factor.mT).quadrature(24)
    heads = Heads(
        *(0.4 * randn(2, 2, 2) for _ in range(3)),
        0.5 * randn(2, 2, 2),
        query_bias=randn(2, 2),
        key_bias=randn(2, 2),
        value_bias=randn(2, 2),
        output_bias=randn(2),
    )
    attention = Softmax(heads)
    for read in (cloud.x, cloud.x @ (0.7 * randn(2, 2)) + randn(2)):
        known = moments(cloud, read)
        law = predicted(attention, known)
        after = cloud.at(cloud.x + attention(read, cloud.at(read)))
        assert torch.allclose(law.mean, after.mean(), atol=1e-8)
        assert torch.allclose(law.cov, after.cov(), atol=1e-8)
        flat = Softmax(
            Heads(0 * heads.query, heads.key, heads.value, heads.output, scale=heads.scale)
        )
        alike = uniform_motion(flat, known)
        assert torch.allclose(alike, flat(read, cloud.at(read))[0], atol=1e-10)


def tiny(kind: str) -> Model:
    common = {"attn_implementation": "eager"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "bert":
            module: Any = transformers.BertModel(
                transformers.BertConfig(
                    hidden_size=12,
                    num_hidden_layers=2,
                    num_attention_heads=3,
                    intermediate_size=20,
                    vocab_size=50,
                    max_position_embeddings=40,
                    **common,
                )
            )
        elif kind == "gpt2":
            sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 40, "vocab_size": 50}
            module = transformers.GPT2Model(transformers.GPT2Config(**sizes, **common))
        else:
            module = transformers.LlamaModel(
                transformers.LlamaConfig(
                    hidden_size=16,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    num_hidden_layers=2,
                    intermediate_size=20,
                    vocab_size=50,
                    **common,
                )
            )
        for parameter in module.parameters():
            parameter.data = 0.3 * torch.randn_like(parameter)
    return load(module.eval().requires_grad_(False), dtype=torch.float64)


IDS = torch.randint(0, 50, (40,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_every_number_by_another_way(kind: str) -> None:
    model = tiny(kind)
    table = asc.trace(model, IDS, n=9, samples=2)
    states: list[State] = table.rows
    steps: list[Step] = table["steps"]
    assert [(s.sequence, s.depth) for s in states] == [(i, k) for i in (0, 1) for k in range(3)]
    hidden = model.module(IDS[9:18][None], output_hidden_states=True).hidden_states
    x, last = hidden[1][0].numpy(), states[4]
    assert last.radius == pytest.approx(np.sqrt((x**2).sum(1).mean()), rel=1e-5)
    cov = np.cov(x.T, bias=True)
    values = np.linalg.eigvalsh(cov)[::-1]
    assert last.trace == pytest.approx(np.trace(cov), rel=1e-5)
    assert last.anisotropy == pytest.approx(values[0] / values.sum(), rel=1e-5)
    p = values[:8] / values.sum()
    assert last.effective_rank == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-4)
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [units[i] @ units[j] for i in range(9) for j in range(9) if i != j]
    assert last.mean_cosine == pytest.approx(np.mean(pairs), rel=1e-4)
    before = hidden[0][0].numpy()
    assert last.moved == pytest.approx(np.sqrt(((x - before) ** 2).sum(1).mean()), rel=1e-5)
    assert last.w2 is not None
    assert last.bures is not None
    assert last.bures <= last.w2 * (1 + 1e-9) <= last.moved * (1 + 1e-8)

    first = steps[2]
    assert (first.sequence, first.layer) == (1, 0)
    start = hidden[0][0].double()
    read = model.read(0, start[None])[0]
    after = model.function(0, "residual")(start)
    field = Softmax(model.attention(0).heads).affine(
        Gaussian(read.mean(0), torch.cov(read.T, correction=0))
    )
    together = torch.cat([start, read], 1)
    joint = torch.cov(together.T, correction=0)
    turn = torch.cat([torch.eye(12).double(), field.matrix], 1)
    law = turn @ joint @ turn.T
    measured, still = (torch.cov(part.T, correction=0) for part in (after, start))
    error = (law - measured).norm() / (measured - still).norm()
    assert first.cov_error == pytest.approx(float(error), rel=1e-5)
    mean = start.mean(0) + field.matrix @ read.mean(0) + field.offset - after.mean(0)
    assert first.mean_error == pytest.approx(
        float(mean.norm() / (after - start).mean(0).norm()), rel=1e-5
    )
    move = after - start
    off = move - read @ field.matrix.T - field.offset
    assert first.token_error == pytest.approx(float(off.norm() / move.norm()), rel=1e-5)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.ones(7).double()) == pytest.approx(7)
    assert effective_rank(torch.tensor([3.0, 0, 0]).double()) == pytest.approx(1)
    assert effective_rank(torch.zeros(3).double()) == 0


def test_tokens_that_are_one_are_one_cluster() -> None:
    model = tiny("bert")
    model.module.embeddings.position_embeddings.weight.data.zero_()
    table = asc.trace(model, torch.full((6,), 7))
    assert [row.clusters for row in table] == [1, 1, 1]
    assert [row.n for row in table] == [6, 6, 6]
    assert all(row.effective_rank <= 6 for row in table)


def test_rotary_heads_have_no_closed_form_and_the_remark_says_so() -> None:
    table = asc.trace(tiny("llama"), IDS, n=8)
    assert table["steps"] == []
    assert len(table["attention"]) == 2
    assert table.study.remarks(table) == [
        "no prediction for layers 0, 1: its scores depend on the place of a token."
    ]
    assert table.verdicts() == []
    assert set(table.figures()) == {"shapes", "spectra"}


def test_the_command_leaves_tables_pictures_and_an_animation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as left:
        main(["trace", "minilm", "--tokens", "12", "--out", str(out)])
    assert left.value.code == 0
    names = {path.name for path in out.iterdir()}
    assert {"results.jsonl", "steps.csv", "attention.csv", "tokens.gif", "theory.svg"} <= names
    assert (out / "tokens.gif").read_bytes().startswith(b"GIF8")
    said = capsys.readouterr().out
    assert "12 tokens through depth" in said
    assert "reads all alike" in said
    assert max(map(len, said.split("In ")[0].splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--tokens", "1"], "at least 2 tokens, got 1"),
        (["--tokens", "999999"], "at most 512 tokens"),
        (["--gap", "-1"], "gap must be"),
        (["--dtype", "int8"], "dtype must be float32 or float64"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], match: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["trace", "minilm", "--out", str(tmp_path / "out"), *options])
    assert left.value.code == 2
    assert match in " ".join(capsys.readouterr().err.split())


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="a trace needs a text of at least 2 tokens, got 1"):
        asc.trace("minilm", "cat")


def test_ids_beyond_the_vocabulary_are_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"ids must lie in 0\.\.49, got values from"):
        asc.trace(tiny("gpt2"), IDS + 50, n=9)
