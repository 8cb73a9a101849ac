r"""When a search for the largest singular value may stop.

With a failure probability: when the bracket is narrow. Without one: when the error is estimated
below the tolerance, and the coefficients leave no room for a larger value near the top. Both ask
the polynomials of the bracket; both know of the start only how small its overlap with a fixed
direction can be ($\delta$ at a given part of unlucky starts), so that they serve cold and warm
starts alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int

from attnscope.operators.bracket import reaches
from attnscope.operators.lanczos import Lanczos, Process, Ritz, noise, still_to_come
from attnscope.operators.starts import Starts

LEAST_PAIRS = 3
"""No search that goes on is believed before."""
RESIDUAL_PESSIMISM = 30
"""By how much the residual's estimate may exceed a sharper one that is believed."""
PESSIMISM = 1.5
"""Times what is still to come by its estimate, which may be too small by a factor of two and more.
"""
FIRM = 1e-6
"""An error estimate is believed from here on: before, values closer than the residual look like
one, and their mean like the largest.
"""
ISOLATED = 0.1
"""The residual, in parts of the gap to the next Ritz value, below which a value stands alone."""
CLEAR, UNLUCKY = 0.15, 0.1
"""The part of that gap within which a larger value may hide, but for so many of all starts."""
WARM_CLEAR, WARM_UNLUCKY = 1.0, 0.5
"""The same for a warm start, which holds the leading vectors of a nearby problem: what was among
them and is now the largest cannot hide, so that only what comes from nowhere is left to the noise.
"""
MISSED = 0.01
"""The part of all starts for which a value above the tolerance may be missed."""


@dataclass(frozen=True, eq=False)
class Stopping:
    """The rule for a stack: `tol` of an estimate, `width` of a bracket, and the failure probability
    of each problem's upper bound (None: no upper bounds).
    """

    tol: float
    width: float
    starts: Starts
    failure_probability: float | None

    def delta(self, number: Int[np.ndarray, " b"]) -> Float64[np.ndarray, " b"]:
        """The overlap that upper bounds of these problems count on."""
        assert self.failure_probability is not None
        return self.starts.overlap(self.failure_probability)[number]

    def done(
        self, lanczos: Lanczos, ritz: Ritz, number: Int[np.ndarray, " b"]
    ) -> Bool[np.ndarray, " b"]:
        """Which rows, that are these problems of the stack, have reached the tolerance."""
        process = lanczos.process
        close = _close(process, ritz, self.tol)
        close &= (process.alpha.shape[1] >= LEAST_PAIRS) | process.finished
        asked = np.flatnonzero(close & ~closed(lanczos, ritz))
        if self.failure_probability is None:
            asked = asked[~process.finished[asked]]
            if len(asked):
                close[asked] = self._believed(
                    process.rows(asked), ritz.rows(asked), number[asked], noise(lanczos.op.dtype)
                )
        elif len(asked):
            delta, goal = self.delta(number[asked]), ritz.values[asked, 0] * (1 + self.width)
            narrow = reaches(
                process.alpha[asked], process.beta[asked], goal, delta, noise(lanczos.op.dtype)
            )
            close[asked] = narrow | (np.abs(ritz.right[asked, 0, 0]) < delta)
        return close

    def _believed(
        self, process: Process, ritz: Ritz, number: Int[np.ndarray, " b"], rounding: float
    ) -> Bool[np.ndarray, " b"]:
        r"""Whether Ritz values whose error is estimated below `tol` may be taken for the largest
        singular values, by what the coefficients show of the spectrum near its top.

        Where it is dense there, the residual is small long before the Ritz value has chosen among
        its neighbours. So it must be small against the gap that is seen, with no room for a larger
        value above that gap; or there is no room above the tolerance. Room is what the polynomials
        of the bracket leave, but for unlucky starts.
        """
        top, starts = ritz.values[:, 0], self.starts

        def no_room(above: Float64[np.ndarray, " b"] | float, delta: np.ndarray) -> np.ndarray:
            goal = top * (1 + above)
            return reaches(process.alpha, process.beta, goal, delta[number], rounding)

        gap = 1 - (ritz.values[:, 1] / top) ** 2
        alone = ritz.residuals[:, 0] / top <= ISOLATED * gap
        firm = _close(process, ritz, min(self.tol, max(FIRM, rounding)))
        above = np.where(starts.warm[number], WARM_CLEAR, CLEAR) * gap
        clear = no_room(above, starts.overlap(UNLUCKY, WARM_UNLUCKY))
        return (firm & alone & clear) | no_room(self.tol, starts.overlap(MISSED))


def _close(process: Process, ritz: Ritz, tol: float) -> Bool[np.ndarray, " b"]:
    """Where the error is estimated below `tol`: by the residual, or, once that is not far, by what
    is still to come.
    """
    close = ritz.errors[:, 0] <= tol
    open_ = np.flatnonzero(
        ~close & ~process.finished & (ritz.errors[:, 0] <= RESIDUAL_PESSIMISM * tol)
    )
    if len(open_):
        close[open_] = PESSIMISM * still_to_come(process.rows(open_)) <= tol
    return close


def closed(lanczos: Lanczos, ritz: Ritz) -> Bool[np.ndarray, " b"]:
    """Where the Ritz value is the norm itself: the basis fills the space, or the map is zero."""
    return (lanczos.process.steps >= lanczos.op.shape[1]) | (ritz.values[:, 0] == 0)
