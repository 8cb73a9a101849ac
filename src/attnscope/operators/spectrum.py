r"""The largest singular values of a linear map, as brackets that say what they prove.

`lower` is $\|Jz\|/\|z\|$ for one vector z, computed in float64: a lower bound whatever happened
before. `upper`, when asked for, holds with probability at least 1 - failure_probability over the
random start, for the whole stack at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from attnscope.operators.bracket import (
    ROUNDING,
    narrowest,
    reaches,
    smallest_overlap,
    upper_bound,
)
from attnscope.operators.lanczos import Lanczos, Process, Ritz, ahead, noise, starts, still_to_come
from attnscope.operators.operator import LinearOperator
from attnscope.operators.scaling import exponents, norms, scaled, times_powers
from attnscope.validation import brief, check_positive, described

EVERY_STEP_UNTIL = 12
SHRINK_AT = 0.8
"""The stack is cut down to the problems still running when no more than this part of it is."""
RESIDUAL_PESSIMISM = 30
"""By how much the residual's estimate may exceed a sharper one that is believed."""
FIRM = 1e-6
"""An error estimate is believed from here on: before, values closer than the residual look like
one, and their mean like the largest.
"""
ISOLATED = 0.1
"""The residual, in parts of the gap to the next Ritz value, below which a value stands alone."""
CLEAR, UNLUCKY = 0.15, 0.1
"""The part of that gap within which a larger value may hide, but for so many of all starts."""
MISSED = 0.01
"""The part of all starts for which a value above the tolerance may be missed."""


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

    __repr__ = brief


def spectral_norm(
    op: LinearOperator,
    tol: float = 1e-6,
    failure_probability: float | None = None,
    seed: int = 0,
    max_pairs: int = 200,
) -> SpectralNorm:
    r"""$\sigma_{\max} = \|J\|_2$ in the metric of the map, by Golub-Kahan-Lanczos from a random
    start.

    Without `failure_probability` it stops when the estimated relative error is below `tol` (and
    below 1e-6, unless a start in a hundred is all that could miss the tolerance) and the value
    stands alone among its neighbours: an estimate, that goes on where the spectrum is dense at its
    top. With it, it stops when the bracket is that narrow (never narrower than the rounding of the
    map's precision). What `max_pairs` or rounding cuts short reports `converged=False` and its
    bracket.
    """
    check_call(op, tol, failure_probability, max_pairs)
    weights, stack = op.weights, op.stack
    wide = op.shape[0] < op.shape[1]
    flat = op.flat()
    found = _run(flat.adjoint() if wide else flat, tol, failure_probability, seed, max_pairs)
    left, right = (found.left, found.right) if not wide else (found.right, found.left)

    def shaped(values: np.ndarray) -> Any:
        return values[0].item() if not stack else torch.as_tensor(values).reshape(stack)

    root = 1.0 if weights is None else weights.to(torch.float64).sqrt().unsqueeze(-1)
    return SpectralNorm(
        lower=shaped(found.lower),
        upper=None if found.upper is None else shaped(found.upper),
        residual=shaped(found.residual),
        pairs=shaped(found.pairs),
        converged=shaped(found.converged),
        atypical=shaped(found.atypical),
        left=left.reshape((*stack, *op.out_shape)) / root,
        right=right.reshape((*stack, *op.in_shape)) / root,
    )


@dataclass
class _Found:
    """Results by problem, in flat coordinates where the metric is Euclidean."""

    lower: Float64[np.ndarray, " b"]
    upper: Float64[np.ndarray, " b"] | None
    residual: Float64[np.ndarray, " b"]
    pairs: np.ndarray
    converged: Bool[np.ndarray, " b"]
    atypical: Bool[np.ndarray, " b"]
    left: Tensor
    right: Tensor


