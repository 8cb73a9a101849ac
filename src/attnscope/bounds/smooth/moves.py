r"""How queries, keys or values move with their tokens: $D_j = B_jM$ for each head, with one matrix
M for all tokens and a small $B_j$ for each.

A linear map has $B_j = I$, a rotary embedding turns it by its position, a norm of each head's own
queries multiplies it: none of them needs a $k \times d$ matrix for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.norms import SLACK, largest_eigenvalue

EQUAL = 1e-13
"""How far derivatives of tokens may differ, relative to their size, and count as one matrix."""


@final
@dataclass(frozen=True, eq=False)
class Moves:
    """`inner` may have length 1 along heads and tokens: one matrix for all of them. `error` is how
    far a random product was from what they predict, relative to its size.
    """

    inner: Float[Tensor, "a m k r"]
    rows: Float[Tensor, "h r d"]
    error: float = 0.0

    @classmethod
    def dense(cls, moves: Float[Tensor, "h n k d"]) -> Moves:
        """From the derivative of every token."""
        first = moves[:, :1]
        if bool((moves - first).abs().amax() <= EQUAL * first.abs().amax()):
            return cls.alike(first[:, 0])
        h, _, _, d = moves.shape
        return cls(moves, torch.eye(d, dtype=moves.dtype, device=moves.device).expand(h, d, d))

    @classmethod
    def alike(cls, matrix: Float[Tensor, "h k d"]) -> Moves:
        """One derivative for all tokens."""
        k = matrix.shape[1]
        return cls(torch.eye(k, dtype=matrix.dtype, device=matrix.device)[None, None], matrix)

    @property
    def one(self) -> Float[Tensor, "h k d"] | None:
        """The derivative that all tokens share, or None."""
        return self.inner[:, 0] @ self.rows if self.inner.shape[1] == 1 else None

    @cached_property
    def grams(self) -> Float[Tensor, "h h r r"]:
        r"""$M_hM_g^T$."""
        return torch.einsum("hrd,gsd->hgrs", self.rows, self.rows)

    def of(self, head: int) -> tuple[Float[Tensor, "m k r"], Float[Tensor, "r r"]]:
        """What one head has: $B_j$ and $MM^T$."""
        rows = self.rows[head]
        return self.inner[head if len(self.inner) > 1 else 0], rows @ rows.mT

    def products(self, left: Float[Tensor, "i h v r"]) -> Float[Tensor, "i m m"]:
        r"""$L_hM_hM_g^TL_g^T$ for all pairs of heads, m = hv, of $L_h$ beside $B_j$."""
        if self.rows.shape[1] == self.rows.shape[2]:  # nothing to save
            flat = (left @ self.rows).flatten(1, 2)
            return flat @ flat.mT
        made = torch.einsum("ihvk,hgkl->ighvl", left, self.grams).flatten(2, 3) @ left.mT
        return made.transpose(1, 2).flatten(2)

    def along(self, tangent: Float[Tensor, "n d"]) -> Float[Tensor, "h n k"]:
        """How far queries, keys or values go when each token goes along its tangent."""
        return (self.inner @ (tangent @ self.rows.mT)[..., None])[..., 0]

    def norms(self, left: Float[Tensor, "h w k"]) -> Float[Tensor, "h m"]:
        r"""$\|L_hB_jM_h\|$, a head at a time; m is 1 where tokens are alike."""
        found = []
        for head, matrix in enumerate(left):
            inner, gram = self.of(head)
            found.append(norms_of(matrix @ inner, gram))
        return torch.stack(found)


def norms_of(
    left: Float[Tensor, "*stack w r"], gram: Float[Tensor, "r r"]
) -> Float[Tensor, "*stack"]:
    r"""$\|LM\|$ from $MM^T$, for L with few rows."""
    return largest_eigenvalue(left @ gram @ left.mT).sqrt() * (1 + SLACK)
