r"""The probable upper bound on a largest singular value that a Lanczos process gives for free
[hochstenbach13].

With $v_1$ uniform on the sphere, $c = |\langle v_1, y_1\rangle| \ge \delta$ but with probability
eps. On that event, for every k, $c^2 F_k(\sigma^2) \le 1$ with $F_k = \sum_{j \le k} p_j^2$ the sum
of the squared Lanczos polynomials (Bessel's inequality), so $\sigma^2$ is at most the largest t
with $F_k(t) = \delta^{-2}$. One event serves every k: looking at each step costs nothing.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float64

ROUNDING = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-1, "float16": 1e-2}
"""Relative rounding allowance of a product in each precision: a choice with a wide margin, not a
theorem, below float64.
"""
NARROWEST = 4e-16
"""The first width of the grid on which a bound is looked for."""
GRID, REFINEMENTS = 64, 3


def narrowest(rounding: float) -> float:
    """The relative width at which a bracket counts as closed, however small the tolerance: rounding
    on both sides, and as much again for the search between them.
    """
    return 3 * rounding


def smallest_overlap(size: int, failure_probability: float) -> float:
    r"""A $\delta$ with $P(|\langle v_1, y\rangle| < \delta) \le$ eps for $v_1$ uniform on the
    sphere of $R^N$.
    """
    if size == 1:
        return 1.0
    if size == 2:
        return math.sin(math.pi * failure_probability / 2)
    return (
        failure_probability
        * math.sqrt(math.pi)
        / 2
        * math.exp(math.lgamma((size - 1) / 2) - math.lgamma(size / 2))
    )


def log_polynomials(
    alpha: Float64[np.ndarray, "b k"],
    beta: Float64[np.ndarray, "b k"],
    t: Float64[np.ndarray, "b m"],
    noise: float,
) -> Float64[np.ndarray, "b m"]:
    r"""$\log F_k(t)$ by the three-term recurrence, rescaled against overflow; t above the largest
    Ritz value squared.

    Couplings below `noise` times the largest diagonal entry could be rounding and count as that
    much, which only lowers F.
    """
    diagonal = alpha**2
    diagonal[:, 1:] += beta[:, :-1] ** 2
    coupling = np.maximum(alpha * beta, noise * diagonal.max(axis=1, keepdims=True))
    before, here, total, shift = (
        np.zeros_like(t),
        np.ones_like(t),
        np.ones_like(t),
        np.zeros_like(t),
    )
    for j in range(alpha.shape[1]):
        previous = coupling[:, j - 1, None] if j else 0.0
        before, here = (
            here,
            ((t - diagonal[:, j, None]) * here - previous * before) / coupling[:, j, None],
        )
        total = total + here**2
        large = np.where(np.abs(here) > 1e100, 1e-100, 1.0)
        before, here, total, shift = (
            before * large,
            here * large,
            total * large**2,
            shift - 2 * np.log(large),
        )
    return np.log(total) + shift


def reaches(
    alpha: Float64[np.ndarray, "b k"],
    beta: Float64[np.ndarray, "b k"],
    value: Float64[np.ndarray, " b"],
    delta: Float64[np.ndarray, " b"],
    noise: float,
) -> Bool[np.ndarray, " b"]:
    r"""Whether the bound is already below `value`: $F_k(\mathrm{value}^2) \ge \delta^{-2}$."""
    unit = np.maximum(value, 1e-300)[:, None]
    reached = log_polynomials(alpha / unit, beta / unit, np.ones_like(unit), noise)[:, 0]
    return reached >= -2 * np.log(delta)


def upper_bound(
    alpha: Float64[np.ndarray, "b k"],
    beta: Float64[np.ndarray, "b k"],
    top: Float64[np.ndarray, " b"],
    delta: Float64[np.ndarray, " b"],
    slack: float,
    noise: float,
) -> Float64[np.ndarray, " b"]:
    r"""The bound itself, above the largest Ritz values `top`.

    F increases there, so that every $t$ with $F_k(t) \ge \delta^{-2}$ is a bound. The smallest of a
    geometric grid of widths $t/\theta^2 - 1$ is refined within its cell: three times give it to a
    few parts in $10^6$ of the width.
    """
    unit = np.maximum(top, 1e-300)[:, None]
    alpha, beta = alpha / unit, beta / unit
    goal = -2 * np.log(delta)[:, None]
    steps, start = 2.0 ** np.arange(GRID + 1), np.full_like(unit, NARROWEST)
    while True:
        widths = start * steps
        above = log_polynomials(alpha, beta, 1 + widths, noise) >= goal
        short = ~above.any(axis=1, keepdims=True)
        if not short.any():
            break
        start = np.where(short, widths[:, -1:], start)
    for _ in range(REFINEMENTS):
        first = above.argmax(axis=1)[:, None]
        high = np.take_along_axis(widths, first, 1)
        low = np.take_along_axis(widths, np.maximum(first - 1, 0), 1)
        widths = low * (high / low) ** np.linspace(0, 1, GRID + 1)
        above = log_polynomials(alpha, beta, 1 + widths, noise) >= goal
        above[:, -1] = True
    high = np.take_along_axis(widths, above.argmax(axis=1)[:, None], 1)
    return top * np.sqrt(1 + high[:, 0]) * (1 + slack)