def _run(
    op: LinearOperator, tol: float, failure_probability: float | None, seed: int, max_pairs: int
) -> _Found:
    problems, size = op.stack[0], op.shape[1]
    slack = ROUNDING[str(op.dtype).removeprefix("torch.")]
    delta = (
        None
        if failure_probability is None
        else smallest_overlap(size, failure_probability / problems)
    )
    width = max(tol, narrowest(str(op.dtype).removeprefix("torch.")))
    found = _Found(
        lower=np.zeros(problems),
        upper=None if delta is None else np.zeros(problems),
        residual=np.zeros(problems),
        pairs=np.zeros(problems, dtype=int),
        converged=np.zeros(problems, dtype=bool),
        atypical=np.zeros(problems, dtype=bool),
        left=torch.zeros(0),
        right=torch.zeros(problems, size, dtype=op.dtype, device=op.device),
    )
    lanczos, powers = _started(op, seed)
    op = lanczos.op
    number = np.arange(problems)  # which problem each row of the running process is
    near = False
    for pair in range(1, max_pairs + 1):
        if pair > 1:
            lanczos.step()
        if (
            pair > EVERY_STEP_UNTIL
            and pair % 2
            and pair < max_pairs
            and not near
            and not lanczos.process.finished.any()
        ):
            continue
        ritz = Ritz.of(lanczos.process)
        near = bool((ritz.errors[lanczos.active, 0] <= 100 * tol).any())
        done = _done(lanczos, ritz, tol, delta, width / (1 + slack)) & lanczos.active
        stop = (
            lanczos.active
            if pair == max_pairs
            else done | (lanczos.process.finished & lanczos.active)
        )
        if stop.any():
            _record(found, lanczos, ritz, number, stop, done, delta, slack)
            lanczos.freeze(stop)
        if not lanczos.active.any():
            break
        if op.restrict is not None and lanczos.active.mean() <= SHRINK_AT:
            number = number[lanczos.shrink()]
    _finish(found, op)
    _scaled_back(found, powers)
    return found


def _started(op: LinearOperator, seed: int) -> tuple[Lanczos, Int[np.ndarray, " b"]]:
    """One step of every problem, and the powers of two by which those of extreme size were divided:
    all that follows is then far from the ends of floating point.
    """
    lanczos = _first_step(op, seed)
    powers = exponents(lanczos.process.alpha[:, 0])
    return (_first_step(scaled(op, -powers), seed) if powers.any() else lanczos), powers


def _scaled_back(found: _Found, powers: Int[np.ndarray, " b"]) -> None:
    with np.errstate(over="ignore"):
        found.lower = np.ldexp(found.lower, powers)
        found.upper = None if found.upper is None else np.ldexp(found.upper, powers)
    if np.isinf(found.lower).any():
        bad = np.flatnonzero(np.isinf(found.lower)).tolist()
        raise ValueError(
            f"the largest singular value of problem(s) {bad} overflows: it is above"
            f" {np.finfo(float).max:.3g}, the largest number in float64."
        )


def _first_step(op: LinearOperator, seed: int) -> Lanczos:
    """One step from random starts; a start that J sends to zero is drawn once more: zero twice
    means that J is zero, almost surely.
    """
    first = starts(op.stack[0], op.shape[1], op, seed)
    lanczos = Lanczos(op, first)
    lanczos.step()
    vanished = torch.as_tensor(lanczos.process.alpha[:, 0] == 0, device=op.device)
    if vanished.any():
        second = starts(op.stack[0], op.shape[1], op, seed, attempt=1)
        lanczos = Lanczos(op, torch.where(vanished[:, None], second, first))
        lanczos.step()
    return lanczos


def _done(
    lanczos: Lanczos, ritz: Ritz, tol: float, delta: float | None, width: float
) -> Bool[np.ndarray, " b"]:
    """Which problems have reached the tolerance."""
    process = lanczos.process
    close = _close(process, ritz, tol) & ((process.alpha.shape[1] >= 3) | process.finished)
    asked = np.flatnonzero(close & ~_closed(lanczos, ritz))
    if delta is None:
        asked = asked[~process.finished[asked]]
        if len(asked):
            close[asked] = _believed(process.rows(asked), ritz.rows(asked), tol, lanczos)
    elif len(asked):
        narrow = reaches(
            process.alpha[asked],
            process.beta[asked],
            ritz.values[asked, 0] * (1 + width),
            delta,
            noise(lanczos.op.dtype),
        )
        close[asked] = narrow | (np.abs(ritz.right[asked, 0, 0]) < delta)
    return close


def _close(process: Process, ritz: Ritz, tol: float) -> Bool[np.ndarray, " b"]:
    """Where the error is estimated below `tol`: by the residual, or, once that is not far, by half
    of it for what is still to come.
    """
    close = ritz.errors[:, 0] <= tol
    open_ = np.flatnonzero(
        ~close & ~process.finished & (ritz.errors[:, 0] <= RESIDUAL_PESSIMISM * tol)
    )
    if len(open_):
        close[open_] = 2 * still_to_come(process.rows(open_)) <= tol
    return close


