r"""Bounds on $|F(X') - F(X)|_F$ over $|X' - X|_F \le \varepsilon$, $F(X) = rX + \sum_hP_hXC_h^T$, for softmax and L2 attention."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._ball import ROUNDING, Ball, spread
from attnscope.bounds._direct import direct_norm, jacobian_norm
from attnscope.bounds._graded import SHARES, graded, graded_remainder, steps
from attnscope.bounds._norms import spectral
from attnscope.bounds._positive import TINY, positive_norm
from attnscope.bounds._reading import Reading
from attnscope.bounds._score_norms import ScoreNorms
from attnscope.bounds._taylor import curvature, hessian_norm


def softmax_candidates(reading: Reading, eps: Float[Tensor, "*eps"], residual: float) -> dict[str, Tensor]:
    """Every bound by name; names as in docs/theorems.md."""
    xi = direct_norm(reading.p, reading.layer.c, residual)
    first = jacobian_norm(reading, residual, xi)
    scores = ScoreNorms.of(reading)
    balls = [Ball.of(reading, share * eps) for share in SHARES]
    loose, capped = zip(*(_token_local(ball, xi, scores) for ball in balls), strict=True)
    found = _coupling(balls[-1], xi, scores)
    if reading.layer.m is None:
        found = {"G0": _global(reading, eps, residual), "L1": _uncentred(reading, eps, xi)} | found
        found["T3"] = eps * first + _score_taylor(balls[-1], scores)
    found |= {"L3": eps * loose[-1], "L3cap": eps * capped[-1]}
    found["L3cap graded"] = eps * sum(step * constant for step, constant in zip(steps(SHARES), capped, strict=True))
    return found | {"T3 graded": graded(eps, first, list(capped), [hessian_norm(ball) for ball in balls])}


def softmax_remainder(reading: Reading, eps: Float[Tensor, "*eps"], gradient: Float[Tensor, "c *stack n d"]) -> Float[Tensor, "c ..."]:
    return graded_remainder(eps, lambda radius: curvature(Ball.of(reading, radius), gradient))


def _global(reading: Reading, eps: Tensor, residual: float) -> Tensor:
    layer, root = reading.layer, math.sqrt(reading.n)
    radius = (torch.linalg.vector_norm(reading.x, dim=-1).amax(-1) + eps)[..., None]
    score = layer.a_norm * radius + torch.linalg.vector_norm(layer.shift, dim=-1)
    per_head = layer.c_norm * (root + layer.a_norm * radius**2 + root * radius * score)
    return eps * (abs(residual) + per_head.sum(-1))


def _uncentred(reading: Reading, eps: Tensor, xi: Tensor) -> Tensor:
    layer, tokens, radius = reading.layer, reading.x[..., None, :, :], eps[..., None]
    moved = (radius * (spectral(tokens @ layer.a) + spectral(reading.key)) + layer.a_norm * radius**2) / 2
    return eps * xi + ((moved + ROUNDING) * (spectral(tokens @ layer.c.mT) + layer.c_norm * radius)).sum(-1)


def _moves(ball: Ball, scores: ScoreNorms) -> dict[str, Float[Tensor, "*out h"]]:
    r"""At least $|P' - P|_F$: by the largest slope of softmax, by its slope on the box, by the box itself."""
    eps = ball.eps[..., None]
    plain = (eps * scores.linear() + scores.bend * eps**2) / 2
    local = eps * scores.linear(ball.spread) + ball.spread.amax(-1) * scores.bend * eps**2
    found = {"L1c": plain, "L2": torch.minimum(plain, local)}
    found["L2i"] = torch.minimum(found["L2"], torch.linalg.matrix_norm(ball.slope))
    return {name: move + ROUNDING for name, move in found.items()}


def _coupling(ball: Ball, xi: Tensor, scores: ScoreNorms) -> dict[str, Tensor]:
    """L1c, L2, L2i: first the coupling moves, then the values."""
    size = scores.value + ball.reading.layer.c_norm * ball.eps[..., None]
    return {name: ball.eps * xi + (move * size).sum(-1) for name, move in _moves(ball, scores).items()}


def _score_taylor(ball: Ball, scores: ScoreNorms) -> Tensor:
    r"""What T3 adds to $\varepsilon\|DF(X)\|$: $\sum_h(\lambda_0\|A\|\varepsilon^2 + E)\|XC^T\| + |P' - P|_F\varepsilon\|C\|$."""
    layer, eps, moves = ball.reading.layer, ball.eps[..., None], _moves(ball, scores)
    bend = layer.a_norm * eps**2
    turn = ball.reach / 2
    length = eps[..., None] * scores.rows() + bend[..., None]
    curved = torch.linalg.vector_norm(turn * ball.spread * length.square(), dim=-1)
    curved = torch.minimum(curved, (turn * length).amax(-1) * moves["L2"])
    here = spread(ball.reading.p, ball.reading.p).amax(-1)
    return ((here * bend + curved + ROUNDING) * scores.value + moves["L2i"] * eps * layer.c_norm).sum(-1)


def _token_local(ball: Ball, xi: Tensor, scores: ScoreNorms) -> tuple[Tensor, Tensor]:
    r"""The constants of L3 and L3cap: at least $\|DF\|$ over the ball."""
    layer, eps = ball.reading.layer, ball.eps[..., None]
    slope = positive_norm(ball.slope)
    plain = (ball.high * ball.b * ball.y).sum(-1)
    block = ball.high * ball.b * ball.kappa
    loose = xi + (slope * layer.c_norm).sum(-1) + positive_norm((block + torch.diag_embed(plain)).sum(-3))
    bent = torch.minimum(plain, ball.bent)
    matrix = positive_norm((block + torch.diag_embed(bent)).sum(-3))
    rows = (ball.kappa.amax(-1) * ball.written).amax(-1)
    schur = ((rows * block.sum(-2).amax(-1) + TINY).sqrt() + bent.amax(-1)).sum(-1)
    by_rows = (ball.spread.amax(-1) * scores.nearby(ball.eps) * (scores.value + layer.c_norm * eps)).sum(-1)
    moved = (torch.minimum(slope, _moves(ball, scores)["L2i"]) * layer.c_norm).sum(-1)
    return loose, xi + moved + torch.minimum(torch.minimum(matrix, schur), by_rows)
