r"""The Taylor remainder of softmax attention against fixed directions: $-\langle g, R\rangle \le \frac12\lambda_{max}(M(g))\varepsilon^2$."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._ball import Ball
from attnscope.bounds._positive import largest_root
from attnscope.bounds._reading import Reading

RADII = (0.5, 1.0)
"""Graded radius: the part of the segment up to each of these shares of eps is judged by the ball of that radius."""


def softmax_remainder(reading: Reading, eps: Float[Tensor, "*eps"], gradient: Float[Tensor, "c *stack n d"]) -> Float[Tensor, "c *out"]:
    r"""$\varepsilon^2\sum_kW_k\lambda_{max}(M(s_k\varepsilon))$, $W_k = \int_{s_{k-1}}^{s_k}(1 - s)\,ds$."""
    total, before = torch.zeros_like(eps), 0.0
    for share in RADII:
        weight = (share - before) * (1 - (share + before) / 2)
        total = total + weight * curvature(Ball.of(reading, share * eps), gradient)
        before = share
    return total * eps**2


def curvature(ball: Ball, gradient: Float[Tensor, "c *stack n d"]) -> Float[Tensor, "c *out"]:
    r"""At least $-\langle g, D^2F(X')[U, U]\rangle$ over the ball and $|U|_F \le 1$."""
    reading, layer, eps = ball.reading, ball.reading.layer, ball.eps[..., None, None]
    read = gradient[..., None, :, :] @ layer.c  # C^T g_i
    size = torch.linalg.vector_norm(read, dim=-1)
    beta = _along(reading, gradient)
    swing = (ball.slope * beta.abs()).sum(-1) + ball.reach * eps * size
    weight = ball.high * (swing[..., None] - beta).clamp(min=0)
    either = ball.high * (beta.abs() + swing[..., None])
    alpha = ball.kappa[..., 0]
    left = (1 - ball.low - ball.high).clamp(min=0)
    tilted, pulled = weight * ball.y, alpha.square()[..., None] * weight * left
    form = 2 * size[..., None] * ball.high * ball.y + 2 * layer.a_norm[:, None, None] * either
    form = form + 2 * (alpha * tilted.sum(-1))[..., None] * ball.high + 2 * alpha[..., None] * tilted * left
    inner = (alpha.square() * weight.sum(-1))[..., None] * ball.high + 2 * pulled
    form = form + ball.high.mT @ inner
    diagonal = 2 * ((size * alpha)[..., None] * ball.high).sum(-2) + (tilted * ball.y).sum(-1) + (pulled * left).sum(-2)
    form = (form + torch.diag_embed(diagonal)).sum(-3)
    return largest_root((form + form.mT) / 2)


def _along(reading: Reading, gradient: Float[Tensor, "c *stack n d"]) -> Float[Tensor, "c *stack h n n"]:
    r"""$\beta_{ij} = \langle x_j - m_i, C^Tg_i\rangle$."""
    inner = gradient[..., None, :, :] @ reading.value.mT
    return inner - (reading.p * inner).sum(-1, keepdim=True)
