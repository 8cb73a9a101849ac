r"""Every upper bound that applies to attention at a measure: on the ball that holds it, and at the
point itself.

All bound $\|D^{1/2} J D^{-1/2}\|_2$, $J$ the Jacobian of $X \mapsto \Gamma_{\mu}(X)$ and $D$ the
weights: the local Lipschitz constant of attention in $L^2(\mu)$, $\|D_Xf\|_2$ for tokens of equal
weight.
"""

from __future__ import annotations

import torch

from attnscope.attention import Attention
from attnscope.attention._normalised import Normalised
from attnscope.attention.softmax import Softmax
from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds._point import Reading
from attnscope.bounds.ball import ball_bounds, check_covered
from attnscope.bounds.block_norms import BlockNorms, serves
from attnscope.bounds.blocks import exact_blocks, triangle_blocks
from attnscope.bounds.point import point_bounds
from attnscope.measures import Particles
from attnscope.norms import perron
from attnscope.validation import described

EXACT_WORK = 2e8
"""Rough operations, n^2 d^3, up to which block norms are computed exactly."""
MOST_TOKENS = 512
"""Length up to which B1-S is worth its time unless it is asked for."""


def smoothness(
    attention: Attention, mu: Particles, blocks: BlockNorms | bool | None = None
) -> Bounds:
    """Every proved upper bound on the local Lipschitz constant of `attention` at `mu`, names as in
    docs/theorems.md.

    The block bounds B1 are the sharpest and the dearest: computed up to 512 tokens by default,
    always with `blocks=True`, never with `blocks=False`. A layer used on many inputs saves time
    with `blocks=BlockNorms(attention, examples)`.
    """
    check_measure(attention, mu)
    attention, mu = attention.to(torch.float64), mu.to(torch.float64)
    alive = mu.weights > 0
    weights = mu.weights[alive]
    radius = float(torch.linalg.vector_norm(mu.x[alive], dim=-1).max())
    tokens = mu.n if attention.heads.positional else len(weights)
    found = ball_bounds(attention, tokens, float(weights.sum() / weights.min()), radius)
    if isinstance(attention, Normalised):
        reading = Reading.of(attention, mu)
        found += point_bounds(attention, reading)
        if blocks is not False:
            found.append(_block_bound(attention, mu, reading, blocks))
    return Bounds(found)


def _block_bound(
    attention: Normalised, mu: Particles, reading: Reading, blocks: BlockNorms | bool | None
) -> Bound:
    """The sharpest block bound that this size allows."""
    if isinstance(blocks, BlockNorms):
        blocks.check_fits(attention)
        return blocks.bound(reading)
    if reading.n**2 * reading.heads.dim**3 <= EXACT_WORK:
        return reading.bound(
            perron(exact_blocks(reading)), "B1", "norms of the blocks of the Jacobian"
        )
    if isinstance(attention, Softmax) and serves(attention) and (blocks or mu.n <= MOST_TOKENS):
        return BlockNorms(attention, [mu]).bound(reading)
    return reading.bound(
        perron(triangle_blocks(reading)), "B1-T", "block norms, triangle inequality over heads"
    )


def check_measure(attention: Attention, mu: Particles) -> None:
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
