r"""Norms of non-negative matrices and sums without cancellation, in batches: what the bounds over a
ball are made of.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds._norms import SLACK

STEPS = 8
"""Power steps towards the Perron vector; any number gives a bound, more give a better one."""
TINY = 1e-200


def largest_root(matrix: Float[Tensor, "*stack n n"]) -> Float[Tensor, "*stack"]:
    r"""At least $\lambda_{max}$ of a symmetric non-negative matrix: $\max_i (Mx)_i/x_i$ for a
    positive $x$ (Collatz-Wielandt).
    """
    fixed = matrix.detach()
    x = torch.ones_like(fixed[..., 0])
    for _ in range(STEPS):
        x = _positive(_product(fixed, x))
    return (_product(matrix, x) / x).amax(-1) * (1 + SLACK)


def positive_norm(matrix: Float[Tensor, "*stack m n"]) -> Float[Tensor, "*stack"]:
    r"""At least the spectral norm of a non-negative matrix $N$, from $\max_j (N^TNx)_j/x_j$."""
    fixed = matrix.detach()
    x = torch.ones_like(fixed[..., 0, :])
    for _ in range(STEPS):
        x = _positive(_product(fixed.mT, _product(fixed, x)))
    return ((_product(matrix.mT, _product(matrix, x)) / x).amax(-1) + TINY).sqrt() * (1 + SLACK)


def _product(
    matrix: Float[Tensor, "*stack m n"], x: Float[Tensor, "*stack n"]
) -> Float[Tensor, "*stack m"]:
    """Much faster than `matmul` for many small matrices."""
    return (matrix * x[..., None, :]).sum(-1)


def _positive(x: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack n"]:
    """The same direction, every entry kept away from zero."""
    return x / (x.amax(-1, keepdim=True) + TINY) + 1e-9


def others(f: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack n"]:
    r"""$\sum_{k \ne j} f_k$ for every j, no term subtracted."""
    before = F.pad(f.cumsum(-1)[..., :-1], (1, 0))
    after = F.pad(f.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return before + after


def fullest(
    gain: Float[Tensor, "*stack n"],
    order: Int[Tensor, "*stack n"],
    low: Float[Tensor, "*stack n"],
    high: Float[Tensor, "*stack n"],
) -> Float[Tensor, "*stack"]:
    r"""$\max\{\sum_j q_jc_j : l \le q \le u, \sum_j q_j = 1\}$: start at $l$, give the rest to the
    largest gains first (`order`).
    """
    room = (high - low).clamp(min=0).gather(-1, order)
    rest = (1 - low.sum(-1, keepdim=True)).clamp(min=0)
    extra = torch.minimum((rest - F.pad(room.cumsum(-1)[..., :-1], (1, 0))).clamp(min=0), room)
    return (low * gain).sum(-1) + (extra * gain.gather(-1, order)).sum(-1)


def falling(gain: Float[Tensor, "*stack n"]) -> Int[Tensor, "*stack n"]:
    return gain.detach().argsort(-1, descending=True)
