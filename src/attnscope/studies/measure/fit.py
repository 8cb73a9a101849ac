r"""The growth of a constant with the length: $\sigma \approx C\,n^p$, and whether a power law is
what the values follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike
from scipy.special import stdtrit

COVERAGE = 0.95
SIGNIFICANCE = 0.01
"""How rarely a power law may be doubted that is one."""


@dataclass(frozen=True)
class Fit:
    r"""$C\,n^p$ by least squares on logarithms, over the lengths from `shortest` to `longest`. An
    estimate, not a bound.

    `low` and `high` hold the exponent with 95 % confidence. They come from how far the means of the
    lengths lie from the line, which is sampling and misfit together, in Student's distribution with
    as many degrees of freedom as lengths but two; not from the spread of the sequences, which knows
    nothing of a curve that is no power law. `local` is the exponent over the upper half of the
    lengths. `bent` warns that a power law does not fit: then p depends on the range of lengths more
    than the interval says.
    """

    factor: float
    exponent: float
    low: float
    high: float
    local: float
    bent: bool
    shortest: float
    longest: float


def growth(lengths: ArrayLike, values: ArrayLike, fit_from: int = 1) -> Fit | None:
    """The fit over all points with a positive value and at least `fit_from` tokens; None with fewer
    than three distinct lengths.
    """
    n, sigma = np.asarray(lengths, dtype=float), np.asarray(values, dtype=float)
    good = (sigma > 0) & np.isfinite(sigma) & (n >= max(fit_from, 1))
    distinct, where, count = np.unique(n[good], return_inverse=True, return_counts=True)
    if len(distinct) < 3:
        return None
    x = np.log(distinct)
    means = np.bincount(where, np.log(sigma[good])) / count
    line = _regressed(np.stack([np.ones_like(x), x]), means, count)
    offset, slope = line.coefficients
    reach = stdtrit(line.freedom, (1 + COVERAGE) / 2) * line.errors[1]
    upper = slice(len(x) // 2, None)
    local = _regressed(np.stack([np.ones_like(x), x])[:, upper], means[upper], count[upper])
    return Fit(
        factor=float(np.exp(offset)),
        exponent=float(slope),
        low=float(slope - reach),
        high=float(slope + reach),
        local=float(local.coefficients[1]),
        bent=_bent(x, means, count),
        shortest=float(distinct[0]),
        longest=float(distinct[-1]),
    )


def _bent(
    x: Float64[np.ndarray, " m"], means: Float64[np.ndarray, " m"], count: np.ndarray
) -> bool:
    """Whether the upper half has another slope than the lower one, or the curve a second
    derivative, beyond what the scatter of the means explains. Needs four lengths.
    """
    if len(x) < 4:
        return False
    line = np.stack([np.ones_like(x), x])
    joint = x[len(x) // 2 - 1]
    for bend in (np.maximum(x - joint, 0), (x - x.mean()) ** 2):
        found = _regressed(np.concatenate([line, bend[None]]), means, count)
        if found.errors[2] == 0:  # the curve goes through all means: doubt rounding only
            scale = np.abs(means).max() + np.abs(found.coefficients[1])
            if np.abs(found.coefficients[2]) > 1e-9 * scale:
                return True
            continue
        ratio = np.abs(found.coefficients[2]) / found.errors[2]
        if ratio > stdtrit(found.freedom, 1 - SIGNIFICANCE / 4):  # two tests, two sides
            return True
    return False


class _Regression(NamedTuple):
    coefficients: Float64[np.ndarray, " c"]
    errors: Float64[np.ndarray, " c"]
    freedom: int


def _regressed(
    features: Float64[np.ndarray, "c m"], means: Float64[np.ndarray, " m"], count: np.ndarray
) -> _Regression:
    """Least squares with a weight for each length, and standard errors from the residuals."""
    weight = count / count.sum()
    inverse = np.linalg.inv((features * weight) @ features.T)
    coefficients = inverse @ ((features * weight) @ means)
    freedom = len(means) - len(features)
    left = means - coefficients @ features
    left = np.where(np.abs(left) > 1e-12 * max(1.0, np.abs(means).max()), left, 0.0)
    variance = float(weight @ left**2) / max(freedom, 1)
    return _Regression(coefficients, np.sqrt(variance * np.diag(inverse)), freedom)
