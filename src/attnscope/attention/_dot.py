r"""The kernel $e^{\langle Ax, y\rangle}$: softmax attention divides it by its mass, exponential
attention does not.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from attnscope.attention._base import Attention
from attnscope.attention._heads import Heads
from attnscope.attention._parts import Kernel
from attnscope.measures import Particles

ENTRIES_AT_ONCE = 2**22
"""Entries of the kernel that are held at once."""


def dot_kernel(
    attention: Attention,
    x: Float[Tensor, "*stack m d"],
    mu: Particles,
    positions: Float[Tensor, "*stack m"] | None,
) -> Kernel:
    """Queries and keys of the heads; the key bias is the log-weights."""
    heads, (at, to) = attention.heads, attention.token_numbers(x, mu, positions)
    k = heads.keys(mu.x, to)
    bias = mu.weights.log()[..., None, :].expand(k.shape[:-1])
    return Kernel(heads.queries(x, at), k, bias, heads.scale)


def dot_masses(heads: Heads, mu: Particles) -> Float64[Tensor, " n"]:
    r"""$z(x) = \int e^{\langle Ax,y\rangle}d\mu(y)$ at every particle x, for one head."""
    a = heads.a[0].detach()
    rows = mu.x.split(max(1, ENTRIES_AT_ONCE // mu.n))
    return torch.cat([(x @ a @ mu.x.mT).exp() @ mu.weights for x in rows]).to(torch.float64)
