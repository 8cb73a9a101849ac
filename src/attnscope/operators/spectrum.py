r"""The largest singular values of a linear map, as brackets that say what they prove.

`lower` is $\|Jz\|/\|z\|$ for one vector z, computed in float64: a lower bound whatever happened
before. `upper`, when asked for, holds with probability at least 1 - failure_probability over the
random start, for the whole stack at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.operators.deflation import REST, bracketed
from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import wide
from attnscope.operators.search import precision_of
from attnscope.operators.starts import Near, draw, smaller_side
from attnscope.validation import brief, check_kind, check_positive, described

MOST_ROUNDING = 1e-3
"""The relative error of products beyond which nothing is said of a map in its own precision."""


@dataclass(frozen=True, eq=False)
class SpectralNorm:
    """A bracket for the largest singular value: numbers for one map, tensors of the stack's shape
    for a stack.

    `lower` is proved up to rounding; `upper` holds with the probability asked for (None if none was
    asked, NaN where the start was atypical); `residual` is relative, after the last pair of
    products; `left` and `right` are the singular vectors found, of norm one in the metric of the
    map.
    """

    lower: float | Tensor
    upper: float | Tensor | None
    residual: float | Tensor
    pairs: int | Tensor
    converged: bool | Tensor
    atypical: bool | Tensor
    left: Tensor
    right: Tensor
    around: Tensor = field(repr=False)
    """A blend of the leading singular vectors of the smaller side, for `Near`."""
    finish: str = ""
    """Precision and device of the last product, which makes `lower`: float64 on the device of the
    map, or on the CPU where that has none; the map's own where no float64 form is known.
    """

    __repr__ = brief


def spectral_norm(
    op: LinearOperator,
    tol: float = 1e-6,
    failure_probability: float | None = None,
    seed: int = 0,
    max_pairs: int = 200,
    near: Near | None = None,
) -> SpectralNorm:
    r"""$\sigma_{\max} = \|J\|_2$ in the metric of the map, by Golub-Kahan-Lanczos from a random
    start, or from one `near` the singular vectors of a similar map with as much fresh noise: that
    halves the pairs of an estimate, and keeps the upper bound valid.

    Without `failure_probability` it stops when the estimated relative error is below `tol` (and
    below 1e-6, unless a start in a hundred is all that could miss the tolerance) and the value
    stands alone among its neighbours: an estimate, that goes on where the spectrum is dense at its
    top. With it, it stops when the bracket is that narrow (never narrower than the rounding of the
    map's precision). What `max_pairs` or rounding cuts short reports `converged=False` and its
    bracket.
    """
    check_call(op, tol, failure_probability, max_pairs)
    if near is not None:
        check_kind("near", near, Near)
    op = legible(op)
    weights, stack = op.weights, op.stack
    broad = op.shape[0] < op.shape[1]
    flat = op.flat()
    at = None if near is None else near.flat(op)
    run = () if near is None else near.run
    found = bracketed(
        flat.adjoint() if broad else flat,
        lambda op, attempt: draw(op, seed, attempt, at if attempt < REST else None, run),
        tol,
        failure_probability,
        max_pairs,
    )
    left, right = (found.left, found.right) if not broad else (found.right, found.left)

    def shaped(values: np.ndarray) -> Any:
        return values[0].item() if not stack else torch.as_tensor(values).reshape(stack)

    root = 1.0 if weights is None else wide(weights).sqrt().unsqueeze(-1)
    return SpectralNorm(
        lower=shaped(found.lower),
        upper=None if found.upper is None else shaped(found.upper),
        residual=shaped(found.residual),
        pairs=shaped(found.pairs),
        converged=shaped(found.converged),
        atypical=shaped(found.atypical),
        left=left.reshape((*stack, *op.out_shape)) / root,
        right=right.reshape((*stack, *op.in_shape)) / root,
        around=wide(found.around).reshape((*stack, *smaller_side(op))) / root,
        finish=found.finish,
    )


def legible(op: LinearOperator) -> LinearOperator:
    """The map itself, or in float64 where its own precision keeps too few digits of a product."""
    if op.rounding > MOST_ROUNDING and op.dtype != torch.float64 and op.exact is not None:
        op = op.exact()
    if not op.rounding <= MOST_ROUNDING:
        raise ValueError(
            "the scores of attention overflow the digits of"
            f" {precision_of(op)}: a product with this map is wrong by about"
            f" {op.rounding:.1g} of its size. Scale the tokens or the matrices down."
        )
    return op


def check_call(op: object, tol: float, failure_probability: float | None, max_pairs: int) -> None:
    if not isinstance(op, LinearOperator):
        raise TypeError(
            f"spectral_norm needs a LinearOperator, got {described(op)}. Build one with"
            " jacobian(attention, mu)."
        )
    check_positive("tol", tol)
    if isinstance(max_pairs, bool) or not isinstance(max_pairs, int) or max_pairs < 1:
        raise ValueError(
            f"max_pairs must be a whole number of at least 1, got {described(max_pairs)}."
        )
    if failure_probability is not None and not (
        isinstance(failure_probability, int | float) and 0 < failure_probability < 1
    ):
        raise ValueError(
            "failure_probability must be a number strictly between 0 and 1, got"
            f" {described(failure_probability)}. 1e-6 is a usual choice."
        )
