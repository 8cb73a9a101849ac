r"""Bounds on $|F(X') - F(X)|_F$ over $|X' - X|_F \le \varepsilon$, $F(X) = rX + \sum_hP_hXC_h^T$, for softmax and L2 attention."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._ball import ROUNDING, Ball, spread
from attnscope.bounds._direct import direct_norm, jacobian_norm
from attnscope.bounds._norms import spectral
from attnscope.bounds._positive import positive_norm
from attnscope.bounds._reading import Reading

RADII = (0.25, 0.5, 0.75, 1.0)


def softmax_candidates(reading: Reading, eps: Float[Tensor, "*eps"], residual: float) -> dict[str, Float[Tensor, "*out"]]:
    """Every bound by name; names as in docs/theorems.md."""
    xi, first = direct_norm(reading.p, reading.layer.c, residual), jacobian_norm(reading, residual)
    balls = [Ball.of(reading, share * eps) for share in RADII]
    weights = _Scores(reading)
    steps = [_token_local(ball, xi, weights) for ball in balls]
    found = {"G0": _global(reading, eps, residual)} if reading.layer.m is None else {}
    found |= _coupling(balls[-1], xi, weights)
    found |= {"L3": eps * steps[-1][0], "L3cap": eps * steps[-1][1]}
    total, grown, before = torch.zeros_like(eps), first, 0.0
    for share, ball, (_, constant) in zip(RADII, balls, steps, strict=True):
        part = (share - before) * eps
        total, before = total + part * constant, share
    return found | {"L3cap graded": total}


class _Scores:
    r"""Norms of the linear part of the change of the scores, $D \mapsto [\langle A^T(x_j - \bar x), d_i\rangle + \langle\kappa_{ij}, d_j\rangle]$."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.query = spectral(reading.query)
        self.value = spectral(reading.value)

    def keys(self, weight: Float[Tensor, "*out h n"] | None = None) -> Float[Tensor, "*out h"]:
        """Of the key part, rows weighed."""
        key = self.reading.key if weight is None else weight[..., None] * self.reading.key
        if self.reading.layer.m is None:
            return spectral(key)
        raise NotImplementedError

    def omega(self, weight: Float[Tensor, "*out h n"] | None = None) -> Float[Tensor, "*out h"]:
        top = 1.0 if weight is None else weight.amax(-1)
        return top * self.query + self.keys(weight)


def _global(reading: Reading, eps: Tensor, residual: float) -> Float[Tensor, "*out"]:
    layer, root = reading.layer, math.sqrt(reading.n)
    radius = (torch.linalg.vector_norm(reading.x, dim=-1).amax(-1) + eps)[..., None]
    score = layer.a_norm * radius + torch.linalg.vector_norm(layer.shift, dim=-1)
    per_head = layer.c_norm * (root + layer.a_norm * radius**2 + root * radius * score)
    return eps * (abs(residual) + per_head.sum(-1))


def _coupling(ball: Ball, xi: Tensor, scores: _Scores) -> dict[str, Tensor]:
    """L1, L1c, L2, L2i: the coupling moves, then the values."""
    reading, layer, eps = ball.reading, ball.reading.layer, ball.eps[..., None]
    bend = layer.a_norm * eps**2
    plain = spectral(reading.x[..., None, :, :] @ layer.a) + spectral(reading.key)
    whole = spectral(reading.x[..., None, :, :] @ layer.c.mT)
    move = {
        "L1": (eps * plain + bend) / 2,
        "L1c": (eps * scores.omega() + bend) / 2,
    }
    move["L2"] = torch.minimum(move["L1c"], eps * scores.omega(ball.spread) + ball.spread.amax(-1) * bend)
    move["L2i"] = torch.minimum(move["L2"], torch.linalg.matrix_norm(ball.slope))
    size = {name: (whole if name == "L1" else scores.value) + layer.c_norm * eps for name in move}
    return {name: ball.eps * xi + ((part + ROUNDING) * size[name]).sum(-1) for name, part in move.items()}


def _token_local(ball: Ball, xi: Tensor, scores: _Scores) -> tuple[Tensor, Tensor]:
    r"""The constants of L3 and L3cap: at least $\|DF\|$ over the ball."""
    layer, eps = ball.reading.layer, ball.eps[..., None]
    slope = positive_norm(ball.slope)
    plain = (ball.high * ball.b * ball.y).sum(-1)
    block = ball.high * ball.b * ball.kappa
    loose = xi + (slope * layer.c_norm).sum(-1) + positive_norm((block + torch.diag_embed(plain)).sum(-3))
    bent = torch.minimum(plain, ball.bent)
    matrix = positive_norm((block + torch.diag_embed(bent)).sum(-3))
    rows = (ball.kappa.amax(-1) * ball.written).amax(-1)
    schur = ((rows * block.sum(-2).amax(-1) + 1e-300).sqrt() + bent.amax(-1)).sum(-1)
    by_rows = ball.spread.amax(-1) * (scores.omega() + 2 * layer.a_norm * eps) * (scores.value + layer.c_norm * eps)
    capped = torch.minimum(torch.minimum(matrix, schur), by_rows.sum(-1))
    moved = torch.minimum(slope, torch.linalg.matrix_norm(ball.slope))
    return loose, xi + (moved * layer.c_norm).sum(-1) + capped
