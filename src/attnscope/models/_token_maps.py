r"""How queries, keys and values of each head move with their tokens, in memory linear in the size
of a head: a matrix for all tokens, a turn that the position alone makes, and a norm, of each head's
own queries or keys or of something that all heads read.

The matrix and the turn are those at tokens 0, where a norm is as good as linear: $D_i(0) = T_iM$.
At other tokens a norm makes $D_i = T_i\,a_i(M - p_i\rho_i^T)$, $p_i$ what the value is away from
that at 0, turned back (`operators.token_maps`); $\rho_i = M^T\Gamma p_i$ where the norm is the
head's own. Behind a bias a norm is not linear at 0: there M is found far away, where biases no
longer count, but for coordinates that no norm bends (keys of DeepSeek have both kinds). The numbers
$a_i$, $\Gamma$ and $\rho_i$ come from a few products of the module's own code, and all of it is
confirmed on random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.bounds.smooth.moves import Moves
from attnscope.models._far import far_away
from attnscope.models._moves import AGREE, FEW, Given, moved, turned_at
from attnscope.models._rebuilt import gap
from attnscope.operators.token_maps import Normed, Pairs, TokenMap

ROWS = 4
"""How many equations are asked for each number of a least squares problem."""


class HeadMap(NamedTuple):
    """Queries, keys or values of all heads: a matrix for all tokens, then a map for each; problems
    are heads times sequences, the sequences of a head side by side.
    """

    matrix: Float[Tensor, "h k d"]
    each: TokenMap
    number: Float[Tensor, "b n d"] | None
    r"""$\rho$ of a norm over all heads"""


def head_maps(
    given: Given,
    sequences: Sequence[Float[Tensor, "n d"]],
    few: int = FEW,
    known: Sequence[Float[Tensor, "h _ d"]] | None = None,
) -> tuple[HeadMap, HeadMap, HeadMap] | None:
    """How queries, keys and values move at these sequences of one length; None where they have
    another form. The model reads as `few` tokens; `known` are their matrices, if somebody has them.
    """
    nothing = torch.zeros_like(sequences[0])
    turns = [_Turned.of(moves) for moves in turned_at(given, nothing, few, known)]
    with torch.no_grad():
        start = given(nothing)
    probes = [_Probe(given, x) for x in sequences]
    found, far = list[HeadMap](), None
    for i, turn in enumerate(turns):
        if turn is None:
            return None
        made = _head_map(turn, start[i].double(), probes, i)
        if made is None:
            far = far_away(given, sequences[0].shape, few, nothing) if far is None else far
            bent = torch.stack([probe.bent(i, turn.matrix, turn.turn) for probe in probes]).any(0)
            matrix = torch.where(bent[:, None], far[i].matrix(bent), turn.matrix)
            middle = torch.where(bent, far[i].middle, start[i].double())
            made = _head_map(turn._replace(matrix=matrix), middle, probes, i)
        if made is None:
            return None
        found.append(made)
    query, key, value = found
    one, other = key.number, value.number
    if one is not None and other is not None and gap(other, one) <= AGREE:
        value = value._replace(number=one)  # keys and values of one latent
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
        gram = (moves.rows @ moves.rows.mT).sum(0)
        pairs = Pairs.of(moves.inner[0], gram)
        return None if pairs is None else cls(moves.rows, pairs)

    def turned(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return z if self.turn is None else self.turn(z)

    def back(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return z if self.turn is None else self.turn.undone(z)

    def transposed(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return z if self.turn is None else self.turn.transposed(z)


class _Probe:
    """What the module's own code says about one sequence."""

    def __init__(self, given: Given, x: Float[Tensor, "n d"]) -> None:
        generator = torch.Generator().manual_seed(17)
        self.given, self.x = given, x
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

    def confirms(
        self, i: int, matrix: Tensor, each: TokenMap, rho: Float[Tensor, "n d"] | None = None
    ) -> bool:
        """Whether these maps predict a random product."""
        change = self.changes[i]
        number = None if rho is None else (rho * self.tangent).sum(-1, keepdim=True)[None]
        away = (each(self.tangent @ matrix.mT, number) - change).abs().amax()
        return bool(away <= AGREE * change.abs().amax())

    def bent(self, i: int, matrix: Tensor, turn: Pairs | None) -> Bool[Tensor, " k"]:
        """The coordinates that do not move as this matrix and turn say."""
        away = TokenMap(turn)(self.tangent @ matrix.mT) - self.changes[i]
        return away.abs().amax((0, 1)) > AGREE * self.changes[i].abs().amax()

    def pulled(self, i: int, back: Float[Tensor, "h n k"]) -> Float[Tensor, "n d"]:
        """The adjoint of the derivative."""
        value, pull = torch.func.vjp(lambda x: self.given(x)[i], self.x)[:2]
        found: Tensor = pull(back.to(value.dtype))[0]
        return found.detach().double()


