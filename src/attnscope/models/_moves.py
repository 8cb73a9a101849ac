r"""The derivatives of what a tap hears, token by token, in the form $D_j = B_jM$ wherever they have
it: found from a few products of the module's own code, and checked on random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.smooth.moves import Moves

Given = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""From tokens (n, d) to queries, keys and values, each (h, n, k)."""
Form = Callable[[list[Tensor], list[int]], list[tuple[int, Moves]]]
"""From the derivatives at the first tokens to those of queries (0), keys (1) or values (2)."""

AGREE = 1e-6
"""How far a random product may be from what $B_jM$ predicts, relative to the largest entry: norms
and rotary embeddings of transformers compute in float32 whatever they are given. Bounds allow for
what is found.
"""
SHORT = 4
"""Tokens whose derivatives are taken in full to find the rows of M."""
FEW = 2
"""Tokens that show the rows of M where the first token alone has them all."""
AT_ONCE = 2**25
"""Entries of all tangents that are moved at once."""
MEMORY = 4 * 2**30
"""Bytes that bounds at a tap may take."""


class TooLarge(ValueError):
    """Bounds at a tap would take more memory than they may."""


def check_size(h: int, n: int, k: int, v: int, rank: int | None = None) -> None:
    """Refuse what would not fit: couplings, and for each head and token the small matrices of the
    value, key and query paths, or whole derivatives of this rank.
    """
    rank = k if rank is None else rank
    needed = 8 * h * n * (6 * n + 2 * h * v + 2 * v * (v + rank) + (2 * k + v) * rank)
    if needed > MEMORY:
        raise TooLarge(
            f"proved bounds at {n} tokens would take about {needed / 2**30:.0f} GB, and"
            f" {MEMORY / 2**30:.0f} are allowed. Use fewer tokens."
        )


def moves_at(
    given: Given, x: Float[Tensor, "n d"], short: Float[Tensor, "s d"]
) -> tuple[Moves, Moves, Moves]:
    """How queries, keys and values move with the tokens x; `short` are the first of them, as few as
    the model reads.
    """
    search = _Search(given, x)
    found = search.best(short, (search.turned, search.by_head))
    if None in found:
        h, n, k = search.changes[0].shape
        check_size(h, n, k, search.changes[2].shape[-1], rank=x.shape[-1])
        whole = moved(given, x, _basis(x))
        found = [Moves.dense(part.movedim(0, -1)) for part in whole]
    query, key, value = (moves for moves in found if moves is not None)
    return query, key, value


def alike_at(given: Given, x: Float[Tensor, "n d"]) -> tuple[Moves, Moves, Moves] | None:
    """The same where one matrix serves all tokens, None elsewhere."""
    search = _Search(given, x)
    query, key, value = (search.confirmed(i, moves) for i, moves in search.alike())
    return None if query is None or key is None or value is None else (query, key, value)


def turned_at(
    given: Given,
    x: Float[Tensor, "n d"],
    few: int = FEW,
    known: Sequence[Float[Tensor, "h _ d"]] | None = None,
) -> list[Moves | None]:
    """The same for queries, keys and values where a matrix for each position serves all heads, None
    for those of them where that is not so; the model reads as `few` tokens, and `known` are the
    matrices of the first, if somebody has them.
    """
    search = _Search(given, x)
    if not all(bool(torch.isfinite(change).all()) for change in search.changes):
        return [None, None, None]
    # heads that share rows (one key for all of them) show no more than one of them does
    kinds = (search.turned, partial(search.turned, distinct=1))
    if known is None:
        return search.best(x[:few], kinds)
    found = [search.confirmed(i, Moves.alike(matrix)) for i, matrix in enumerate(known)]
    return search.rest(found, [matrix[:, None] for matrix in known], kinds)


