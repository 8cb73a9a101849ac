r"""Norms and products over the whole range of floating point: multiples of maps by powers of two,
which round nothing, and norms whose squares neither overflow nor vanish.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import lengths, wide

ORDINARY = 64
"""Binary exponents up to which squares stay in range in every precision: such maps are left as they
are.
"""
SMALLEST_SQUARED, LARGEST_SQUARED = 1e-140, 1e150
"""Norms between these are the roots of sums of squares without loss."""


def in_range(sizes: Float[Tensor, " b"], dtype: torch.dtype) -> Bool[Tensor, " b"]:
    """Where a norm is right as the root of a sum of squares, and vectors of this precision can be
    divided by it.
    """
    low, high = (
        (SMALLEST_SQUARED, LARGEST_SQUARED) if dtype == torch.float64 else (2.0**-100, 2.0**100)
    )
    return (sizes > low) & (sizes < high)


def norms(vectors: Float[Tensor, "b N"]) -> Float64[np.ndarray, " b"]:
    """Euclidean norms on the host, accumulated in float64; scaled by the largest entry where
    squares would leave the range. Infinite only where the norm itself is.
    """
    made = lengths(vectors).cpu().double()
    found, lost = made.numpy(), ~in_range(made, torch.float64).numpy()
    if not lost.any():
        return found
    rows = wide(vectors[torch.as_tensor(np.flatnonzero(lost), device=vectors.device)])
    powers = exponents(rows.abs().amax(1).cpu().numpy(), beyond=0)
    small = torch.linalg.vector_norm(times_powers(rows, -powers), dim=1).cpu().numpy()
    found[lost] = np.ldexp(small, powers)
    return found


def exponents(sizes: Float64[np.ndarray, " b"], beyond: int = ORDINARY) -> Int[np.ndarray, " b"]:
    """The binary exponents of these sizes where they are larger than `beyond`, else 0."""
    found = np.frexp(sizes)[1].astype(int)
    return np.where((np.abs(found) > beyond) & np.isfinite(sizes) & (sizes > 0), found, 0)


def times_powers(
    vectors: Float[Tensor, "b N"], powers: Int[np.ndarray, " b"]
) -> Float[Tensor, "b N"]:
    """Each vector times its power of two, in three factors: one alone may be out of range."""
    made, left = wide(vectors), powers
    for _ in range(3):
        part = np.clip(left, -1000, 1000)
        left = left - part
        made = made * torch.as_tensor(np.ldexp(1.0, part), device=made.device)[:, None]
    return made.to(vectors.dtype).to(vectors.device)


def scaled(op: LinearOperator, powers: Int[np.ndarray, " b"]) -> LinearOperator:
    """A flat stack of maps, each times its power of two."""
    exact, part = op.exact, op.restrict
    return LinearOperator(
        mv=lambda u: times_powers(op.mv(u), powers),
        rmv=lambda u: times_powers(op.rmv(u), powers),
        in_shape=op.in_shape,
        out_shape=op.out_shape,
        dtype=op.dtype,
        device=op.device,
        stack=op.stack,
        exact=None if exact is None else lambda: scaled(exact(), powers),
        restrict=(
            None if part is None else lambda index: scaled(part(index), powers[index.cpu().numpy()])
        ),
        rounding=op.rounding,
    )
