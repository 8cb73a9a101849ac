r"""A few heads of a wide model act on a small subspace: there the search for worst inputs costs as
much as in a small model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Heads

Variant = TypeVar("Variant", bound=Attention)


def reduced(attention: Variant) -> tuple[Variant, Float[Tensor, "d r"] | None]:
    r"""The same attention on the span of all rows of $Q_h, K_h, V_h$, and an orthonormal basis $B$
    of it; None where nothing is saved.

    What lies outside the span is never read, so that at $X = ZB^T$ the Jacobians of both have the
    same nonzero singular values; the outputs $W_h$ are replaced by their triangular factor.
    """
    heads = attention.heads
    rows = torch.cat([part.flatten(0, 1) for part in (heads.query, heads.key, heads.value)])
    if heads.output is None or len(rows) >= heads.dim:
        return attention, None
    basis = torch.linalg.qr(rows.mT).Q
    written = torch.linalg.qr(heads.output.permute(1, 0, 2).flatten(1)).R
    output = written.new_zeros(len(rows), written.shape[1])
    output[: len(written)] = written
    small = Heads(
        query=heads.query @ basis,
        key=heads.key @ basis,
        value=heads.value @ basis,
        output=output.unflatten(1, (heads.count, -1)).transpose(0, 1).contiguous(),
        query_bias=heads.query_bias,
        key_bias=heads.key_bias,
        value_bias=heads.value_bias,
        scale=heads.scale,
        rotary=heads.rotary,
        position_bias=heads.position_bias,
    )
    return replace(attention, heads=small), basis
