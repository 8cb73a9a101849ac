"""What a cell of `measure` reads: pieces of a text, or several texts, each its own sequence, with
special tokens around each if asked for; images; embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnscope.data.texts import windows
from attnscope.models import Model
from attnscope.studies.workbench import Workbench

PADDED = -1
"""Stands behind the last id of a text that is shorter than others."""
Frame = Sequence[Sequence[int]]


def text_ids(workbench: Workbench, model: Model, text: str) -> Shaped[Tensor, ...]:
    """The ids of a text as this model reads them, tokenised once; a row for each of several texts;
    or images or embeddings under that name.
    """
    several = workbench.found(("texts", text))

    def read() -> Tensor:
        if several is None:
            return model.encode(workbench.text(text))
        return pad_sequence(model.sequences(several), batch_first=True, padding_value=PADDED)

    return workbench.once(("ids", model.name, text), read)


def is_several(source: Shaped[Tensor, ...]) -> bool:
    """Whether these are several texts."""
    return source.ndim == 2 and not source.is_floating_point()


def token_counts(source: Int[Tensor, "texts longest"], frame: Frame) -> list[int]:
    """How many tokens each of several texts has, special ones included."""
    own: list[int] = (source != PADDED).sum(-1).tolist()
    return [count + sum(map(len, frame)) for count in own]


def members(
    source: Int[Tensor, "texts longest"], n: int, frame: Frame, whole: bool
) -> tuple[int, ...]:
    """The numbers of those texts that have n tokens, or at least so many."""
    counts = token_counts(source, frame)
    found = tuple(i for i, own in enumerate(counts) if own == n or (own > n and not whole))
    if not found:
        raise ValueError(
            f"none of the {len(source)} texts has {n} tokens, the longest has {max(counts)}: use"
            " shorter lengths."
        )
    return found


def cut(
    source: Shaped[Tensor, ...],
    n: int,
    first: int,
    samples: int,
    frame: Frame,
    chosen: Sequence[int] = (),
) -> Shaped[Tensor, "samples ..."]:
    """Sequences [first, first + samples) of n tokens, special tokens included; those of the chosen
    numbers among several texts; or images or embeddings.
    """
    last = first + samples
    if source.is_floating_point():
        if last > len(source):
            kind = "images" if source.ndim == 4 else "sequences"
            raise ValueError(f"{last} {kind} are needed, but there are {len(source)}.")
        return source[first:last]
    own = n - sum(map(len, frame))
    if own < 1:
        raise ValueError(
            f"a sequence of {n} tokens has no room beside {n - own} special tokens. Use longer."
        )
    several = is_several(source)
    pieces = source[list(chosen), :own] if several else windows(source, own, last)[first:]
    before, after = (_row(part, pieces) for part in frame)
    return torch.cat([before, pieces, after], dim=1)


def _row(ids: Sequence[int], like: Int[Tensor, "b n"]) -> Int[Tensor, "b k"]:
    return torch.tensor(list(ids), dtype=like.dtype, device=like.device).expand(len(like), -1)
