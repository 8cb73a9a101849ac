r"""The doors: every proved upper bound on how much attention stretches, on a ball or at a measure.

All bound $\|D^{1/2} J D^{-1/2}\|_2$, $J$ the Jacobian of $X \mapsto \Gamma_{\mu}(X)$ and $D$ the
weights: the local Lipschitz constant of attention in $L^2(\mu)$, $\|D_Xf\|_2$ for tokens of equal
weight.
"""

from __future__ import annotations

import math

import torch

from attnscope.attention import Attention
from attnscope.bounds._bound import Bounds
from attnscope.bounds.asking import bounds_at
from attnscope.bounds.at import At, Blocks
from attnscope.bounds.places import Anywhere, OnBall
from attnscope.bounds.registry import stated, theorems
from attnscope.bounds.smooth.block_norms import BlockNorms, serves
from attnscope.measures import Particles
from attnscope.validation import check_positive, described

EXACT_WORK = 2e8
"""Rough operations, n^2 d^3, up to which block norms are computed exactly."""
MOST_TOKENS = 512
"""Length up to which B1-S is worth its time unless it is asked for."""


def on_ball(attention: Attention, n: int, radius: float, weighted: bool = False) -> Bounds:
    r"""Every upper bound on $\sup \|D_X f\|$ over n tokens in the ball of this radius: the curves
    $L(n, R)$ of [castin24].

    Tokens weigh the same; with `weighted=True` they may have any weights, and only theorems that
    allow them answer.

    Args:
        attention: The attention, in any dtype; bounds are computed in float64.
        n: How many tokens there are.
        radius: The largest norm of a token.
        weighted: Whether tokens may have any weights.

    Returns:
        The bounds, named as in docs/theorems.md; `.tightest` is the smallest.

    >>> import torch, attnscope as asc
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> found = asc.bounds.on_ball(asc.Softmax(asc.Heads.from_matrices(eye, eye)), 4, 1.0)
    >>> print(found.tightest.name, round(found.tightest.value, 6))
    U1' 5.0
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1, got {described(n)}.")
    check_positive("radius", radius)
    check_covered(attention)
    return bounds_at(
        attention.to(torch.float64), _ball(n, radius, math.inf if weighted else float(n))
    )


def smoothness(
    attention: Attention, mu: Particles, blocks: BlockNorms | bool | None = None
) -> Bounds:
    """Every proved upper bound on the local Lipschitz constant of `attention` at `mu`, names as in
    docs/theorems.md.

    The block bounds B1 are the sharpest and the dearest: computed up to 512 tokens by default,
    always with `blocks=True`, never with `blocks=False`. A layer used on many inputs saves time
    with `blocks=BlockNorms(attention, examples)`.

    Args:
        attention: The attention, in any dtype; bounds are computed in float64.
        mu: One measure, its tokens of any weights.
        blocks: Which block bounds to compute.

    Returns:
        The bounds on the ball that holds mu and at mu itself.
    """
    check_measure(attention, mu)
    attention, mu = attention.to(torch.float64), mu.to(torch.float64)
    alive = mu.weights > 0
    weights = mu.weights[alive]
    radius = float(torch.linalg.vector_norm(mu.x[alive], dim=-1).max())
    tokens = mu.n if attention.heads.positional else len(weights)
    places: list[object] = _ball(tokens, radius, float(weights.sum() / weights.min()))
    with torch.no_grad():
        if stated(attention, At, Blocks):
            at = At.of(attention, mu)
            places.append(at)
            if blocks is not False:
                places.append(_blocks(attention, mu, at, blocks))
        return bounds_at(attention, places)


def covered(attention: Attention) -> bool:
    """Whether some theorem bounds this attention on a ball or anywhere."""
    return bool(stated(attention, OnBall, Anywhere))


def check_covered(attention: object) -> None:
    """Refuse attention that no theorem here speaks of."""
    if not isinstance(attention, Attention):
        raise TypeError(
            f"bounds need an attention such as Softmax(heads), got {described(attention)}."
        )
    if covered(attention):
        return
    places = " with rotary heads or a position bias" if attention.heads.positional else ""
    names = sorted(
        {one.name for known in theorems() if known.where is OnBall for one in known.variants}
    )
    raise ValueError(
        f"no bound is known here for {attention.name} attention{places}. There are theorems for"
        f" {', '.join(names[:-1])} and {names[-1]} attention. For other variants bracket the local"
        " constant itself with spectral_norm(jacobian(attention, mu), failure_probability=...)."
    )


def check_measure(attention: Attention, mu: Particles) -> None:
    """Refuse what `smoothness` cannot serve."""
    check_covered(attention)
    if not isinstance(mu, Particles):
        raise TypeError(
            f"smoothness needs a Particles, got {described(mu)}. Build one with Particles(x)."
        )
    if mu.x.ndim != 2:
        raise ValueError(
            "smoothness takes one measure, x of shape (n, d), got a stack of shape"
            f" {tuple(mu.x.shape)}. Call it once for each measure."
        )
    attention.check(mu.x, mu)


def _ball(n: int, radius: float, crowd: float) -> list[object]:
    """What holds on a ball: the theorems there, and those of the whole space."""
    return [OnBall(n, radius, crowd), Anywhere(n, crowd)]


def _blocks(
    attention: Attention, mu: Particles, at: At, blocks: BlockNorms | bool | None
) -> Blocks:
    """The sharpest norms of blocks that this size allows."""
    if isinstance(blocks, BlockNorms):
        blocks.check_fits(attention)
        return Blocks(at, "factors", blocks)
    if at.n**2 * at.heads.dim**3 <= EXACT_WORK:
        return Blocks(at, "exact")
    if serves(attention) and (blocks or mu.n <= MOST_TOKENS):
        return Blocks(at, "factors", BlockNorms(attention, [mu]))
    return Blocks(at, "triangle")
