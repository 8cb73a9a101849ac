"""Ladders: lengths that are measured one after the other in one cell, each search starting near the
leading singular vectors of the same sequence at the length before.

Rows do not depend on who ran before: what is remembered stays in its cell. Sequence s of length n
is tokens [s n, (s+1) n), so that two lengths share fewer tokens with growing s: vectors are aligned
token by token, and a search starts cold where fewer than half of its tokens are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from jaxtyping import Float
from torch import Tensor

from attnscope.operators import Near, SpectralNorm

MOST_RUNGS = 8
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
class Memory:
    """What the rung before has found, for the sequences from `first` on."""

    first: int
    found: dict[Place, tuple[int, Tensor]] = field(default_factory=dict)

    def near(self, place: Place, n: int) -> Near | None:
        """Where a search at n tokens may start; None where nothing is known."""
        if place not in self.found:
            return None
        before, around = self.found[place]
        return Near(aligned(around, before, n, self.first), (n,))

    def keep(self, place: Place, n: int, result: SpectralNorm) -> None:
        self.found[place] = (n, result.around)


def aligned(
    around: Float[Tensor, "*heads samples m c"], m: int, n: int, first: int
) -> Float[Tensor, "*heads samples n c"]:
    """Vectors over m tokens of each sequence moved to where these tokens stand at n tokens; zero
    for tokens that are new, and whole where fewer than half of the n are shared.
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
