r"""Norms of the matrices of a layer, and how bounds for single heads make one for the layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.norms import SLACK, schatten16, spectral, spectral_of_product


@final
@dataclass(frozen=True, eq=False)
class LayerNorms:
    r"""$\|A_h\|$ and what the biases add to it, $\|V_h\|$, $\|W_hV_h\|$ and $\|W_O\|$ of the heads,
    in float64.

    With rotary heads `a` is the largest $\|A_\delta\|$ over the offsets of n tokens, up to the
    Schatten-16 norm that bounds it.
    """

    a: Float[Tensor, " h"]
    key_shift: Float[Tensor, " h"]
    """What the query bias adds to $|\\partial_2 s|$, the gradient of a score in the key token."""
    query_shift: Float[Tensor, " h"]
    """What the key bias adds to $|\\partial_1 s|$; it drops out of a softmax unless heads are
    rotary.
    """
    value: Float[Tensor, " h"]
    written: Float[Tensor, " h"]
    output: float

    @classmethod
    def of(cls, heads: Heads, n: int) -> LayerNorms:
        value, written = spectral(heads.value), _written(heads)
        return cls(
            a=(
                _rotary_norm(heads, n)
                if heads.rotary is not None
                else heads.scale * spectral_of_product(heads.key.mT, heads.query)
            ),
            key_shift=_shift(heads, heads.key, heads.query_bias),
            query_shift=_shift(heads, heads.query, heads.key_bias),
            value=value,
            written=written,
            output=_output(heads),
        )

    def combine(self, single: Float[Tensor, " h"]) -> float:
        r"""A bound for the layer from bounds $\ell_h$ for heads with value matrix I.

        The smaller of $\sum_h \|W_hV_h\| \ell_h$ and $\|W_O\| (\sum_h \|V_h\|^2 \ell_h^2)^{1/2}$.
        """
        return combined(_times(self.written, single), _times(self.value, single), self.output)


def combined(
    written: Float[Tensor, " h"], concatenated: Float[Tensor, " h"], output: float
) -> float:
    r"""$\min(\sum_h b_h, \|W_O\|(\sum_h c_h^2)^{1/2})$: bounds $b$ with, $c$ without the output
    matrices.
    """
    together = output * float(torch.linalg.vector_norm(concatenated)) if output > 0 else 0.0
    return min(float(written.sum()), together) * (1 + SLACK)


def _times(factor: Tensor, bound: Tensor) -> Tensor:
    return torch.where(factor == 0, 0.0, factor * bound)


def _written(heads: Heads) -> Float[Tensor, " h"]:
    return (
        spectral(heads.value)
        if heads.output is None
        else spectral_of_product(heads.output, heads.value)
    )


def _output(heads: Heads) -> float:
    """The norm of all output matrices side by side."""
    if heads.output is None:
        return heads.count**0.5
    return float(spectral(heads.output.permute(1, 0, 2).flatten(1)))


def _shift(
    heads: Heads, matrix: Float[Tensor, "h k d"], bias: Float[Tensor, "h k"] | None
) -> Float[Tensor, " h"]:
    if bias is None:
        return torch.zeros_like(matrix[:, 0, 0])
    if heads.rotary is not None:
        return heads.scale * spectral(matrix) * torch.linalg.vector_norm(bias, dim=-1)
    return heads.scale * torch.linalg.vector_norm((matrix.mT @ bias[..., None])[..., 0], dim=-1)


def _rotary_norm(heads: Heads, n: int) -> Float[Tensor, " h"]:
    r"""$\max_{|\delta| < n} \|A_\delta\|$, $A_\delta$ = scale $K^T \mathrm{Rot}_\delta Q$."""
    key, query = (torch.linalg.qr(part.mT, mode="r").R.mT for part in (heads.key, heads.query))
    columns = query.mT  # (h, m, k): rows are vectors of R^k that Rot turns
    largest = torch.zeros_like(heads.key[:, 0, 0])
    for offset in range(-(n - 1), n):
        at = torch.full((columns.shape[-2],), offset, device=columns.device)
        turned = heads.turn(columns, at)
        largest = torch.maximum(largest, heads.scale * schatten16(turned @ key))
    return largest
