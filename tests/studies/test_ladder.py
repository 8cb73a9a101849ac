"""Ladders of lengths: how they are cut, how vectors follow their tokens or keep their places, which
of the two a search starts from, and rows that are those of each length alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_measure_study import tiny

from attnscope.studies import Workbench
from attnscope.studies.measure import Measure, MeasureConfig, measure
from attnscope.studies.measure.ladder import Memory, by_place, by_token, ladders


def test_ladders_have_eight_rungs_of_the_same_heads() -> None:
    lengths = list(range(2, 24, 2))
    heads = {n: (0, 1) if n == 22 else () for n in lengths}
    cut = list(ladders(lengths, heads, climb=True))
    assert cut == [(2, 4), (6, 8, 10, 12, 14, 16, 18, 20), (22,)]
    assert list(ladders(lengths[:8], heads, climb=True)) == [tuple(lengths[:8])]
    assert list(ladders(lengths, heads, climb=False)) == [(n,) for n in lengths]


@pytest.mark.parametrize(("m", "n"), [(6, 8), (8, 6), (5, 5)])
def test_vectors_follow_their_tokens(m: int, n: int) -> None:
    """Token t of the text carries the number t + 1: wherever it is at the new length, it is t's."""
    first, samples = 1, 4
    numbers = torch.arange((first + samples) * max(m, n)).double() + 1
    old = torch.stack([numbers[s * m : (s + 1) * m] for s in range(first, first + samples)])
    moved = by_token(old[None, ..., None], m, n, first)[0, ..., 0]
    for row, s in zip(moved, range(first, first + samples), strict=True):
        here = numbers[s * n : (s + 1) * n]
        shared = torch.isin(here, old[s - first])
        expected = here * shared if 2 * shared.sum() >= n else 0 * here
        assert torch.equal(row, expected)


@pytest.mark.parametrize(("m", "n"), [(6, 8), (8, 6), (5, 5), (4, 8)])
def test_vectors_keep_their_places(m: int, n: int) -> None:
    old = torch.randn(2, 3, m, 4)
    moved = by_place(old, n)
    shared = min(m, n)
    assert torch.equal(moved[..., :shared, :], old[..., :shared, :])
    assert not moved[..., shared:, :].any()
    assert not by_place(old, 2 * m + 1).any(), "half of the new length would be left to nothing"


def test_each_sequence_goes_the_way_that_came_closer() -> None:
    """Four sequences of a text: vectors that stay at their places, that follow their tokens, that
    do neither, and the first, for which both are the same.
    """
    torch.manual_seed(0)
    place, memory = (0, ()), Memory(0)
    lengths, text = (30, 31, 32), torch.randn(200, 5)
    at_places, new = torch.randn(32, 5), [torch.randn(4, n, 5) for n in lengths]
    nears = []
    for n, drawn in zip(lengths, new, strict=True):
        nears.append(memory.near(place, n))
        drawn[0], drawn[1], drawn[2] = text[:n], at_places[:n], text[2 * n : 3 * n]
        memory.keep(place, n, drawn)
    first, second, third = nears
    assert first is None, "nothing is known"
    assert second is not None
    assert torch.equal(second.around, by_place(new[0], 31)), "by place until one rung has told"
    assert third is not None
    ways = by_place(new[1], 32), by_token(new[1], 31, 32, 0)
    assert torch.equal(third.around[0], ways[0][0])
    assert torch.equal(third.around[1], ways[0][1])
    assert torch.equal(third.around[2], ways[1][2])
    assert not third.around[3].any(), "cold where neither is close"


def test_rows_of_a_ladder_are_those_of_each_length() -> None:
    model, ids = tiny("gpt2"), torch.arange(200).remainder(30)
    options: dict[str, Any] = {
        "samples": 2, "heads": "all", "bounds": False, "failure_probability": None, "tol": 1e-7,
    }  # fmt: skip
    lengths = [5, 6, 7]
    together = measure(model, ids, lengths, **options).rows
    alone = [row for n in lengths for row in measure(model, ids, [n], **options).rows]

    def names(row: Any) -> tuple[Any, ...]:
        return row.n, row.layer, row.head, row.sequence, row.start

    assert [names(row) for row in together] == [names(row) for row in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.lower == pytest.approx(other.lower, rel=1e-5)
    assert [row.pairs for row in together] != [row.pairs for row in alone]


def test_brackets_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of upper bounds has one length: a warm start would gain nothing there."""
    workbench = Workbench()
    ids = torch.arange(200).remainder(30)
    model = tiny("gpt2")
    workbench.put(("model", "tiny", "cpu", "float32"), model)
    workbench.put(("ids", "tiny", "ids"), ids)
    monkeypatch.setattr(model, "name", "tiny", raising=False)
    for chance, rungs in ((1e-6, [1, 1, 1]), (None, [3])):
        config = MeasureConfig(
            "tiny", "ids", lengths=(3, 4, 5), samples=2, heads="none", bounds=False,
            failure_probability=chance,
        )  # fmt: skip
        cells = list(Measure().cells(config, workbench))
        assert [len(cell.rungs) for cell in cells] == rungs
        assert sum(cell.failure_probability for cell in cells) == pytest.approx(chance or 0.0)
