r"""Small linear maps, one for each token, in memory linear in the size of a head: coordinates that
turn in pairs, and the derivatives of norms.

Rotary embeddings turn the query of token i by a matrix $T_i$ that mixes each coordinate r with one
other, $\pi(r)$. A norm of each head's own queries, $q = \gamma u/r(u) + \beta$ with $r(u)^2 =
|u|^2/k + \epsilon$ [zhang19], has the derivative
$$ a\big(I - p(\Gamma p)^T\big)\gamma, \qquad p = \gamma u/r,\ a = 1/r,\ \Gamma = \gamma^{-2}/k. $$
A norm over all heads, or of a latent that all of them read, divides every head by the same number:
$a(z - p\langle\rho, x\rangle)$, where $\rho$ reads the whole token and not the head's part z alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALL = 1e-5
"""What counts as no entry of a matrix that was found by products, relative to the largest; some
networks turn in float32.
"""
FEW_RUNS = 8
"""How many slices are copied faster than a token's numbers one by one."""


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    r"""$(T_iz)_r = a_{ir}z_r + b_{ir}z_{\pi(r)}$, where $\pi$ is its own inverse and $b_{ir} = 0$
    if $\pi(r) = r$.
    """

    own: Float[Tensor, "n k"]
    other: Float[Tensor, "n k"]
    partner: Int[Tensor, " k"]

    @classmethod
    def rotary(cls, angles: Float[Tensor, " half"], n: int) -> Pairs:
        """Coordinates (r, r + k/2) turn by angles[r] times the token's number."""
        turn = torch.arange(n, device=angles.device)[:, None].to(angles.dtype) * angles
        cos, sin, half = turn.cos(), turn.sin(), len(angles)
        partner = torch.arange(2 * half, device=angles.device).roll(half)
        return cls(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1), partner)

    @classmethod
    def of(
        cls, matrices: Float[Tensor, "n k k"], gram: Float[Tensor, "k k"] | None = None
    ) -> Pairs | None:
        """These matrices as pairs, or None where they mix more coordinates; `gram` is that of what
        they are applied to, which need not have all directions (a LayerNorm leaves one out).

        Least squares for each row r: itself and the one partner that explains most of the rest.
        """
        k = matrices.shape[-1]
        gram = torch.eye(k).to(matrices) if gram is None else gram
        own = gram.diagonal()
        beside = (own[None] - gram.square() / own[:, None]).clamp(min=0)
        seen = matrices @ gram
        alone = seen.diagonal(dim1=-2, dim2=-1) / own
        left = seen - alone[..., None] * gram
        usable = beside > SMALL * own[None]
        gains = torch.where(usable, left.square().sum(0) / beside, 0)
        gains.fill_diagonal_(0)
        rows = torch.arange(k, device=gram.device)
        partner = gains.argmax(1)
        other = left[:, rows, partner] / beside[rows, partner].clamp(
            min=torch.finfo(own.dtype).tiny
        )
        size = other.abs().amax(0) * own[partner].sqrt()
        mixed = size > SMALL * (alone.abs().amax(0) * own.sqrt()).clamp(min=size)
        partner = torch.where(mixed, partner, rows)
        if not torch.equal(partner[partner], rows):
            return None
        other = torch.where(mixed, other, 0)
        first = alone - other * gram[rows, partner] / own
        found = cls(first.contiguous(), other.contiguous(), partner)
        away = found.matrices() - matrices
        size = ((away @ gram) * away).sum(-1).clamp(min=0)
        whole = (seen * matrices).sum(-1)
        return found if bool((size <= SMALL**2 * whole.amax(0)).all()) else None

    def matrices(self) -> Float[Tensor, "n k k"]:
        """T_i in full."""
        n, k = self.own.shape
        unit = torch.eye(k, dtype=self.own.dtype, device=self.own.device)
        return self(unit[:, None].expand(k, n, k)).permute(1, 2, 0)

    def __call__(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return torch.addcmul(self.own * z, self.other, self._partners(z))

    def transposed(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return self._partners(self.other * z).addcmul_(self.own, z)

    def _partners(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        """$z_{\\pi(r)}$ for every r; whole slices are copied seven times as fast as single
        numbers.
        """
        if len(self._runs) > FEW_RUNS:
            return z.index_select(-1, self.partner)
        return torch.cat([z[..., run] for run in self._runs], -1)

    @cached_property
    def _runs(self) -> list[slice]:
        """Partners one after the other as ranges: two where halves of a head turn together."""
        numbers = self.partner.tolist()
        breaks = [r for r in range(1, len(numbers)) if numbers[r] != numbers[r - 1] + 1]
        starts, stops = [0, *breaks], [*breaks, len(numbers)]
        return [slice(numbers[a], numbers[b - 1] + 1) for a, b in zip(starts, stops, strict=True)]

    def undone(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        """The inverse: two equations for each pair."""
        own, other = self.own[:, self.partner], self.other[:, self.partner]
        alone = other.eq(0) & self.other.eq(0)
        size = torch.where(alone, self.own, self.own * own - self.other * other)
        return (torch.where(alone, 1, own) * z - self.other * z[..., self.partner]) / size

    def to(self, dtype: torch.dtype) -> Pairs:
        return Pairs(self.own.to(dtype), self.other.to(dtype), self.partner)


@final
@dataclass(frozen=True, eq=False)
class Normed:
    r"""$a_i(z_i - p_is_i)$, g problems at once: $s_i = \langle w_i, z_i\rangle$, or a number that
    is read elsewhere where `toward` is None.
    """

    shrunk: Float[Tensor, "g n #k"]
    away: Float[Tensor, "g n k"]
    toward: Float[Tensor, "g n k"] | None

    def __call__(
        self, z: Float[Tensor, "g n k"], number: Float[Tensor, "#g n 1"] | None = None
    ) -> Float[Tensor, "g n k"]:
        if self.toward is not None:
            number = (self.toward * z).sum(-1, keepdim=True)
        assert number is not None, "a norm over all heads wants the number that they share"
        return torch.addcmul(z, self.away, number, value=-1).mul_(self.shrunk)

    def transposed(
        self, z: Float[Tensor, "g n k"]
    ) -> tuple[Float[Tensor, "g n k"], Float[Tensor, "g n 1"] | None]:
        """The adjoint, and what goes back to a number that was read elsewhere."""
        z = self.shrunk * z
        number = (self.away * z).sum(-1, keepdim=True).neg_()
        if self.toward is None:
            return z, number
        return z.addcmul_(self.toward, number), None

    def each(self, change: Callable[[Tensor], Tensor]) -> Normed:
        """Every part changed in the same way."""
        toward = None if self.toward is None else change(self.toward)
        return Normed(change(self.shrunk), change(self.away), toward)


@final
@dataclass(frozen=True, eq=False)
class TokenMap:
    """First the norm, then the turn; either may be missing."""

    turn: Pairs | None = None
    norm: Normed | None = None

    def __call__(
        self, z: Float[Tensor, "g n k"], number: Float[Tensor, "#g n 1"] | None = None
    ) -> Float[Tensor, "g n k"]:
        z = z if self.norm is None else self.norm(z, number)
        return z if self.turn is None else self.turn(z)

    def transposed(
        self, z: Float[Tensor, "g n k"]
    ) -> tuple[Float[Tensor, "g n k"], Float[Tensor, "g n 1"] | None]:
        z = z if self.turn is None else self.turn.transposed(z)
        return (z, None) if self.norm is None else self.norm.transposed(z)

    def of(self, index: Int[Tensor, " c"]) -> TokenMap:
        """These problems alone."""
        if self.norm is None:
            return self
        return dataclasses.replace(self, norm=self.norm.each(lambda part: part[index]))

    def to(self, dtype: torch.dtype) -> TokenMap:
        return TokenMap(
            None if self.turn is None else self.turn.to(dtype),
            None if self.norm is None else self.norm.each(lambda part: part.to(dtype)),
        )
