r"""A softmax-like layer at one input, as the bounds over a ball around it need it.

Up to a constant of the row, scores are $s_{ij} = \langle Ax_i + v, x_j\rangle - \frac12\langle
Mx_j, x_j\rangle + c_{ij}$. Dot products have $M = 0$, L2 attention has $A = 2sK^TQ$, $M = 2sK^TK$,
$v = 2sK^T(b_Q - b_K)$. Their gradient in the key token is $\kappa_{ij} = Ax_i + v - Mx_j$, in the
query token $A^Tx_j$ up to a constant of the row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.attention import Heads
from attnscope.bounds.near._sums import falling
from attnscope.norms import spectral


@final
@dataclass(frozen=True, eq=False)
class HeadMatrices:
    r"""The matrices of every head and their norms. `c` is $C_h = W_hV_h$; `m` is None for dot
    products. Tokens move in k directions: all d of them, or those of a span.
    """

    a: Float[Tensor, "h k k"]
    c: Float[Tensor, "h d k"]
    shift: Float[Tensor, "h k"]
    m: Float[Tensor, "h d d"] | None
    a_norm: Float[Tensor, " h"]
    c_norm: Float[Tensor, " h"]
    m_norm: Float[Tensor, " h"]

    @classmethod
    def of(cls, heads: Heads, distance: bool) -> HeadMatrices:
        """`distance` says whether scores are minus squared distances, or else dot products."""
        factor = 2 if distance else 1
        a, c = factor * heads.a, heads.values
        m = 2 * heads.scale * heads.key.mT @ heads.key if distance else None
        zero = torch.zeros_like(a[:, 0, 0])
        return cls(
            a,
            c,
            factor * _shift(heads, distance),
            m,
            spectral(a),
            spectral(c),
            zero if m is None else spectral(m),
        )

    @property
    def key_norms(self) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
        r"""By how much $\kappa_{ij}$ can grow per unit of movement, for $i \ne j$ and for $i = j$:
        $\|[A, -M]\|$ and $\|A - M\|$.
        """
        if self.m is None:
            return self.a_norm, self.a_norm
        return spectral(torch.cat([self.a, -self.m], dim=-1)), spectral(self.a - self.m)


def _shift(heads: Heads, distance: bool) -> Float[Tensor, "h d"]:
    r"""$sK^Tb_Q$, or $sK^T(b_Q - b_K)$ for distances."""
    bias = torch.zeros_like(heads.key[..., 0])
    bias = bias if heads.query_bias is None else bias + heads.query_bias
    bias = bias - heads.key_bias if distance and heads.key_bias is not None else bias
    return heads.scale * (heads.key.mT @ bias[..., None])[..., 0]


@final
@dataclass(frozen=True, eq=False)
class ScoresAt:
    r"""Coupling and distances at the input. Vectors of token j are centred where only differences
    of tokens matter.

    `query` are the rows $A^T(x_j - \bar x)$, `key` the rows $Ax_i + v$, `own` the rows
    $\kappa_{ii}$, `value` the rows $C(x_j - \bar x)$.
    """

    matrices: HeadMatrices
    x: Float[Tensor, "b n d"]
    log_p: Float[Tensor, "b h n n"]
    p: Float[Tensor, "b h n n"]
    allowed: Bool[Tensor, "n n"]
    query: Float[Tensor, "b h n k"]
    key: Float[Tensor, "b h n k"]
    own: Float[Tensor, "b h n k"]
    value: Float[Tensor, "b h n d"]
    kappa: Float[Tensor, "b h n m"]
    r"""$|\kappa_{ij}|$; m = 1 when it does not depend on j."""
    y: Float[Tensor, "b h n n"]
    r"""$|A^T(x_j - m_i)|$, $m_i = \sum_jP_{ij}x_j$."""
    b: Float[Tensor, "b h n n"]
    r"""$|C(x_j - m_i)|$."""
    y_order: Int[Tensor, "b h n n"]
    b_order: Int[Tensor, "b h n n"]

    @classmethod
    def of(
        cls,
        matrices: HeadMatrices,
        scores: Float[Tensor, "b h n n"],
        x: Float[Tensor, "b n d"],
        causal: bool,
    ) -> ScoresAt:
        n = x.shape[-2]
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device)
        allowed = allowed.tril() if causal else allowed
        scores = scores.masked_fill(~allowed, float("-inf"))
        log_p = torch.log_softmax(scores, dim=-1)
        p = log_p.exp()
        tokens = x[..., None, :, :]
        centred = tokens - tokens.mean(-2, keepdim=True)
        query, key, value = (
            centred @ matrices.a,
            tokens @ matrices.a.mT + matrices.shift[:, None],
            centred @ matrices.c.mT,
        )
        own, kappa = key, torch.linalg.vector_norm(key, dim=-1, keepdim=True)
        if matrices.m is not None:
            turned = tokens @ matrices.m
            own, kappa = key - turned, distances(key, turned)
        y, b = distances(p @ query, query), distances(p @ value, value)
        return cls(
            matrices,
            x,
            log_p,
            p,
            allowed,
            query,
            key,
            own,
            value,
            kappa,
            y,
            b,
            falling(y),
            falling(b),
        )

    def along(self, span: Float[Tensor, "d k"]) -> ScoresAt:
        r"""The same for tokens that move by $d_i = B\delta_i$ only, B with orthonormal columns:
        what meets a movement is multiplied by B, and no more than that.

        $A$, $C$, $\kappa$ and $A^Tx_j$ become $B^TAB$, $CB$, $B^T\kappa$ and $B^TA^Tx_j$; the
        values $Cx_j$ stay. Dot products only.
        """
        given = self.matrices
        assert given.m is None
        a, c = span.mT @ given.a @ span, given.c @ span
        matrices = HeadMatrices(
            a, c, given.shift @ span, None, spectral(a), spectral(c), given.m_norm
        )
        query, key = self.query @ span, self.key @ span
        y = distances(self.p @ query, query)
        return dataclasses.replace(
            self,
            matrices=matrices,
            query=query,
            key=key,
            own=key,
            kappa=torch.linalg.vector_norm(key, dim=-1, keepdim=True),
            y=y,
            y_order=falling(y),
        )

    @property
    def n(self) -> int:
        return self.x.shape[-2]


def distances(x: Float[Tensor, "b h m d"], y: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h m n"]:
    """|x_i - y_j| by differences: no digits are lost to large norms."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
