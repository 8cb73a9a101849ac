"""Ids back as text, one token at a time."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from attnscope.models import _load, load

transformers = pytest.importorskip("transformers")


def test_the_pieces_of_a_text_are_its_tokens() -> None:
    model = load("minilm")
    ids = model.encode("The unflappable cat sat.")
    pieces = model.pieces(ids)
    assert len(pieces) == len(ids)
    assert pieces[0] == "the"
    assert pieces[-1] == "."
    assert "".join(piece.removeprefix("##") for piece in pieces) == "theunflappablecatsat."


@pytest.mark.filterwarnings("ignore::attnscope.ModelNotice")
def test_words_stand_for_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(transformers.GPT2Config, n_layer=1, n_embd=12)
    library = SimpleNamespace(GPT2Model=transformers.GPT2Model, GPT2Config=small)
    monkeypatch.setattr(_load, "_transformers", lambda _: library)
    model = load("gpt2-random")
    ids = model.encode("a cat, a hat")
    assert model.pieces(ids) == ["a", "cat", ",", "a", "hat"]
    assert model.pieces(torch.tensor([int(ids[0]), 7])) == ["a", "#7"]
