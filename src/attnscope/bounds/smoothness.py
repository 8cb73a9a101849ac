r"""Every upper bound that applies to attention at a measure: on the ball that holds it, and at the point itself.

All bound $\|D^{1/2} J D^{-1/2}\|_2$, $J$ the Jacobian of $X \mapsto \Gamma_{\mu}(X)$ and $D$ the weights: the local Lipschitz
constant of attention in $L^2(\mu)$, $\|D_Xf\|_2$ for tokens of equal weight.
"""

from __future__ import annotations

import torch

from attnscope.attention import Attention
from attnscope.attention._normalised import Normalised
from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds._point import Reading
from attnscope.bounds.ball import ball_bounds, check_covered
from attnscope.bounds.point import point_bounds
from attnscope.measures import Particles
from attnscope.validation import described


def smoothness(attention: Attention, mu: Particles) -> Bounds:
    """Every proved upper bound on the local Lipschitz constant of `attention` at `mu`, names as in docs/theorems.md."""
    _check(attention, mu)
    attention, mu = attention.to(torch.float64), mu.to(torch.float64)
    alive = mu.weights[mu.weights > 0]
    radius = float(torch.linalg.vector_norm(mu.x[mu.weights > 0], dim=-1).max())
    found: list[Bound] = ball_bounds(attention, mu.n, float(alive.sum() / alive.min()), radius)
    if isinstance(attention, Normalised):
        reading = Reading.of(attention, mu)
        found += point_bounds(attention, reading)
    return Bounds(found)


def _check(attention: Attention, mu: Particles) -> None:
    check_covered(attention)
    if not isinstance(mu, Particles):
        raise TypeError(f"smoothness needs a Particles, got {described(mu)}. Build one with Particles(x).")
    if mu.x.ndim != 2:
        raise ValueError(
            f"smoothness takes one measure, x of shape (n, d), got a stack of shape {tuple(mu.x.shape)}. Call it once for each measure."
        )
    attention._checked(mu.x, mu, None)
