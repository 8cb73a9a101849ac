"""Derivatives of queries, keys and values in their small form are the full ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from networks import loaded

import attnscope as asc
from attnscope.models import TooLarge, _moves
from attnscope.models._tapping import given, place_at

FORMS = {
    "gpt2": (1, 1),  # one matrix for all tokens
    "llama": (1, 9),  # turned by the position, all heads alike
    "qwen3": (4, 9),  # normed head by head
}


@pytest.mark.parametrize("name", [*FORMS, "olmo2"])
def test_factored_derivatives_are_the_full_ones(name: str) -> None:
    """Linear maps, rotary embeddings, norms of each head, and norms over all heads, which have no
    small form."""
    case = ARCHITECTURES[name]
    model: Any = loaded(case.build())
    x = model.tokens(model.sample(9)[0], case.layer)
    at = place_at(model, case.layer, x)
    full = _moves.moved(partial(given, model, case.layer), x, _moves._basis(x))
    for moves, dense in zip((at.query_moves, at.key_moves, at.value_moves), full, strict=True):
        found = moves.inner @ moves.rows[:, None]
        assert (found - dense.movedim(0, -1)).abs().max() <= 1e-6 * dense.abs().max()
        assert moves.error <= 1e-6
    if name in FORMS:
        assert at.key_moves.inner.shape[:2] == FORMS[name]
        assert at.key_moves.rows.shape[1] == at.key.shape[-1]
    assert at.value_moves.one is not None


def test_maps_that_depend_on_the_token_are_not_taken_for_linear() -> None:
    """A map that is linear for all tokens but one."""

    def bending(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bent = torch.cat([x[:-1], x[-1:].sin()])
        return tuple(bent[None] for _ in range(3))

    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for moves in _moves.moves_at(bending, x, x[:4]):  # type: ignore[arg-type]
        dense = torch.func.jacrev(lambda x: bending(x)[0][0])(x)
        own = torch.stack([dense[i, :, i] for i in range(6)])
        assert (moves.inner @ moves.rows[:, None] - own).abs().max() < 1e-12


def test_bounds_that_would_take_too_much_memory_are_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = loaded(ARCHITECTURES["qwen3"].build(), torch.float32)
    ids = torch.arange(2, 10)
    monkeypatch.setattr(_moves, "MEMORY", 2**10)
    with pytest.raises(TooLarge, match=r"8 tokens would take .* Use fewer"):
        model.bounds(1, ids)
    table = asc.measure(model, ids, (4, 8), layers=[1], heads="none", samples=1)
    assert not table["bounds"]
    assert "layer 1: no proved bound" in table.study.remarks(table)[-1]
    monkeypatch.undo()
    table = asc.measure(model, ids, (4, 8), layers=[1], heads="none", samples=1)
    assert {row.name for row in table["bounds"]} == {"T1''", "TB", "TB-S"}
    assert not any("no proved bound" in said for said in table.study.remarks(table))
