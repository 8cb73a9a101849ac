r"""Bounds on $|F(X') - F(X)|_F$ over $|X' - X|_F \le \varepsilon$, $F(X) = rX + \sum_hP_hXC_h^T$,
for softmax and L2 attention.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._ball import ROUNDING, Ball, spread
from attnscope.bounds._covariance import covariance_norm
from attnscope.bounds._direct import direct_norm, jacobian_norm
from attnscope.bounds._graded import SHARES, graded, graded_remainder, weighed
from attnscope.bounds._reading import Reading
from attnscope.bounds._score_norms import ScoreNorms
from attnscope.bounds._taylor import Curvature, Directions, hessian_norm
from attnscope.norms import TINY, positive_norm, spectral


def softmax_candidates(
    reading: Reading, eps: Float[Tensor, " b"], residual: float
) -> dict[str, Float[Tensor, " b"]]:
    """Every bound by name; names as in docs/theorems.md."""
    xi = direct_norm(reading.p, reading.layer.c, residual)
    first, scores = jacobian_norm(reading, residual, xi), ScoreNorms.of(reading)
    balls = [Ball.of(reading, share * eps) for share in SHARES]
    whole, moves = balls[-1], _moves(balls[-1], scores)
    capped = [xi + _capped(ball, scores) for ball in balls]
    found = (
        {}
        if reading.layer.m is not None
        else {"G0": _global(reading, eps, residual), "L1": _uncentred(reading, eps, xi)}
    )
    size = scores.value + reading.layer.c_norm * eps[:, None]
    found |= {name: eps * xi + (move * size).sum(-1) for name, move in moves.items()}
    if reading.layer.m is None:
        found["T3"] = eps * first + _score_taylor(whole, scores, moves)
    found |= {
        "L3": eps * (xi + _token_local(whole)),
        "L3cap": eps * capped[-1],
        "L3cap graded": eps * weighed(capped),
    }
    return found | {"T3 graded": graded(eps, first, capped, [hessian_norm(ball) for ball in balls])}


def softmax_remainder(
    reading: Reading, eps: Float[Tensor, " b"], gradient: Float[Tensor, "c b n d"]
) -> Float[Tensor, "c b"]:
    directions = Directions.of(reading, gradient)
    return graded_remainder(eps, lambda radius: Curvature.of(Ball.of(reading, radius))(directions))


def _global(reading: Reading, eps: Tensor, residual: float) -> Tensor:
    layer, root = reading.layer, math.sqrt(reading.n)
    radius = (torch.linalg.vector_norm(reading.x, dim=-1).amax(-1) + eps)[..., None]
    score = layer.a_norm * radius + torch.linalg.vector_norm(layer.shift, dim=-1)
    per_head = layer.c_norm * (root + layer.a_norm * radius**2 + root * radius * score)
    return eps * (abs(residual) + per_head.sum(-1))


def _uncentred(reading: Reading, eps: Tensor, xi: Tensor) -> Tensor:
    layer, tokens, radius = reading.layer, reading.x[..., None, :, :], eps[..., None]
    moved = (
        radius * (spectral(tokens @ layer.a) + spectral(reading.key)) + layer.a_norm * radius**2
    ) / 2
    return eps * xi + (
        (moved + ROUNDING) * (spectral(tokens @ layer.c.mT) + layer.c_norm * radius)
    ).sum(-1)


def _moves(ball: Ball, scores: ScoreNorms) -> dict[str, Float[Tensor, "b h"]]:
    r"""At least $|P' - P|_F$: by the largest slope of softmax, by its slope on the box, by the box
    itself.
    """
    eps = ball.eps[:, None]
    found = {"L1c": _plain_move(ball, scores)}
    local = eps * scores.weighed(ball.spread) + ball.spread.amax(-1) * scores.bend * eps**2
    found["L2"] = torch.minimum(found["L1c"], local)
    found["L2i"] = torch.minimum(found["L2"], torch.linalg.matrix_norm(ball.slope))
    return {name: move + ROUNDING for name, move in found.items()}


def _plain_move(ball: Ball, scores: ScoreNorms) -> Float[Tensor, "b h"]:
    eps = ball.eps[:, None]
    return (eps * scores.linear + scores.bend * eps**2) / 2


def _score_taylor(ball: Ball, scores: ScoreNorms, moves: dict[str, Tensor]) -> Float[Tensor, " b"]:
    r"""What T3 adds to $\varepsilon\|DF(X)\|$: $\sum_h(\lambda_0\|A\|\varepsilon^2 + E)\|XC^T\| +
    |P' - P|_F\varepsilon\|C\|$.
    """
    layer, eps = ball.reading.layer, ball.eps[:, None]
    bend = layer.a_norm * eps**2
    turn = ball.reach / 2
    length = eps[..., None] * scores.rows() + bend[..., None]
    curved = torch.linalg.vector_norm(turn * ball.spread * length.square(), dim=-1)
    curved = torch.minimum(curved, (turn * length).amax(-1) * moves["L2"])
    here = spread(ball.reading.p, ball.reading.p).amax(-1)
    return (
        (here * bend + curved + ROUNDING) * scores.value + moves["L2i"] * eps * layer.c_norm
    ).sum(-1)


def _token_local(ball: Ball) -> Float[Tensor, " b"]:
    r"""L3: at least $\|DF\| - \xi$ over the ball, every probability by itself."""
    moved = (positive_norm(ball.slope) * ball.reading.layer.c_norm).sum(-1)
    bent = (ball.high * ball.b * ball.y).sum(-1)
    return moved + positive_norm((ball.high * ball.b * ball.kappa + torch.diag_embed(bent)).sum(-3))


def _capped(ball: Ball, scores: ScoreNorms) -> Float[Tensor, " b"]:
    r"""L3cap: the same, using that rows of $P'$ sum to one."""
    layer, block = ball.reading.layer, ball.high * ball.b * ball.kappa
    moved = (
        torch.minimum(positive_norm(ball.slope), _plain_move(ball, scores) + ROUNDING)
        * layer.c_norm
    ).sum(-1)
    matrix = positive_norm((block + torch.diag_embed(ball.bent)).sum(-3))
    rows = (ball.kappa.amax(-1) * ball.written).amax(-1)
    schur = ((rows * block.sum(-2).amax(-1) + TINY).sqrt() + ball.bent.amax(-1)).sum(-1)
    by_rows = (
        ball.spread.amax(-1)
        * scores.nearby(ball.eps)
        * (scores.value + layer.c_norm * ball.eps[:, None])
    ).sum(-1)
    added = (matrix, schur, by_rows, covariance_norm(ball.reading, ball.high, ball.kappa, ball.eps))
    return moved + torch.stack(added).amin(0)