def moved(
    given: Given, x: Float[Tensor, "n d"], tangents: Float[Tensor, "t n d"]
) -> tuple[Float[Tensor, "t h n k"], ...]:
    """Derivatives of queries, keys and values along each of the tangents."""

    def along(tangent: Tensor) -> tuple[Tensor, ...]:
        changes: tuple[Tensor, ...] = torch.func.jvp(given, (x,), (tangent,))[1]
        return changes

    chunk = max(1, AT_ONCE // (4 * x.numel()))
    found = torch.func.vmap(along, chunk_size=chunk)(tangents)
    return tuple(part.detach().double() for part in found)


def confirmed(
    moves: Moves,
    tangent: Float[Tensor, "n d"],
    change: Float[Tensor, "h n k"],
    within: float = AGREE,
) -> Moves | None:
    """These derivatives with their error, if they predict a product of the module's own code."""
    away = float((moves.along(tangent.double()) - change).abs().amax() / change.abs().amax())
    return replace(moves, error=away) if away <= within else None


class _Search:
    """Forms of the derivatives that may hold, the cheapest first."""

    def __init__(self, given: Given, x: Float[Tensor, "n d"]) -> None:
        self.given, self.x = given, x
        self.generator = torch.Generator().manual_seed(11)
        self.tangent = self._draw(x.shape)
        self.changes = [part[0] for part in moved(given, x, self.tangent[None])]

    def confirmed(self, i: int, moves: Moves) -> Moves | None:
        """These derivatives of queries (0), keys (1) or values (2), if they hold."""
        return confirmed(moves, self.tangent, self.changes[i])

    def best(self, short: Float[Tensor, "s d"], kinds: Sequence[Form]) -> list[Moves | None]:
        """The first form that holds for queries, keys and values: one matrix, or these kinds."""
        found = [self.confirmed(i, moves) for i, moves in self.alike()]
        return self.rest(found, self.first(short), kinds) if None in found else found

    def rest(
        self, found: list[Moves | None], first: list[Tensor], kinds: Sequence[Form]
    ) -> list[Moves | None]:
        """Those that are open still, by the first of these kinds that holds."""
        for kind in kinds:
            open_ones = [i for i, moves in enumerate(found) if moves is None]
            for i, moves in kind(first, open_ones) if open_ones else ():
                found[i] = self.confirmed(i, moves)
        return found

    def alike(self) -> list[tuple[int, Moves]]:
        """One matrix for all tokens: each of them shows some of its columns."""
        n, d = self.x.shape
        rounds = ceil(d / n)
        tangents = torch.zeros(rounds * n, d, dtype=self.x.dtype, device=self.x.device)
        tangents[:d] = torch.eye(d)
        shown = moved(self.given, self.x, tangents.unflatten(0, (rounds, n)))
        columns = [part.transpose(0, 1).flatten(1, 2)[:, :d] for part in shown]
        return [(i, Moves.alike(part.mT.contiguous())) for i, part in enumerate(columns)]

    def first(self, short: Float[Tensor, "s d"]) -> list[Float[Tensor, "h some k d"]]:
        """The derivatives at the first tokens."""
        whole = moved(self.given, short, _basis(short))
        return [part[:, :, :SHORT].movedim(0, -1) for part in whole]

    def turned(
        self, first: list[Tensor], open_ones: list[int], distinct: int | None = None
    ) -> list[tuple[int, Moves]]:
        """The derivative of the first token times a matrix for each position that all heads share:
        rotary embeddings. `distinct` heads have rows of their own, all of them unless told.
        """
        h, _, k, _ = first[0].shape
        directions, shown = self._shown(ceil(2 * k / (distinct or h)) + 1)
        found = []
        for i in open_ones:
            rows = first[i][:, 0]
            seen = (rows @ directions.mT).transpose(0, 1).flatten(1)  # k x (h directions)
            there = shown[i].permute(2, 3, 1, 0).flatten(2)
            found.append((i, Moves((there @ torch.linalg.pinv(seen))[None], rows)))
        return found

    def by_head(self, first: list[Tensor], open_ones: list[int]) -> list[tuple[int, Moves]]:
        """A matrix for each head and token on the rows that the first tokens span: norms of each
        head's own queries and keys.
        """
        k = first[0].shape[2]
        directions, shown = self._shown(2 * k)
        found = []
        for i in open_ones:
            rows = torch.linalg.svd(first[i].flatten(1, 2), full_matrices=False).Vh[:, :k]
            inverse = torch.linalg.pinv(rows @ directions.mT)
            found.append((i, Moves(shown[i].permute(1, 2, 3, 0) @ inverse[:, None], rows)))
        return found

    def _shown(self, count: int) -> tuple[Float[Tensor, "t d"], tuple[Tensor, ...]]:
        """So many random directions, the same for all tokens, and what they move."""
        directions = self._draw((count, self.x.shape[1]))
        tangents = directions[:, None].expand(-1, *self.x.shape)
        return directions.double(), moved(self.given, self.x, tangents)

    def _draw(self, shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.x)


def _basis(x: Float[Tensor, "n d"]) -> Float[Tensor, "d n d"]:
    """Every token along each axis at once: token-wise maps do not mix them."""
    unit = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return unit[:, None].expand(-1, *x.shape)
