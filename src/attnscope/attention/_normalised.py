r"""Attention whose coupling is a softmax: $c_{ij} \propto \exp(s \langle q_i, k_j \rangle +
\beta_j)$ over the particles that i may read.

Softmax, L2 and Sinkhorn attention differ only in the factor $s$ and in the key bias $\beta_j$
(log-weights, squared norms, dual potentials), so one evaluation and one pair of derivative kernels
serve all three.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Attention
from attnscope.attention._parts import Kernel
from attnscope.attention._rows import CHUNK_BYTES, by_rows
from attnscope.measures import Particles

FUSED_BYTES = 2**30
"""Size of the coupling behind one fused call: a backend without a fused kernel then still stays in
memory.
"""


@dataclass(frozen=True, eq=False)
class Normalised(Attention):
    """Rows of the coupling are positive and sum to one."""

    normalised: ClassVar[bool] = True

    @abstractmethod
    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel:
        """Queries, keys, key bias (log-weights included) and score scale."""

    def coupling(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        q, k, bias, scale = self.kernel(x, mu, positions)
        scores = scale * q @ k.mT + bias[..., None, :]
        position_bias = self.position_bias(*self.token_numbers(x, mu, positions))
        if position_bias is not None:
            scores = scores + position_bias
        visible = self.visible(x, mu, positions)
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        return torch.softmax(scores, dim=-1)

    def evaluate(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None,
    ) -> Float[Tensor, "*stack m d"]:
        """Small couplings are held whole, large ones go through torch's fused kernel with the key
        bias as one extra key column.
        """
        per_row = self.heads.count * mu.weights.numel()
        if per_row * x.shape[-2] * x.element_size() <= CHUNK_BYTES:
            return self.dense(x, mu, positions)
        if self.heads.position_bias is not None:
            return by_rows(lambda x, positions: self.dense(x, mu, positions), x, positions, per_row)
        q, k, bias, scale = self.kernel(x, mu, positions)
        v = self.heads.read(mu.x)
        least = torch.finfo(bias.dtype).min / 16
        q = torch.cat([q, torch.ones_like(q[..., :1])], dim=-1)
        k = torch.cat([k, (bias / scale).clamp(min=least)[..., None]], dim=-1)
        width = max(k.shape[-1], v.shape[-1])
        q, k, padded = (F.pad(part, (0, width - part.shape[-1])) for part in (q, k, v))
        out = self._fused(q, k, padded, scale, x, mu, positions)
        return self.heads.write(out[..., : v.shape[-1]])

    def _fused(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        x: Tensor,
        mu: Particles,
        positions: Tensor | None,
    ) -> Tensor:
        """torch's fused attention, a block of rows at a time; the fused kernel wants one width for
        q, k and v.
        """
        in_order = (
            mu.positions is None
            and q.shape[-2] == k.shape[-2]
            and positions is not None
            and torch.equal(positions, mu.places())
        )
        if self.causal and in_order:
            return _attend(q, k, v, scale, is_causal=True)

        def block(start: int, stop: int) -> Tensor:
            where = None if positions is None else positions[..., start:stop]
            mask = self.visible(x[..., start:stop, :], mu, where)
            return _attend(q[..., start:stop, :], k, v, scale, attn_mask=mask)

        rows = max(
            1,
            (CHUNK_BYTES if self.causal else FUSED_BYTES)
            // (self.heads.count * mu.weights.numel() * x.element_size()),
        )
        return torch.cat(
            [block(start, start + rows) for start in range(0, q.shape[-2], rows)], dim=-2
        )


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """torch's attention on (stack, h, n, k): its fused kernels take four axes, and fall back to a
    dense n x n matrix otherwise.
    """
    stack = q.shape[:-3]
    q, k, v = (part.reshape(-1, *part.shape[-3:]) for part in (q, k, v))
    mask = None if attn_mask is None else attn_mask.reshape(-1, *attn_mask.shape[-3:])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
    return out.reshape(*stack, *out.shape[1:])
