r"""The growth of a constant with the length: $\sigma \approx C\,n^p$, with a bootstrap interval for
p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 1000


@dataclass(frozen=True)
class Fit:
    """$C\\,n^p$ by least squares on logarithms; `low` and `high` hold 95 % of the bootstrap
    exponents. An estimate, not a bound.
    """

    factor: float
    exponent: float
    low: float
    high: float


def growth(lengths: ArrayLike, values: ArrayLike, seed: int = 0) -> Fit | None:
    """The fit over all points with a positive value; None with fewer than three distinct
    lengths.
    """
    n, sigma = np.asarray(lengths, dtype=float), np.asarray(values, dtype=float)
    good = (sigma > 0) & (n > 0)
    x, y = np.log(n[good]), np.log(sigma[good])
    if len(np.unique(x)) < 3:
        return None
    slope, offset = _line(x, y)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(x), size=(RESAMPLES, len(x)))
    slopes = [_line(x[pick], y[pick])[0] for pick in drawn if len(np.unique(x[pick])) > 1]
    low, high = np.quantile(slopes, [0.025, 0.975])
    return Fit(float(np.exp(offset)), float(slope), float(low), float(high))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    return slope, float(y.mean() - slope * x.mean())
