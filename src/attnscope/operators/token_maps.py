r"""Small linear maps, one for each token, in memory linear in the size of a head: coordinates that
turn in pairs, and the derivatives of norms.

Rotary embeddings turn the query of token i by a matrix $T_i$ that mixes each coordinate r with one
other, $\pi(r)$. A norm of each head's own queries, $q = \gamma u/r(u) + \beta$ with $r(u)^2 =
|u|^2/k + \epsilon$ [zhang19], has the derivative
$$ a\big(I - p(\Gamma p)^T\big)\gamma, \qquad p = \gamma u/r,\ a = 1/r,\ \Gamma = \gamma^{-2}/k. $$
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALL = 1e-5
"""What counts as no entry of a matrix that was found by products, relative to the largest; some
networks turn in float32.
"""


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
    def of(cls, matrices: Float[Tensor, "n k k"]) -> Pairs | None:
        """These matrices as pairs, or None where they mix more coordinates."""
        own = matrices.diagonal(dim1=-2, dim2=-1)
        rest = matrices - own.diag_embed()
        size = rest.abs().amax(0)
        size = torch.maximum(size, size.mT)
        mixed = size > SMALL * matrices.abs().max()
        if bool((mixed.sum(1) > 1).any()):
            return None
        rows = torch.arange(len(size), device=size.device)
        partner = torch.where(mixed.any(1), size.argmax(1), rows)
        return cls(own.contiguous(), rest[:, rows, partner].contiguous(), partner)

    def __call__(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return torch.addcmul(self.own * z, self.other, z[..., self.partner])

    def transposed(self, z: Float[Tensor, "*stack n k"]) -> Float[Tensor, "*stack n k"]:
        return (self.other * z)[..., self.partner].addcmul_(self.own, z)

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
    r"""$a_i(I - p_i(\Gamma p_i)^T)$, g problems at once."""

    shrunk: Float[Tensor, "g n 1"]
    away: Float[Tensor, "g n k"]
    gains: Float[Tensor, "g 1 k"]

    def __call__(self, z: Float[Tensor, "g n k"]) -> Float[Tensor, "g n k"]:
        along = (self.gains * self.away * z).sum(-1, keepdim=True)
        return torch.addcmul(z, self.away, along, value=-1).mul_(self.shrunk)

    def transposed(self, z: Float[Tensor, "g n k"]) -> Float[Tensor, "g n k"]:
        along = (self.away * z).sum(-1, keepdim=True)
        return torch.addcmul(z, self.gains * self.away, along, value=-1).mul_(self.shrunk)

    def of(self, index: Int[Tensor, " c"]) -> Normed:
        """These problems alone."""
        return Normed(self.shrunk[index], self.away[index], self.gains[index])

    def to(self, dtype: torch.dtype) -> Normed:
        return Normed(self.shrunk.to(dtype), self.away.to(dtype), self.gains.to(dtype))


@final
@dataclass(frozen=True, eq=False)
class TokenMap:
    """First the norm, then the turn; either may be missing."""

    turn: Pairs | None = None
    norm: Normed | None = None

    def __call__(self, z: Float[Tensor, "g n k"]) -> Float[Tensor, "g n k"]:
        z = z if self.norm is None else self.norm(z)
        return z if self.turn is None else self.turn(z)

    def transposed(self, z: Float[Tensor, "g n k"]) -> Float[Tensor, "g n k"]:
        z = z if self.turn is None else self.turn.transposed(z)
        return z if self.norm is None else self.norm.transposed(z)

    def of(self, index: Int[Tensor, " c"]) -> TokenMap:
        """These problems alone."""
        return self if self.norm is None else dataclasses.replace(self, norm=self.norm.of(index))

    def to(self, dtype: torch.dtype) -> TokenMap:
        return TokenMap(
            None if self.turn is None else self.turn.to(dtype),
            None if self.norm is None else self.norm.to(dtype),
        )
