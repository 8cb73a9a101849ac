"""Ladders: lengths that are measured one after the other in one cell, each search starting near the
leading singular vectors of the same sequence at the length before.

Rows do not depend on who ran before: what is remembered stays in its cell. Sequence s of length n
is tokens [s n, (s+1) n): at another length other tokens stand at the same places, and the same
tokens at other places. Where a layer is most sensitive depends on the place in some networks (the
first tokens of a causal layer carry most) and on the token in others, so that vectors are moved
either way, and each sequence takes the way that came closer at the rung before: by place until one
rung has told. A search starts cold where neither came close, or where vectors would not fill half
of the new length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.operators import Near

MOST_RUNGS = 8
CLOSE = 0.3
"""The least cosine between a start and what was found from it of a way that is taken again."""
Place = tuple[int, tuple[int, ...]]
"""A layer, and its single heads or ()."""


def ladders(
    lengths: Sequence[int], heads: Mapping[int, tuple[int, ...]], climb: bool
) -> Iterator[tuple[int, ...]]:
    """The lengths of each cell: at most eight with the same heads if they `climb`, else one.

    A ladder begins cold, which costs least where sequences are short: the rest that fills no ladder
    comes first.
    """
    for _, alike in groupby(lengths, heads.__getitem__):
        held, most = tuple(alike), MOST_RUNGS if climb else 1
        rest = len(held) % most
        if rest:
            yield held[:rest]
        yield from (held[start : start + most] for start in range(rest, len(held), most))


@dataclass
class Rung:
    """What the last search of a place has found at n tokens, and how close to it each way of moving
    vectors had come: by place, by token. None on the first rung.
    """

    n: int
    around: Float[Tensor, "*heads samples n c"]
    close: Float[Tensor, "2 *heads samples"] | None


@dataclass
class Memory:
    """What the rung before has found, for the sequences from `first` on."""

    first: int
    found: dict[Place, Rung] = field(default_factory=dict)

    def near(self, place: Place, n: int) -> Near | None:
        """Where a search at n tokens may start; None where nothing is known."""
        before = self.found.get(place)
        if before is None:
            return None
        ways = self._ways(before, n)
        if before.close is None:
            return Near(ways[0], (n,))
        best, way = (part[..., None, None] for part in before.close.max(0))
        taken = torch.where(way == 0, ways[0], ways[1])
        return Near(torch.where(best >= CLOSE, taken, 0), (n,))

    def keep(self, place: Place, n: int, around: Float[Tensor, "*heads samples n c"]) -> None:
        before, close = self.found.get(place), None
        if before is not None:
            close = _cosines(self._ways(before, n), around)
        self.found[place] = Rung(n, around, close)

    def _ways(self, before: Rung, n: int) -> Float[Tensor, "2 *heads samples n c"]:
        return torch.stack(
            [by_place(before.around, n), by_token(before.around, before.n, n, self.first)]
        )


def by_place(
    around: Float[Tensor, "*heads samples m c"], n: int
) -> Float[Tensor, "*heads samples n c"]:
    """Vectors over m tokens at the same places among n; zero at places that are new, and whole
    where m is less than half of n.
    """
    m = around.shape[-2]
    moved = around.new_zeros(*around.shape[:-2], n, around.shape[-1])
    if 2 * m >= n:
        moved[..., :m, :] = around[..., :n, :]
    return moved


def by_token(
    around: Float[Tensor, "*heads samples m c"], m: int, n: int, first: int
) -> Float[Tensor, "*heads samples n c"]:
    """Vectors over m tokens of each sequence where these tokens stand at n tokens; zero for tokens
    that are new, and whole where fewer than half of the n are shared.
    """
    samples = around.shape[-3]
    moved = around.new_zeros(*around.shape[:-2], n, around.shape[-1])
    for s in range(samples):
        number = first + s
        start, stop = max(number * m, number * n), min((number + 1) * m, (number + 1) * n)
        if 2 * (stop - start) >= n:
            there = slice(start - number * n, stop - number * n)
            here = slice(start - number * m, stop - number * m)
            moved[..., s, there, :] = around[..., s, here, :]
    return moved


def _cosines(
    ways: Float[Tensor, "2 *heads samples n c"], found: Float[Tensor, "*heads samples n c"]
) -> Float[Tensor, "2 *heads samples"]:
    """Between each way and what was found, without their signs; 0 for vectors that are zero."""
    units = [part.flatten(-2).double() / _length(part).clamp(min=1e-300) for part in (ways, found)]
    return (units[0] * units[1]).sum(-1).abs()


def _length(vectors: Float[Tensor, "*stack n c"]) -> Float[Tensor, "*stack 1"]:
    return torch.linalg.vector_norm(vectors.flatten(-2), dim=-1, keepdim=True, dtype=torch.float64)
