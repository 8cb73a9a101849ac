r"""A bracket in float64 that takes most of its products in float32.

For any unit vector z, $a = \|Jz\|$, $r = \|(I - zz^T)J^TJz\|$ and $b \ge \|J(I - zz^T)\|$,

$$ \sigma^2 \le t \quad\text{for every}\quad t > a^2 \quad\text{with}\quad
   (t - a^2)(t - b^2) \ge r^2, \qquad t \ge b^2: $$

the quadratic form of $J^TJ$ at $cz + sy$, $y \perp z$, is at most $c^2a^2 + 2|cs|r + s^2b^2$, whose
largest eigenvalue is the larger root. Products in float64 at one z give a and r to all digits; b
may be as far off as the gap below $\sigma$ is wide, so that float32 serves to find z and to bound
b. The start of that second search is drawn afresh: one that has a part in z proves nothing of
directions that z has swallowed.

Ritz vectors $z_i \perp z$ that the first search has left, with values $\theta_i$ and residuals
$\theta_i\rho_i$ all along its next vector, are taken out of the second one too: b is a bound if no
singular value of what is left exceeds s,

$$ s^2 = b^2 - \sum_i \frac{(\theta_i\rho_i)^2}{b^2 - \theta_i^2}, $$

since $b^2 - J^TJ$ on the span of the $z_i$ and the rest is then positive semidefinite (Schur
complement). What is left has a smaller norm, which takes fewer pairs to show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from attnscope.operators.bracket import narrowest, reaches
from attnscope.operators.lanczos import Lanczos, noise
from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import wide
from attnscope.operators.search import Draw, Found, allowance, search
from attnscope.operators.starts import Starts

FIRST_LOOK = 6
"""Pairs after which a search for the rest is first looked at."""
LEAST_TOLERANCE = 1e-8
"""Of a bracket whose vector is looked for in float32: below, its residual would be rounding."""
SHARPER = 32
"""By how much the vector is sought sharper than its bracket: what is left of the residual must be
small against the gap that a bound of the rest has to fit into.
"""
COARSE_PAIRS = 40
"""A search in float32 that takes more has no gap below its top: float64 goes on alone."""
COARSENESS, MOST_COARSE = 4.0, 1e-3
"""Rounding of a float32 map in its allowances, that of its own entries included; beyond the second
number it serves no bracket.
"""
BESIDE = 2
"""Ritz vectors beside the largest that may be taken out of the rest."""
LEAST_GAP, DEAREST = 0.02, 0.02
"""Of the square of the largest value: how far below the goal a value must lie that is taken out of
the rest, and what its residual may cost.
"""
ACROSS, KEPT = 0.1, 0.99
"""The largest part that a Ritz vector may have in the vector, and the length that is left of it."""
REST = 2
"""The number of the draw for the rest: two others are for the vector."""


def deflated(op: LinearOperator, found: Float[Tensor, "b m N"]) -> LinearOperator:
    r"""A flat stack of maps $J(I - Z Z^T)$ for the orthonormal rows Z found of each."""
    part = op.restrict

    def without(u: Float[Tensor, "b N"]) -> Float[Tensor, "b N"]:
        overlap = torch.bmm(u.unsqueeze(1), found.mT)
        return u - torch.bmm(overlap, found).squeeze(1)

    return replace(
        op,
        mv=lambda u: op.mv(without(u)),
        rmv=lambda u: without(op.rmv(u)),
        exact=None,
        coarse=None,
        lighter=None,
        restrict=None if part is None else lambda index: deflated(part(index), found[index]),
    )


def most_of_rest(residual: Float64[np.ndarray, " b"], width: float) -> Float64[np.ndarray, " b"]:
    r"""The largest $b/a$ for which $\sigma \le (1 + \mathrm{width})\,a$ follows from $r/a^2$; 0
    where none does.
    """
    t = (1 + width) ** 2
    return np.sqrt(np.maximum(t - residual**2 / (t - 1), 0.0))


def taken_out(
    found: Found, most: Float64[np.ndarray, " b"], error: float
) -> tuple[Float64[Tensor, "b m N"], Float64[np.ndarray, " b"]]:
    """The vector of each problem with the Ritz vectors that are taken out beside it (zero where one
    is not), and the most that is left of `most` for the norm of the rest, in units of the largest
    value; values and residuals may err by so much.
    """
    basis, left = found.right[:, None], most**2
    for i in range(found.next.shape[1]):
        value, residual = found.ratios[:, i].T
        vector = wide(found.next[:, i])
        along = torch.bmm(basis, vector[..., None])
        vector = vector - torch.bmm(along.mT, basis)[:, 0]
        length = torch.linalg.vector_norm(vector, dim=1)
        parts = along[..., 0].abs().cpu().numpy()
        gap = most**2 - value**2 - 2 * error
        cost = (value * residual / KEPT + error) ** 2 / np.maximum(gap, LEAST_GAP)
        taken = (gap >= LEAST_GAP) & (cost <= DEAREST) & (length.cpu().numpy() >= KEPT)
        taken &= (parts[:, 0] <= ACROSS) & (parts[:, 1:] <= error).all(1)
        left = left - np.where(taken, cost, 0.0)
        keep = torch.as_tensor(taken, device=vector.device)
        unit = torch.where(keep, 1 / length.clamp(min=1e-300), 0.0)
        basis = torch.cat([basis, (unit[:, None] * vector)[:, None]], 1)
    return basis, np.sqrt(np.maximum(left, 0.0))


@dataclass(frozen=True, eq=False)
class Rest:
    """Which problems have no singular value above their goal, and the pairs that it took."""

    below: Bool[np.ndarray, " b"]
    pairs: Int[np.ndarray, " b"]


def bound_rest(
    op: LinearOperator,
    starts: Starts,
    goal: Float64[np.ndarray, " b"],
    failure_probability: float,
    max_pairs: int,
) -> Rest:
    """Whether the norms of a flat stack lie below their goals, each but with this probability; a
    problem ends as soon as that is shown, or shown to be false.
    """
    rest = Rest(np.zeros(len(goal), dtype=bool), np.zeros(len(goal), dtype=int))
    delta = starts.overlap(failure_probability)
    lanczos, number = Lanczos(op, starts.vectors), np.arange(len(goal))
    lanczos.freeze(goal <= 0)
    for pair in range(1, max_pairs + 1):
        if not lanczos.active.any():
            break
        lanczos.step()
        process = lanczos.process
        if pair < FIRST_LOOK and not process.finished.any():
            continue
        top = np.linalg.svd(process.matrices(), compute_uv=False)[:, 0]
        wanted = goal[number]
        shown = (top < wanted) & reaches(
            process.alpha, process.beta, wanted, delta[number], noise(op.dtype)
        )
        ended = lanczos.active & (shown | process.finished | ~(top < wanted))
        rest.below[number[ended]] = shown[ended]
        rest.pairs[number[lanczos.active]] = pair
        lanczos.freeze(ended)
        if op.restrict is not None and 0 < lanczos.active.sum() <= len(number) / 2:
            number = number[lanczos.shrink()]
    return rest


def bracketed(
    op: LinearOperator,
    draw: Draw,
    tol: float,
    failure_probability: float | None,
    max_pairs: int,
) -> Found:
    """Search a flat stack: for brackets in float64 first with products in float32, where the map
    has them; what that does not settle is searched again in float64 alone. Each has half of the
    failure probability.
    """
    tiny = op.shape[1] <= 1 + BESIDE  # nothing would be left of a start for the rest
    if failure_probability is None or op.coarse is None or tol < LEAST_TOLERANCE or tiny:
        return search(op, draw, tol, failure_probability, max_pairs)
    half, problems = failure_probability / 2, op.stack[0]
    found = _coarsely(op, draw, tol, half / problems, max_pairs)
    left = np.arange(problems) if found is None else np.flatnonzero(~found.converged)
    if found is not None and not len(left):
        return found
    if found is None or len(left) == problems or op.restrict is None:
        return search(op, draw, tol, half, max_pairs)
    some = op.restrict(torch.as_tensor(left, device=op.device))
    again = search(
        some,
        lambda _, attempt: draw(op, attempt).rows(left),
        tol,
        half * len(left) / problems,
        max_pairs,
    )
    found.put(left, again)
    return found


def _coarsely(
    op: LinearOperator, draw: Draw, tol: float, failure_probability: float, max_pairs: int
) -> Found | None:
    """The brackets that products in float32 settle: the others have not converged. None where
    float32 is of no use.
    """
    assert op.coarse is not None
    try:
        coarse = replace(op.coarse(), exact=lambda: op)
        error, slack = COARSENESS * allowance(coarse), allowance(op)
        if not error <= MOST_COARSE:
            return None
        most_pairs = min(COARSE_PAIRS, max_pairs)
        found = search(coarse, draw, tol / SHARPER, None, most_pairs, BESIDE)
    except ValueError:  # it overflows where float64 does not
        return None
    size = found.lower / (1 - slack)
    pulled = op.rmv(found.left) - torch.as_tensor(size, device=op.device)[:, None] * found.right
    far = torch.linalg.vector_norm(pulled, dim=1).cpu().numpy() / np.maximum(size, 1e-300)
    whole = 1 + max(tol, narrowest(slack))  # upper over lower, rounding on both sides included
    width = (whole * (1 - slack) / (1 + slack) - 1) * (1 - 1e-6)
    taken, most = taken_out(found, most_of_rest(far + slack, width), error)
    vectors = taken.to(coarse.dtype)
    starts = draw(coarse, REST).beside(vectors)
    goal = size * (most - error)
    rest = bound_rest(deflated(coarse, vectors), starts, goal, failure_probability, max_pairs)
    found.upper = np.where(rest.below, size * (1 + width) * (1 + slack), np.nan)
    found.residual, found.converged = far, rest.below
    found.pairs = found.pairs + rest.pairs + 1
    found.next, found.ratios = found.next[:, :0], found.ratios[:, :0]  # they have served
    return found
