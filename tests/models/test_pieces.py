"""Ids back as text, one token at a time."""

from __future__ import annotations

import pytest
import torch

from attnscope.models import load

pytest.importorskip("transformers")


def test_the_pieces_of_a_text_are_its_tokens() -> None:
    model = load("minilm")
    ids = model.encode("The unflappable cat sat.")
    pieces = model.pieces(ids)
    assert len(pieces) == len(ids)
    assert pieces[0] == "the"
    assert pieces[-1] == "."
    assert "".join(piece.removeprefix("##") for piece in pieces) == "theunflappablecatsat."


@pytest.mark.filterwarnings("ignore::attnscope.ModelNotice")
def test_words_stand_for_their_numbers() -> None:
    model = load("gpt2-random")
    ids = model.encode("a cat, a hat")
    assert model.pieces(ids) == ["a", "cat", ",", "a", "hat"]
    assert model.pieces(torch.tensor([int(ids[0]), 7])) == ["a", "#7"]
