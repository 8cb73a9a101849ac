r"""The search for the largest singular value of each map of a flat stack: vectors are (b, N), the
metric is Euclidean.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from attnscope.operators.bracket import ROUNDING, narrowest, upper_bound
from attnscope.operators.lanczos import Cancellation, Lanczos, Ritz, ahead, noise
from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import wide
from attnscope.operators.scaling import exponents, norms, scaled, times_powers
from attnscope.operators.starts import Starts
from attnscope.operators.stopping import LEAST_PAIRS, Stopping, closed

EVERY_STEP_UNTIL = 12
SHRINK_AT = 0.8
"""The stack is cut down to the problems still running when no more than this part of it is."""
BLEND = (1.0, 0.4, 0.1)
"""How much of each leading Ritz vector a nearby search starts from: enough of the next ones that
one of them cannot become the largest unseen, and no more, since it must be told from them again.
"""
Draw = Callable[[LinearOperator, int], Starts]
"""Starts of a flat stack at this attempt."""


@dataclass
class Found:
    """Results by problem, in flat coordinates where the metric is Euclidean."""

    lower: Float64[np.ndarray, " b"]
    upper: Float64[np.ndarray, " b"] | None
    residual: Float64[np.ndarray, " b"]
    pairs: np.ndarray
    converged: Bool[np.ndarray, " b"]
    atypical: Bool[np.ndarray, " b"]
    left: Tensor
    right: Tensor
    around: Tensor
    next: Tensor
    """The Ritz vectors after the largest, as many as were asked for; zero where there are fewer."""
    ratios: Float64[np.ndarray, "b m 2"]
    """Their Ritz values and residuals, over the largest value."""
    finish: str = ""

    def put(self, which: Int[np.ndarray, " c"], others: Found) -> None:
        """Write the results of these problems over those that are here."""
        for name, value in vars(others).items():
            mine = getattr(self, name)
            if isinstance(mine, Tensor):
                mine[torch.as_tensor(which, device=mine.device)] = value.to(mine.dtype)
            elif isinstance(mine, np.ndarray):
                mine[which] = value


def search(
    op: LinearOperator,
    draw: Draw,
    tol: float,
    failure_probability: float | None,
    max_pairs: int,
    beside: int = 0,
) -> Found:
    """Search from what `draw(op, attempt)` gives; where no upper bound is asked for, with products
    of the map's lighter form. So many Ritz vectors beside the largest are kept.
    """
    if failure_probability is None and op.lighter is not None:
        with suppress(Cancellation):
            return _searched(op, op.lighter(), draw, tol, failure_probability, max_pairs, beside)
    return _searched(op, op, draw, tol, failure_probability, max_pairs, beside)


def _searched(
    whole: LinearOperator,
    op: LinearOperator,
    draw: Draw,
    tol: float,
    failure_probability: float | None,
    max_pairs: int,
    beside: int,
) -> Found:
    """Search with products of `op`, and finish with one of the whole map."""
    problems, size = op.stack[0], op.shape[1]
    slack = allowance(op)
    share = None if failure_probability is None else failure_probability / problems
    found = Found(
        lower=np.zeros(problems),
        upper=None if share is None else np.zeros(problems),
        residual=np.zeros(problems),
        pairs=np.zeros(problems, dtype=int),
        converged=np.zeros(problems, dtype=bool),
        atypical=np.zeros(problems, dtype=bool),
        left=torch.zeros(0),
        right=torch.zeros(problems, size, dtype=op.dtype, device=op.device),
        around=torch.zeros(problems, size, dtype=op.dtype, device=op.device),
        next=torch.zeros(problems, beside, size, dtype=op.dtype, device=op.device),
        ratios=np.ones((problems, beside, 2)),
    )
    lanczos, starts, powers = _started(op, draw)
    rule = Stopping(tol, max(tol, narrowest(slack)) / (1 + slack), starts, share)
    number = np.arange(problems)  # which problem each row of the running process is
    near = False
    for pair in range(1, max_pairs + 1):
        if pair > 1:
            lanczos.step()
        quiet = pair < LEAST_PAIRS or (pair > EVERY_STEP_UNTIL and pair % 2 and not near)
        if quiet and pair < max_pairs and not lanczos.process.finished.any():
            continue
        ritz = Ritz.of(lanczos.process)
        near = bool((ritz.errors[lanczos.active, 0] <= 100 * tol).any())
        done = rule.done(lanczos, ritz, number) & lanczos.active
        stop = (
            lanczos.active
            if pair == max_pairs
            else done | (lanczos.process.finished & lanczos.active)
        )
        if stop.any():
            _record(found, lanczos, ritz, number, stop, done, rule, slack)
            lanczos.freeze(stop)
        if not lanczos.active.any():
            break
        if lanczos.op.restrict is not None and lanczos.active.mean() <= SHRINK_AT:
            number = number[lanczos.shrink()]
    del lanczos  # its basis is the largest thing here, and has served
    _finish(found, scaled(whole, -powers) if powers.any() else whole)
    _scaled_back(found, powers)
    return found


def _started(op: LinearOperator, draw: Draw) -> tuple[Lanczos, Starts, Int[np.ndarray, " b"]]:
    """One step of every problem, its start, and the powers of two by which those of extreme size
    were divided: all that follows is then far from the ends of floating point.
    """
    lanczos, starts = _first_step(op, draw)
    powers = exponents(lanczos.process.alpha[:, 0])
    if powers.any():
        if op.gram is not None:
            raise Cancellation
        lanczos, starts = _first_step(scaled(op, -powers), draw)
    return lanczos, starts, powers


def _scaled_back(found: Found, powers: Int[np.ndarray, " b"]) -> None:
    with np.errstate(over="ignore"):
        found.lower = np.ldexp(found.lower, powers)
        found.upper = None if found.upper is None else np.ldexp(found.upper, powers)
    if np.isinf(found.lower).any():
        bad = np.flatnonzero(np.isinf(found.lower)).tolist()
        raise ValueError(
            f"the largest singular value of problem(s) {bad} overflows: it is above"
            f" {np.finfo(float).max:.3g}, the largest number in float64."
        )


def _first_step(op: LinearOperator, draw: Draw) -> tuple[Lanczos, Starts]:
    """One step from random starts; a start that J sends to zero is drawn once more: zero twice
    means that J is zero, almost surely.
    """
    first = draw(op, 0)
    lanczos = Lanczos(op, first.vectors)
    lanczos.step()
    vanished = lanczos.process.alpha[:, 0] == 0
    if not vanished.any():
        return lanczos, first
    second = draw(op, 1)
    where = torch.as_tensor(vanished, device=op.device)[:, None]
    starts = Starts(
        torch.where(where, second.vectors, first.vectors),
        np.where(vanished, second.noise, first.noise),
    )
    lanczos = Lanczos(op, starts.vectors)
    lanczos.step()
    return lanczos, starts


def _record(
    found: Found,
    lanczos: Lanczos,
    ritz: Ritz,
    number: np.ndarray,
    stop: Bool[np.ndarray, " b"],
    done: Bool[np.ndarray, " b"],
    rule: Stopping,
    slack: float,
) -> None:
    """Write down what the stopping problems have reached, before their vectors become zero."""
    top = ritz.values[:, 0]
    which = number[stop]
    found.lower[which] = top[stop]
    found.residual[which] = (ritz.residuals[:, 0] / np.maximum(top, 1e-300))[stop]
    found.pairs[which] = lanczos.process.steps[stop]
    found.converged[which] = done[stop]
    rows = np.flatnonzero(stop)
    beside, index = found.next.shape[1], torch.as_tensor(which)
    vectors = lanczos.vectors(_wanted(lanczos, ritz, beside)[rows], rows)
    found.right[index], found.around[index] = vectors[:, 0], vectors[:, 1]
    found.next[index] = vectors[:, 2:]
    here = np.stack([ritz.values, ritz.residuals], axis=2)[stop, 1 : 1 + beside]
    found.ratios[which, : here.shape[1]] = here / np.maximum(top[stop], 1e-300)[:, None, None]
    if found.upper is not None:
        process, overlap = lanczos.process, np.abs(ritz.right[:, 0, 0])
        delta = rule.delta(number)
        found.atypical[which] = (overlap < delta)[stop] & (top[stop] > 0)
        found.upper[which] = np.where(found.atypical[which], np.nan, top[stop] * (1 + slack))
        open_ = stop & ~closed(lanczos, ritz) & (overlap >= delta)
        alpha, beta = process.alpha[open_], process.beta[open_]
        found.upper[number[open_]] = upper_bound(
            alpha, beta, top[open_], delta[open_], slack, noise(lanczos.op.dtype)
        )


def _wanted(lanczos: Lanczos, ritz: Ritz, beside: int) -> Float64[np.ndarray, "b c m"]:
    """Coordinates of the best known vector, of a blend of the leading Ritz vectors, and of so many
    after the first.
    """
    best = ahead(lanczos.process)
    wanted = np.zeros((len(best), 2 + beside, best.shape[1]))
    wanted[:, 0] = best
    for weight, vectors in zip(BLEND, ritz.right.swapaxes(0, 1), strict=False):
        wanted[:, 1, :-1] += weight * vectors
    after = ritz.right[:, 1 : 1 + beside]
    wanted[:, 2 : 2 + after.shape[1], :-1] = after
    return wanted


def _finish(found: Found, op: LinearOperator) -> None:
    """One float64 product at each Ritz vector makes the lower bound one; an upper bound below it is
    withdrawn.
    """
    exact = op if op.dtype == torch.float64 or op.exact is None else op.exact()
    found.finish = f"{precision_of(exact)} on {exact.device}"
    right = found.right.to(exact.device).to(exact.dtype)
    left = wide(exact.mv(right.reshape(-1, *exact.in_shape)).reshape(len(right), -1))
    right = wide(right)
    length = torch.linalg.vector_norm(right, dim=1).clamp(min=1e-300)
    stretched = norms(left)
    found.lower = stretched / length.cpu().numpy() * (1 - allowance(exact))
    if found.upper is not None:
        found.atypical |= found.lower > found.upper
        found.upper[found.atypical] = np.nan
    small = exponents(stretched, beyond=0)
    unit = torch.as_tensor(np.maximum(np.ldexp(stretched, -small), 1e-300), device=left.device)
    found.left = times_powers(left, -small) / unit[:, None]
    found.right = right / length[:, None]


def allowance(op: LinearOperator) -> float:
    """The relative error that a product with this map may have."""
    return max(ROUNDING[precision_of(op)], op.rounding)


def precision_of(op: LinearOperator) -> str:
    return str(op.dtype).removeprefix("torch.")