def _head_map(
    turn: _Turned, start: Float[Tensor, "h n k"], probes: Sequence[_Probe], i: int
) -> HeadMap | None:
    plain = TokenMap(turn.turn)
    if all(probe.confirms(i, turn.matrix, plain) for probe in probes):
        return HeadMap(turn.matrix, plain, None)
    own = _own_norms(turn, start, probes, i)
    if own is not None:
        return HeadMap(turn.matrix, own, None)
    norms, numbers = list[Normed](), list[Tensor]()
    for probe in probes:
        norm, rho = _shared_norm(turn, start, probe, i)
        if not probe.confirms(i, turn.matrix, TokenMap(turn.turn, norm), rho):
            return None
        norms.append(norm)
        numbers.append(rho)
    return HeadMap(turn.matrix, TokenMap(turn.turn, _stacked(norms)), torch.stack(numbers))


def _own_norms(
    turn: _Turned, start: Float[Tensor, "h n k"], probes: Sequence[_Probe], i: int
) -> TokenMap | None:
    norms, gains = list[Normed](), None
    for probe in probes:
        norm, gains = _normed(
            turn, probe.values[i] - start, probe.directions, probe.shown[i], gains
        )  # gains are those of the weights: the same for all sequences
        if not probe.confirms(i, turn.matrix, TokenMap(turn.turn, norm)):
            return None
        norms.append(norm)
    return TokenMap(turn.turn, _stacked(norms))


def _stacked(norms: Sequence[Normed]) -> Normed:
    """The sequences of a head side by side."""
    shrunk = torch.stack([norm.shrunk for norm in norms], 1).flatten(0, 1)
    away = torch.stack([norm.away for norm in norms], 1).flatten(0, 1)
    toward = [norm.toward for norm in norms if norm.toward is not None]
    return Normed(shrunk, away, torch.stack(toward, 1).flatten(0, 1) if toward else None)


def _normed(
    turn: _Turned,
    away: Float[Tensor, "h n k"],
    directions: Float[Tensor, "m d"],
    shown: Float[Tensor, "m h n k"],
    gains: Float[Tensor, "h 1 k"] | None,
) -> tuple[Normed, Float[Tensor, "h 1 k"]]:
    """The derivative of each head's own norm and its gains, from products along a few directions by
    least squares.
    """
    y = (directions @ turn.matrix.mT).transpose(0, 1)[:, :, None]  # m h 1 k
    linear = turn.turned(y.expand(shown.shape))
    size = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    shrunk = _ratio(linear, shown, away / size, (0, -1))
    p = turn.back(away)
    if gains is None:
        weight = shrunk * size.square()
        rows = (weight * p * y).transpose(0, 1).flatten(1, 2)  # h (m n) k
        seen = ((shrunk * linear - shown) * away).sum(-1).transpose(0, 1).flatten(1)
        gains = (torch.linalg.pinv(rows) @ seen[..., None]).mT
    return Normed(shrunk, p, gains * p), gains


def _shared_norm(
    turn: _Turned, start: Float[Tensor, "h n k"], probe: _Probe, i: int
) -> tuple[Normed, Float[Tensor, "n d"]]:
    r"""The derivative of a norm that divides all heads by one number, in those coordinates that it
    divides, and $\rho$: with $p_i$ for a cotangent, $D_i^TT_ip_i = a_i(M^TT_i^TT_ip_i -
    \rho_i\langle p_i, T_i^TT_ip_i\rangle)$, summed over the heads.
    """
    shown = probe.shown[i]
    y = (probe.directions @ turn.matrix.mT).transpose(0, 1)[:, :, None]
    linear = turn.turned(y.expand(shown.shape))
    bends = (shown - linear).abs().amax((0, 1, 2)) > AGREE * linear.abs().amax((0, 1, 2))
    away = (probe.values[i] - start) * bends
    size = torch.linalg.vector_norm(away, dim=(0, -1), keepdim=True)
    shrunk = _ratio(linear * bends, shown * bends, away / size, (0, 1, -1))  # 1 n 1
    p, back = turn.back(away), turn.transposed(away)
    pulled = probe.pulled(i, away) / shrunk[0]
    whole = (p * back).sum((0, -1))[:, None]
    rho = (torch.einsum("hnk,hkd->nd", back, turn.matrix) - pulled) / whole
    return Normed(torch.where(bends, shrunk, 1).expand(away.shape), p, None), rho


def _ratio(
    linear: Float[Tensor, "m h n k"],
    shown: Float[Tensor, "m h n k"],
    unit: Float[Tensor, "h n k"],
    over: tuple[int, ...],
) -> Float[Tensor, "... n 1"]:
    """How much smaller what is shown is than what is linear, across `unit`, whose axes are those of
    `over` but the first.
    """
    unit, axes = torch.nan_to_num(unit), tuple(axis for axis in over if axis)
    one, other = (part - unit * (unit * part).sum(axes, keepdim=True) for part in (linear, shown))
    return ((one * other).sum(over, keepdim=True) / one.square().sum(over, keepdim=True))[0]
