r"""How queries, keys and values of each head move with their tokens, in memory linear in the size
of a head: a matrix for all tokens, a turn that the position alone makes, and the norm of each
head's own queries or keys.

The matrix and the turn are those at tokens 0, where a norm is as good as linear: $D_i(0) = T_iM$.
At other tokens a norm makes $D_i = T_i\,a_i(I - p_i(\Gamma p_i)^T)M$, $p_i$ what the value is away
from that at 0, turned back (`operators.token_maps`). The numbers $a_i$ and $\Gamma$ come from a few
products of the module's own code, and all of it is confirmed on random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.smooth.moves import Moves
from attnscope.models._moves import AGREE, FEW, Given, moved, turned_at
from attnscope.operators.token_maps import Normed, Pairs, TokenMap

ROWS = 4
"""How many equations are asked for each number of a least squares problem."""


class HeadMap(NamedTuple):
    """Queries, keys or values of all heads: a matrix for all tokens, then a map for each; problems
    are heads times sequences, the sequences of a head side by side.
    """

    matrix: Float[Tensor, "h k d"]
    each: TokenMap


def head_maps(
    given: Given,
    sequences: Sequence[Float[Tensor, "n d"]],
    few: int = FEW,
    known: Sequence[Float[Tensor, "h k d"]] | None = None,
) -> tuple[HeadMap, HeadMap, HeadMap] | None:
    """How queries, keys and values move at these sequences of one length; None where they have
    another form. The model reads as `few` tokens; `known` are their matrices, if somebody has them.
    """
    nothing = torch.zeros_like(sequences[0])
    turns = [_Turned.of(moves) for moves in turned_at(given, nothing, few, known)]
    with torch.no_grad():
        start = given(nothing)
    probes = [_Probe(given, x) for x in sequences]
    found = []
    for i, turn in enumerate(turns):
        if turn is None:
            return None
        each = _each(turn, start[i].double(), probes, i)
        if each is None:
            return None
        found.append(HeadMap(turn.matrix, each))
    query, key, value = found
    return query, key, value


class _Turned(NamedTuple):
    """$T_iM$"""

    matrix: Float[Tensor, "h k d"]
    turn: Pairs | None

    @classmethod
    def of(cls, moves: Moves | None) -> _Turned | None:
        if moves is None:
            return None
        if (one := moves.one) is not None:
            return cls(one, None)
        pairs = Pairs.of(moves.inner[0])
        return None if pairs is None else cls(moves.rows, pairs)

    def turned(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return z if self.turn is None else self.turn(z)


class _Probe:
    """What the module's own code says about one sequence."""

    def __init__(self, given: Given, x: Float[Tensor, "n d"]) -> None:
        generator = torch.Generator().manual_seed(17)
        n, d = x.shape
        with torch.no_grad():
            self.values = [part.double() for part in given(x)]
        count = max(2, ceil(ROWS * max(part.shape[-1] for part in self.values) / n))
        draw = torch.randn(count + n, d, generator=generator, dtype=torch.float64).to(x)
        self.directions, self.tangent = draw[:count].double(), draw[count:].double()
        tangents = torch.cat([draw[:count, None].expand(-1, n, d), draw[None, count:]])
        shown = moved(given, x, tangents)
        self.shown = [part[:-1] for part in shown]
        """What the directions move, all tokens along the same."""
        self.changes = [part[-1] for part in shown]

    def confirms(self, i: int, matrix: Tensor, each: TokenMap) -> bool:
        """Whether these maps predict a random product."""
        change = self.changes[i]
        away = (each(self.tangent @ matrix.mT) - change).abs().amax()
        return bool(away <= AGREE * change.abs().amax())


def _each(
    turn: _Turned, start: Float[Tensor, "h n k"], probes: Sequence[_Probe], i: int
) -> TokenMap | None:
    plain = TokenMap(turn.turn)
    if all(probe.confirms(i, turn.matrix, plain) for probe in probes):
        return plain
    norms, gains = [], None
    for probe in probes:
        norm = _normed(turn, probe.values[i] - start, probe.directions, probe.shown[i], gains)
        if not probe.confirms(i, turn.matrix, TokenMap(turn.turn, norm)):
            return None
        gains = norm.gains  # those of the weights: the same for all sequences
        norms.append(norm)
    fields = ("shrunk", "away", "gains")
    stacked = (torch.stack([getattr(n, name) for n in norms], 1).flatten(0, 1) for name in fields)
    return TokenMap(turn.turn, Normed(*stacked))


def _normed(
    turn: _Turned,
    away: Float[Tensor, "h n k"],
    directions: Float[Tensor, "m d"],
    shown: Float[Tensor, "m h n k"],
    gains: Float[Tensor, "h 1 k"] | None,
) -> Normed:
    """The norm's derivative from products along a few directions, by least squares."""
    y = (directions @ turn.matrix.mT).transpose(0, 1)[:, :, None]  # m h 1 k
    linear = turn.turned(y.expand(shown.shape))
    size = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    unit = torch.where(size > 0, away / size, 0)

    def across(z: Tensor) -> Tensor:
        return z - unit * (unit * z).sum(-1, keepdim=True)

    one, other = across(linear), across(shown)
    shrunk = (one * other).sum((0, -1)) / one.square().sum((0, -1))
    shrunk = shrunk[..., None]
    p = away if turn.turn is None else turn.turn.undone(away)
    if gains is None:
        weight = shrunk * size.square()
        rows = (weight * p * y).transpose(0, 1).flatten(1, 2)  # h (m n) k
        seen = ((shrunk * linear - shown) * away).sum(-1).transpose(0, 1).flatten(1)
        gains = (torch.linalg.pinv(rows) @ seen[..., None]).mT
    return Normed(shrunk, p, gains)
