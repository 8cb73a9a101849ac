r"""Attention over a ball, token by token: what a certificate of a whole network needs from one
reading of the layer.

With $v_i = |d_i|$ the lengths of the tokens of a perturbation, $\|D\|_F \le \varepsilon$: a matrix
$N$ with $|F(X + D) - F(X)|_i \le (Nv)_i$, and for a direction g a matrix $M$ with $-\langle g,
R\rangle \le \frac12v^TMv$. Both are graded: the point at share s of the segment lies in the ball of
radius s eps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention._normalised import Normalised
from attnscope.attention.sigmoid import Sigmoid
from attnscope.bounds._ball import Ball
from attnscope.bounds._direct import direct_blocks, direct_norm
from attnscope.bounds._reading import Reading
from attnscope.bounds._score_norms import ScoreNorms
from attnscope.bounds._sigmoid_ball import SigmoidBall, SigmoidReading
from attnscope.bounds._sigmoid_bounds import _budget, _token_local, curvature_form
from attnscope.bounds._softmax_bounds import _capped
from attnscope.bounds._taylor import Curvature, Directions
from attnscope.bounds.sensitivity import _checked
from attnscope.norms import SLACK

SHARES = (0.5, 1.0)


@final
@dataclass(frozen=True, eq=False)
class TokensOverBall:
    r"""`radius` is at least $\|F(X + D) - F(X)\|_F$, `budget` is $N$, `form(g)` is $M$ for each of
    several directions g.
    """

    radius: Float[Tensor, " b"]
    budget: Float[Tensor, "b n n"]
    form: Callable[[Tensor], Tensor]


def tokens_over_ball(
    attention: Attention, x: Float[Tensor, "b n d"], eps: Float[Tensor, " b"], residual: float
) -> TokensOverBall:
    r"""$F(X) = rX + \Gamma(X)$ for softmax, L2 or sigmoid attention; `NoBound` for others."""
    covered, tokens, radius = _checked(attention, x, eps)
    if isinstance(covered, Sigmoid):
        return _sigmoid(covered, tokens, radius, residual)
    return _softmax(covered, tokens, radius, residual)


def _softmax(
    attention: Normalised, x: Float[Tensor, "b n d"], eps: Float[Tensor, " b"], residual: float
) -> TokensOverBall:
    reading = Reading.of(attention, x)
    balls = [Ball.of(reading, share * eps) for share in SHARES]
    scores, xi = ScoreNorms.of(reading), direct_norm(reading.p, reading.layer.c, residual)
    budgets = [
        direct_blocks(ball.high, reading.layer.c, residual)
        + (ball.high * ball.b * ball.kappa).sum(-3)
        + torch.diag_embed(ball.bent.sum(-2))
        for ball in balls
    ]
    constants = [xi + _capped(ball, scores) for ball in balls]
    curvatures = [Curvature.of(ball) for ball in balls]

    def form(gradient: Float[Tensor, "c b n d"]) -> Float[Tensor, "c b n n"]:
        directions = Directions.of(reading, gradient)
        return _graded_form([curvature.form(directions) for curvature in curvatures])

    return _graded(eps, constants, budgets, form)


def _sigmoid(
    attention: Sigmoid, x: Float[Tensor, "b n d"], eps: Float[Tensor, " b"], residual: float
) -> TokensOverBall:
    reading = SigmoidReading.of(attention, x)
    balls = [SigmoidBall.of(reading, share * eps) for share in SHARES]
    xi = direct_norm(reading.p, reading.c, residual)
    budgets = [
        direct_blocks(reading.p + ball.slope, reading.c, residual)
        + _budget(ball.steep, ball.b, ball.y, ball.kappa)
        for ball in balls
    ]

    def form(gradient: Float[Tensor, "c b n d"]) -> Float[Tensor, "c b n n"]:
        return _graded_form([curvature_form(ball, gradient) for ball in balls])

    return _graded(eps, [_token_local(ball, xi) for ball in balls], budgets, form)


def _graded(
    eps: Tensor, constants: list[Tensor], budgets: list[Tensor], form: Callable[[Tensor], Tensor]
) -> TokensOverBall:
    steps = [share - before for before, share in zip((0.0, *SHARES), SHARES, strict=False)]
    radius = eps * sum(step * constant for step, constant in zip(steps, constants, strict=True))
    budget = torch.stack([step * part for step, part in zip(steps, budgets, strict=True)]).sum(0)
    return TokensOverBall(radius * (1 + SLACK), budget * (1 + SLACK), form)


def _graded_form(forms: list[Float[Tensor, "c b n n"]]) -> Float[Tensor, "c b n n"]:
    r"""$\sum_k 2W_kM(s_k)$, $W_k = \int_{s_{k-1}}^{s_k}(1 - s)\,ds$."""
    weights = [
        (share - before) * (2 - share - before)
        for before, share in zip((0.0, *SHARES), SHARES, strict=False)
    ]
    return torch.stack([weight * form for weight, form in zip(weights, forms, strict=True)]).sum(
        0
    ) * (1 + SLACK)
