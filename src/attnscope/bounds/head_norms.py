r"""Norms of the matrices of a layer, and how bounds for single heads make one for the layer.

A theorem bounds either a head with value matrix I (a tensor with one number per head), or a head
with its own matrices (`PerHead`), or each of these in two parts (`Parts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.norms import SLACK, schatten16, spectral, spectral_of_product, thin

OFFSETS = 64
"""Offsets of rotary heads whose matrices are held at once."""


class PerHead(NamedTuple):
    r"""Bounds for every head with its matrices: `written` of $W_hf_h$, `read` of $f_h$ before its
    output matrix.
    """

    written: Float[Tensor, "*at h"]
    read: Float[Tensor, "*at h"]


class Parts(NamedTuple):
    r"""Lipschitz constants of $(x, \mu) \mapsto \Gamma_\mu(x)$: in $x$, and in $\mu$ for $W_1$.
    The map on measures has their sum for every $W_p$; under a mask, where $W_1$ is that of what a
    token may read, `hidden` multiplies the second.
    """

    space: Float[Tensor, "*at h"] | PerHead
    measure: Float[Tensor, "*at h"] | PerHead
    hidden: float = 1.0


Stated = Float[Tensor, "*at h"] | PerHead | Parts
"""What the formula of a theorem about heads returns."""


@final
@dataclass(frozen=True, eq=False)
class LayerNorms:
    r"""$\|V_h\|$, $\|W_hV_h\|$ and $\|W_O\|$ of the heads, in float64."""

    value: Float[Tensor, " h"]
    written: Float[Tensor, " h"]
    output: Float[Tensor, ""]

    @classmethod
    def of(cls, heads: Heads) -> LayerNorms:
        value = spectral(heads.value)
        if heads.output is None:
            return cls(value, value, value.new_tensor(heads.count**0.5))
        return cls(
            value=value,
            written=spectral_of_product(heads.output, heads.value),
            output=spectral(heads.output.permute(1, 0, 2).flatten(1)),
        )

    def per_head(self, stated: Stated) -> PerHead:
        """The statement about heads with their own matrices, its parts added."""
        if isinstance(stated, Parts):
            space, measure = self.per_head(stated.space), self.per_head(stated.measure)
            return PerHead(
                space.written + stated.hidden * measure.written,
                space.read + stated.hidden * measure.read,
            )
        if isinstance(stated, PerHead):
            return stated
        return PerHead(times(self.written, stated), times(self.value, stated))

    def ways(self, heads: PerHead) -> tuple[Float[Tensor, "*at"], Float[Tensor, "*at"]]:
        r"""Two bounds for the layer: $\sum_h b_h$ and $\|W_O\|(\sum_hc_h^2)^{1/2}$, $b$ with and
        $c$ without the output matrices.
        """
        added = heads.written.sum(-1) * (1 + SLACK)
        beside = times(self.output, torch.linalg.vector_norm(heads.read, dim=-1)) * (1 + SLACK)
        return added, beside

    def combine(self, stated: Stated) -> Float[Tensor, "*at"]:
        r"""A bound for the layer. For a bound $\ell_h$ on heads with value matrix I it is the
        smaller of $\sum_h \|W_hV_h\| \ell_h$ and $\|W_O\| (\sum_h \|V_h\|^2 \ell_h^2)^{1/2}$.
        """
        return torch.minimum(*self.ways(self.per_head(stated)))


@final
@dataclass(frozen=True, eq=False)
class Slopes:
    r"""$\|A_h\|$ and what the biases add to the gradients of a score, in float64.

    With rotary heads `a` is the largest $\|A_\delta\|$ over the offsets of n tokens (None: any).
    """

    a: Float[Tensor, " h"]
    key_shift: Float[Tensor, " h"]
    """What the query bias adds to $|\\partial_2 s|$, the gradient of a score in the key token."""
    query_shift: Float[Tensor, " h"]
    """What the key bias adds to $|\\partial_1 s|$; it drops out of a softmax unless heads are
    rotary.
    """

    @classmethod
    def of(cls, heads: Heads, n: int | None) -> Slopes:
        return cls(
            a=(
                heads.scale * spectral_of_product(heads.key.mT, heads.query)
                if heads.rotary is None
                else _rotary_norm(heads, n)
            ),
            key_shift=_shift(heads, heads.key, heads.query_bias),
            query_shift=_shift(heads, heads.query, heads.key_bias),
        )


def times(factor: Tensor, bound: Tensor) -> Tensor:
    """Their product; a head that writes nothing moves nothing, however large its bound."""
    return torch.where(factor == 0, 0.0, factor * bound)


def written_bias(heads: Heads) -> Float[Tensor, " h"]:
    r"""$|W_hb_{V,h}|$."""
    if heads.value_bias is None:
        return torch.zeros_like(heads.value[:, 0, 0])
    out = (
        heads.value_bias
        if heads.output is None
        else (heads.output @ heads.value_bias[..., None])[..., 0]
    )
    return torch.linalg.vector_norm(out, dim=-1)


def bias_gap(heads: Heads) -> Float[Tensor, " h"]:
    r"""$|b_{Q,h} - b_{K,h}|$, what biases add to the distance of a query and a key."""
    gap = torch.zeros_like(heads.query[..., 0])
    gap = gap if heads.query_bias is None else gap + heads.query_bias
    gap = gap if heads.key_bias is None else gap - heads.key_bias
    return torch.linalg.vector_norm(gap, dim=-1)


def _shift(
    heads: Heads, matrix: Float[Tensor, "h k d"], bias: Float[Tensor, "h k"] | None
) -> Float[Tensor, " h"]:
    if bias is None:
        return torch.zeros_like(matrix[:, 0, 0])
    if heads.rotary is not None:
        return heads.scale * spectral(matrix) * torch.linalg.vector_norm(bias, dim=-1)
    return heads.scale * torch.linalg.vector_norm((matrix.mT @ bias[..., None])[..., 0], dim=-1)


def _rotary_norm(heads: Heads, n: int | None) -> Float[Tensor, " h"]:
    r"""$\max_{|\delta| < n} \|A_\delta\|$, $A_\delta$ = scale $K^T \mathrm{Rot}_\delta Q$: the
    Schatten-16 norms that bound it, or scale $\|K\|\|Q\|$ where that is smaller.
    """
    apart = heads.scale * spectral(heads.key) * spectral(heads.query)
    if n is None:
        return apart
    key, query = (thin(part.mT).mT for part in (heads.key, heads.query))
    columns = query.mT  # (h, m, k): rows are vectors of R^k that Rot turns
    h, m, k = columns.shape
    largest = []
    for start in range(-(n - 1), n, OFFSETS):
        offsets = torch.arange(start, min(start + OFFSETS, n), device=columns.device)
        several = columns[:, None].expand(h, len(offsets), m, k).reshape(h, -1, k)
        turned = heads.turn(several, offsets.repeat_interleave(m)).reshape(h, -1, m, k)
        largest.append(heads.scale * schatten16(turned @ key[:, None]).amax(-1))
    return torch.minimum(apart, torch.stack(largest).amax(0))