def _believed(process: Process, ritz: Ritz, tol: float, lanczos: Lanczos) -> Bool[np.ndarray, " b"]:
    r"""Whether Ritz values whose error is estimated below `tol` may be taken for the largest
    singular values, by what the coefficients show of the spectrum near its top.

    Where it is dense there, the residual is small long before the Ritz value has chosen among its
    neighbours. So it must be small against the gap that is seen, with no room for a larger value
    above that gap; or there is no room above the tolerance. Room is what the polynomials of the
    bracket leave, but for unlucky starts.
    """
    kind, size, top = lanczos.op.dtype, lanczos.op.shape[1], ritz.values[:, 0]

    def no_room(above: Float64[np.ndarray, " b"] | float, unlucky: float) -> np.ndarray:
        delta = smallest_overlap(size, unlucky)
        return reaches(process.alpha, process.beta, top * (1 + above), delta, noise(kind))

    gap = 1 - (ritz.values[:, 1] / top) ** 2
    alone = ritz.residuals[:, 0] / top <= ISOLATED * gap
    firm = _close(process, ritz, min(tol, max(FIRM, noise(kind))))
    return (firm & alone & no_room(CLEAR * gap, UNLUCKY)) | no_room(tol, MISSED)


def _closed(lanczos: Lanczos, ritz: Ritz) -> Bool[np.ndarray, " b"]:
    """Where the Ritz value is the norm itself: the basis fills the space, or the map is zero."""
    return (lanczos.process.steps >= lanczos.op.shape[1]) | (ritz.values[:, 0] == 0)


def _record(
    found: _Found,
    lanczos: Lanczos,
    ritz: Ritz,
    number: np.ndarray,
    stop: Bool[np.ndarray, " b"],
    done: Bool[np.ndarray, " b"],
    delta: float | None,
    slack: float,
) -> None:
    """Write down what the stopping problems have reached, before their vectors become zero."""
    top = ritz.values[:, 0]
    which = number[stop]
    found.lower[which] = top[stop]
    found.residual[which] = (ritz.residuals[:, 0] / np.maximum(top, 1e-300))[stop]
    found.pairs[which] = lanczos.process.steps[stop]
    found.converged[which] = done[stop]
    vectors = lanczos.vectors(ahead(lanczos.process))
    found.right[torch.as_tensor(which)] = vectors[torch.as_tensor(np.flatnonzero(stop))]
    if delta is not None and found.upper is not None:
        process, overlap = lanczos.process, np.abs(ritz.right[:, 0, 0])
        found.atypical[which] = (overlap < delta)[stop] & (top[stop] > 0)
        found.upper[which] = np.where(found.atypical[which], np.nan, top[stop] * (1 + slack))
        open_ = stop & ~_closed(lanczos, ritz) & (overlap >= delta)
        alpha, beta = process.alpha[open_], process.beta[open_]
        found.upper[number[open_]] = upper_bound(
            alpha, beta, top[open_], delta, slack, noise(lanczos.op.dtype)
        )


def _finish(found: _Found, op: LinearOperator) -> None:
    """One float64 product at each Ritz vector makes the lower bound one; an upper bound below it is
    withdrawn.
    """
    exact = op if op.dtype == torch.float64 or op.exact is None else op.exact()
    right = found.right.to(exact.dtype)
    left = exact.mv(right.reshape(-1, *exact.in_shape)).reshape(len(right), -1).to(torch.float64)
    length = torch.linalg.vector_norm(right, dim=1, dtype=torch.float64).clamp(min=1e-300)
    stretched = norms(left)
    rounding = ROUNDING[str(exact.dtype).removeprefix("torch.")]
    found.lower = stretched / length.cpu().numpy() * (1 - rounding)
    if found.upper is not None:
        found.atypical |= found.lower > found.upper
        found.upper[found.atypical] = np.nan
    small = exponents(stretched, beyond=0)
    unit = torch.as_tensor(np.maximum(np.ldexp(stretched, -small), 1e-300), device=left.device)
    found.left = times_powers(left, -small) / unit[:, None]
    found.right = right.to(torch.float64) / length[:, None]


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
    if failure_probability is not None and not 0 < failure_probability < 1:
        raise ValueError(
            f"failure_probability must lie strictly between 0 and 1, got {failure_probability}."
            " 1e-6 is a usual choice."
        )
