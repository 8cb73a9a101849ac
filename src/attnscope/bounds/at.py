r"""What a softmax-like attention does at one input: the pieces of its Jacobian [castin24].

For scores $s_{ij}$, $(Je)_i = \sum_h C_h[\sum_j P_{ij}(I + (x_j - m_i)\kappa_{ij}^T)e_j + C_ie_i]$
with $\kappa_{ij} = \partial_2 s_{ij}$ and $C_i = \sum_j P_{ij}(x_j - m_i)(\partial_1 s_{ij})^T$.
Particles without mass are left out.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.measures import Particles
from attnscope.norms import SLACK, TINY, largest_eigenvalue, spectral, thin

REFINED = 16
"""Rows per head whose cheap norms are replaced by exact ones; all rows when the matrices are small.
"""
SMALL, FEW = 32, 4
ENTRIES = 2**20
"""Of the tokens as several rows see them, taken together."""


@final
@dataclass(frozen=True, eq=False)
class At:
    """Attention at one measure: coupling, queries and keys as the scores see them (rotary
    included), in float64.
    """

    heads: Heads
    x: Float[Tensor, "n d"]
    weights: Float[Tensor, " n"]
    numbers: Int[Tensor, " n"]
    coupling: Float[Tensor, "h n n"]
    q: Float[Tensor, "h n k"]
    k: Float[Tensor, "h n k"]
    distance: bool
    """Whether scores are -scale |q - k|^2 and not scale <q, k>."""

    @classmethod
    def of(cls, attention: Attention, mu: Particles) -> At:
        attention, mu = attention.to(torch.float64), mu.to(torch.float64)
        numbers = torch.arange(mu.n, device=mu.x.device)
        at = numbers if attention.heads.positional else None
        keep = mu.weights > 0
        return cls(
            heads=attention.heads,
            x=mu.x[keep],
            weights=mu.weights[keep],
            numbers=numbers[keep],
            coupling=attention.coupling(mu.x, mu)[:, keep][:, :, keep],
            q=attention.heads.queries(mu.x, at)[:, keep],
            k=attention.heads.keys(mu.x, at)[:, keep],
            distance=attention.distance,
        )

    def __str__(self) -> str:
        return "at this input"

    @property
    def n(self) -> int:
        return self.x.shape[0]

    @property
    def scale(self) -> float:
        """The factor of <q, k> in the scores."""
        return (2 if self.distance else 1) * self.heads.scale

    @property
    def allowance(self) -> float:
        """For the rounding of the scores: what they err by, absolutely, is the relative error of
        the coupling.
        """
        largest = [torch.linalg.vector_norm(part, dim=-1).amax(-1) for part in (self.q, self.k)]
        return float(
            64
            * torch.finfo(self.q.dtype).eps
            * self.scale
            * (largest[0] + largest[1]).square().max()
        )

    def kappa(self, rows: slice) -> Float[Tensor, "h r m d"]:
        r"""$\partial_2 s_{ij}$ for these queries i; m = 1 when it does not depend on j."""
        q = self.q[:, rows, None]
        if self.distance:
            q = q - self.k[:, None]
        if self.heads.rotary is not None:
            at = -self.numbers
            q = self.heads.turn(q.expand(-1, -1, self.n, -1), at)
        slopes = self.scale * q.flatten(1, 2) @ self.heads.key
        return slopes.unflatten(1, q.shape[1:3])

    @functools.cached_property
    def key_slopes(self) -> Float[Tensor, "h n m"]:
        r"""$|\partial_2 s_{ij}|$, through a factor of $K^T$ so that nothing of size d is built."""
        factor = thin(self.heads.key.mT).mT  # |K^T q| = |factor^T q|
        if self.distance:
            return self.scale * torch.cdist(
                self.q @ factor, self.k @ factor, compute_mode="donot_use_mm_for_euclid_dist"
            )
        if self.heads.rotary is None:
            return self.scale * torch.linalg.vector_norm(self.q @ factor, dim=-1, keepdim=True)
        columns = [
            self.heads.turn(self.q, -number.expand(self.n)) @ factor for number in self.numbers
        ]
        return self.scale * torch.stack(
            [torch.linalg.vector_norm(column, dim=-1) for column in columns], dim=-1
        )

    def column_sums(self, factor: Float[Tensor, "h n m"] | float = 1.0) -> Float[Tensor, " h"]:
        r"""$\max_j w_j^{-1}\sum_i w_i P_{ij} \varphi_{ij}$."""
        heavy = self.coupling * factor * (self.weights[:, None] / self.weights)
        return heavy.sum(-2).amax(-1)

    def query_turned(self, row: int) -> Float[Tensor, "h k d"]:
        r"""scale $\mathrm{Rot}_iQ$, so that $C_i = \sum_j P_{ij}(x_j - m_i)k_j^T$ times it."""
        if self.heads.rotary is None:
            return self.scale * self.heads.query
        at = self.numbers[row].expand(self.heads.dim)
        return self.scale * self.heads.turn(self.heads.query.mT, at).mT

    @functools.cached_property
    def covariances(self) -> Float[Tensor, "h n"]:
        r"""Upper bounds on $\|\mathrm{Cov}_i\|$: exact where cheap or where its root times
        $|\kappa|$ is large, else Frobenius.
        """
        centred = self.x - self.x.mean(0)
        gram = (centred @ centred.mT).expand(self.heads.count, -1, -1)
        found = self._double_centred(gram, gram)
        chosen = self._chosen(found.sqrt() * self.key_slopes.amax(-1))
        exact = []
        for head, rows in chosen:
            p = self.coupling[head, rows]
            tokens = self._centred(p) * (p + TINY).sqrt()[..., None]
            small = tokens @ tokens.mT if self.n <= self.heads.dim else tokens.mT @ tokens
            exact.append(largest_eigenvalue(small))
        return _sharpened(found, chosen, exact)

    @functools.cached_property
    def query_paths(self) -> Float[Tensor, "h n"]:
        r"""Upper bounds on $\|C_i\|$ ($= \|\mathrm{Cov}_iA\|$ without rotary): Frobenius norms, and
        exact from the largest on until one is as large as all that follow can be.
        """
        if self.heads.rotary is None:
            read = self.scale * (self.k - self.k.mean(-2, keepdim=True)) @ self.heads.query
            centred = self.x - self.x.mean(0)
            found = self._double_centred(
                (centred @ centred.mT).expand(self.heads.count, -1, -1), read @ read.mT
            )
        else:
            found = torch.stack([self._query_frobenius(row) for row in range(self.n)], dim=-1) * (
                1 + SLACK
            )
        chosen, exact = [], list[Tensor]()
        largest = torch.full_like(found[:, 0], -torch.inf)
        for head, rows in self._chosen(found, FEW):
            if not largest[head] >= found[head, rows[0]]:
                moved = thin(self._moved(rows, head))
                exact.append(spectral(moved @ thin(self._turned(rows, head).mT).mT))
                chosen.append((head, rows))
                largest[head] = torch.maximum(largest[head], exact[-1].detach().max())
        return _sharpened(found, chosen, exact)

    def _turned(self, rows: Int[Tensor, " r"], head: int) -> Float[Tensor, "*r k d"]:
        """`query_turned` of a head at these rows, once where it is the same for all."""
        if self.heads.rotary is None:
            return self.scale * self.heads.query[head]
        return torch.stack([self.query_turned(int(row))[head] for row in rows])

    def _centred(self, p: Float[Tensor, "r n"]) -> Float[Tensor, "r n d"]:
        r"""$x_j - m_i$ for these rows of the coupling."""
        return self.x - (p @ self.x)[:, None]

    def _moved(self, rows: Int[Tensor, " r"], head: int) -> Float[Tensor, "r d k"]:
        r"""$\sum_j P_{ij}(x_j - m_i)k_j^T$."""
        p = self.coupling[head, rows]
        return (p[..., None] * self._centred(p)).mT @ self.k[head]

    def _query_frobenius(self, row: int) -> Float[Tensor, " h"]:
        r"""$\|C_i\|_F$ of rotary heads, through the square of the factor of size k."""
        turned = self.query_turned(row)
        rows = torch.tensor([row], device=self.x.device)
        parts = [self._moved(rows, head)[0] for head in range(self.heads.count)]
        left, right = torch.stack([part.mT @ part for part in parts]), turned @ turned.mT
        size = left.diagonal(dim1=-2, dim2=-1).sum(-1) * right.diagonal(dim1=-2, dim2=-1).sum(-1)
        return ((left * right).sum((-2, -1)).clamp(min=0) + 1e-12 * size).sqrt()

    def _chosen(
        self, size: Float[Tensor, "h n"], most: int = REFINED
    ) -> list[tuple[int, Int[Tensor, " r"]]]:
        """Heads and rows of the norms that are worth working out exactly, the largest first and
        some, or at most so many, at a time.
        """
        count = self.n if min(self.n, self.heads.dim) <= SMALL else min(REFINED, self.n)
        best = size.detach().topk(count, dim=-1).indices
        at_once = max(1, min(most, ENTRIES // self.x.numel()))
        return [(head, rows) for head, row in enumerate(best) for rows in row.split(at_once)]

    def _double_centred(
        self, left: Float[Tensor, "h n n"], right: Float[Tensor, "h n n"]
    ) -> Float[Tensor, "h n"]:
        r"""$\|\sum_j P_{ij}(x_j - m_i)y_j^T\|_F$ from the Gram matrices of x and y, rounding
        added.
        """
        p = self.coupling
        both = torch.einsum("hij,hjk,hik->hi", p, left * right, p)
        to_left, to_right = p @ left, p @ right
        mean = (p * to_left * to_right).sum(-1)
        inner = (p * to_left).sum(-1) * (p * to_right).sum(-1)
        size = (
            p
            @ left.diagonal(dim1=-2, dim2=-1)[..., None]
            * (p @ right.diagonal(dim1=-2, dim2=-1)[..., None])
        )[..., 0]
        rounding = 8 * (self.n + self.heads.dim) * torch.finfo(p.dtype).eps * size
        return ((both - 2 * mean + inner).clamp(min=0) + rounding).sqrt() * (1 + SLACK)


def _sharpened(
    found: Float[Tensor, "h n"],
    chosen: list[tuple[int, Int[Tensor, " _"]]],
    exact: list[Float[Tensor, " _"]],
) -> Float[Tensor, "h n"]:
    """`found`, smaller where the exact value is."""
    heads = torch.cat([torch.full_like(rows, head) for head, rows in chosen])
    where = heads, torch.cat([rows for _, rows in chosen])
    known = torch.full_like(found, torch.inf).index_put(where, torch.cat(exact))
    return torch.minimum(found, known)


@final
@dataclass(frozen=True, eq=False)
class Blocks:
    """The d x d blocks of the Jacobian at a measure. `effort` says how much work their norms may
    take: "exact", from small "factors" (with the constants of the layer), or "triangle".
    """

    at: At
    effort: Literal["exact", "factors", "triangle"]
    layer: object = None
    """The `BlockNorms` of the attention, where factors are used."""

    @property
    def allowance(self) -> float:
        return self.at.allowance

    def __str__(self) -> str:
        return str(self.at)
