r"""How much the scores of softmax-like attention move: norms of the linear part of their change,

$t_{ij} = \langle A^T(x_j - \bar x), d_i\rangle + \langle\kappa_{ij}, d_j\rangle$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near._direct import SMALL
from attnscope.bounds.near._scores import ScoresAt
from attnscope.norms import TINY, spectral


@final
@dataclass(frozen=True, eq=False)
class ScoreNorms:
    r"""`query` is $\|[A^T(x_j - \bar x)]_j\|$, `value` $\|[C(x_j - \bar x)]_j\|$, `bend`
    $\varepsilon^2$ bounds what is of second order.
    """

    reading: ScoresAt
    query: Float[Tensor, "b h"]
    value: Float[Tensor, "b h"]
    bend: Float[Tensor, " h"]

    @classmethod
    def of(cls, reading: ScoresAt) -> ScoreNorms:
        matrices = reading.matrices
        return cls(
            reading,
            spectral(reading.query),
            spectral(reading.value),
            matrices.a_norm + math.sqrt(reading.n) * matrices.m_norm / 2,
        )

    def linear(self) -> Float[Tensor, "b h"]:
        r"""At least the norm of $D \mapsto t$."""
        return self.weighed(torch.ones_like(self.reading.kappa[..., 0]))

    def weighed(self, weight: Float[Tensor, "b h n"]) -> Float[Tensor, "b h"]:
        r"""At least the norm of $D \mapsto [w_it_{ij}]$, exact for dot products when it is small.
        Else, with $L_1D = wDY^T$ and $L_2D = wKD^T$ (rows $A^T(x_j - \bar x)$ of $Y$, $\kappa_i$ of
        $K$): $\|L_1 + L_2\|^2 \le \|L_1\|^2 + \|L_2\|^2 + 2\|L_1L_2^*\|$ and $L_1L_2^*T =
        wT^TwKY^T$.
        """
        reading, top = self.reading, weight.amax(-1)
        if reading.matrices.m is not None:
            return top * (self.query + self._pair_keys())
        if reading.n * min(reading.x.shape[-2:]) <= SMALL:
            parts = (part.flatten(0, 1) for part in (weight, reading.query, reading.key))
            return torch.stack([_exact(*one) for one in zip(*parts, strict=True)]).reshape(
                top.shape
            )
        key = weight[..., None] * reading.key
        cross = top * spectral(key @ reading.query.mT)
        return ((top * self.query).square() + spectral(key).square() + 2 * cross + TINY).sqrt()

    def nearby(
        self, linear: Float[Tensor, "b h"], eps: Float[Tensor, " b"]
    ) -> Float[Tensor, "b h"]:
        """The norm `linear` at every input of the ball."""
        matrices = self.reading.matrices
        return (
            linear
            + (2 * matrices.a_norm + math.sqrt(self.reading.n) * matrices.m_norm) * eps[..., None]
        )

    def rows(self) -> Float[Tensor, "b h n"]:
        r"""At least the norm of $D \mapsto t_i$ for dot products: $(\|Y\|^2 + |\kappa_i|^2 + z_i +
        |z|)^{1/2}$, $z = Y\kappa_i$.
        """
        z = self.reading.key @ self.reading.query.mT
        cross = z.diagonal(dim1=-2, dim2=-1) + torch.linalg.vector_norm(z, dim=-1)
        return (
            self.query[..., None].square()
            + self.reading.kappa[..., 0].square()
            + cross.clamp(min=0)
            + TINY
        ).sqrt()

    def _pair_keys(self) -> Float[Tensor, "b h"]:
        r"""Column j of $[\langle\kappa_{ij}, d_j\rangle]$: at most $(\|[a_i - \bar a]\|^2 + n|\bar
        a - Mx_j|^2)^{1/2}|d_j|$.
        """
        reading = self.reading
        assert reading.matrices.m is not None
        mean = reading.key.mean(-2, keepdim=True)
        common = torch.linalg.vector_norm(
            mean - reading.x[..., None, :, :] @ reading.matrices.m, dim=-1
        ).amax(-1)
        return (spectral(reading.key - mean).square() + reading.n * common.square() + TINY).sqrt()


def _exact(
    weight: Float[Tensor, " n"], query: Float[Tensor, "n d"], key: Float[Tensor, "n d"]
) -> Float[Tensor, ""]:
    """The norm of the map from D to the n x n weighed changes, rows centred (softmax does not see
    their mean).
    """
    n, d = query.shape
    eye = torch.eye(n, dtype=query.dtype, device=query.device)
    dense = torch.einsum("i,il,ja->ijla", weight, eye, query) + torch.einsum(
        "jl,ia->ijla", eye - 1 / n, weight[:, None] * key
    )
    return spectral(dense.reshape(n * n, n * d))
