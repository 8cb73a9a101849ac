r"""The second derivative of softmax-like attention over a ball, in norm and against fixed directions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._ball import ROUNDING, Ball
from attnscope.bounds._positive import TINY, largest_root, positive_norm


def hessian_norm(ball: Ball) -> Float[Tensor, "*out"]:
    r"""At least $|D^2F(X')[U, U]|_F$ over the ball and $|U|_F \le 1$.

    $\sum_h 2\|C\|(\mathrm{row}(\hat p\hat y) + \mathrm{col}(\hat p\hat\kappa)) + 2\|A\|\mathrm{row}(\hat p\hat b) + \|M\|\mathrm{col}(\hat p\hat b)
    + (K_1^{1/2} + K_2^{1/2} + K_3^{1/2})^2$, row and col the largest norms of rows and columns.
    """
    layer, high = ball.reading.layer, ball.high
    written, keys = high * ball.b, high * ball.kappa
    left = ball.left * ball.kappa
    first = (written * ball.y.square()).sum(-1).amax(-1)
    second = _columns(written * left.square())
    third = (torch.minimum(written.sum(-1), ball.written) * torch.linalg.vector_norm(keys, dim=-1)).amax(-1) * positive_norm(keys)
    squared = ((first + TINY).sqrt() + (second + TINY).sqrt() + (third + TINY).sqrt()).square()
    value = 2 * layer.c_norm * (_columns((high * ball.y).mT) + _columns(high * ball.balance))
    score = 2 * layer.a_norm * _columns(written.mT) + layer.m_norm * _columns(written)
    return (value + score + squared).sum(-1)


def _columns(matrix: Float[Tensor, "*out n n"]) -> Float[Tensor, "*out"]:
    return torch.linalg.vector_norm(matrix, dim=-2).amax(-1)


def curvature(ball: Ball, gradient: Float[Tensor, "c *stack n d"]) -> Float[Tensor, "c ..."]:
    r"""At least $-\langle g, D^2F(X')[U, U]\rangle$ over the ball and $|U|_F \le 1$, for each direction g.

    A quadratic form in the lengths $|u_i|$ bounds it; the largest root of its non-negative matrix bounds the form.
    """
    layer, high, kappa = ball.reading.layer, ball.high, ball.kappa
    size = torch.linalg.vector_norm(gradient[..., None, :, :] @ layer.c, dim=-1)  # |C^T g_i|
    lowest, highest = _along(ball, gradient, size)
    weight = high * (-lowest).clamp(min=0)
    either = high * torch.maximum(-lowest, highest).clamp(min=0)
    tilted, keys, left = weight * ball.y, high * kappa, ball.left * kappa
    form = 2 * size[..., None] * high * ball.y + 2 * layer.a_norm[:, None, None] * either
    form = form + 2 * tilted.sum(-1, keepdim=True) * keys + 2 * tilted * left
    form = form + keys.mT @ (weight.sum(-1, keepdim=True) * keys + 2 * weight * left)
    diagonal = (2 * size[..., None] * high * ball.balance + weight * left.square()).sum(-2) + (tilted * ball.y).sum(-1)
    if layer.m is not None:
        diagonal = diagonal + layer.m_norm[:, None] * (high * highest.clamp(min=0)).sum(-2)
    form = (form + torch.diag_embed(diagonal)).sum(-3)
    return largest_root((form + form.mT) / 2)


def _along(ball: Ball, gradient: Float[Tensor, "c *stack n d"], size: Float[Tensor, "c *stack h n"]) -> tuple[Tensor, Tensor]:
    r"""An interval that holds $\langle C(x'_j - m'_i), g_i\rangle$ over the ball.

    It is $\beta_{ij} - \sum_k(P'_{ik} - P_{ik})\beta_{ik}$, $\beta_{ij} = \langle C(x_j - m_i), g_i\rangle$, up to $|e_j - P'_i|\varepsilon|C^Tg_i|$.
    """
    reading = ball.reading
    inner = gradient[..., None, :, :] @ reading.value.mT
    beta = inner - (reading.p * inner).sum(-1, keepdim=True)
    noise = ROUNDING * torch.linalg.vector_norm(reading.x, dim=-1).amax(-1)[..., None, None] * size
    moved = ball.reach * ball.eps[..., None, None] * size + noise
    up, down = beta.clamp(min=0), (-beta).clamp(min=0)
    most = (ball.rise * up + ball.fall * down).sum(-1)
    least = (ball.rise * down + ball.fall * up).sum(-1)
    return beta - (most + moved)[..., None], beta + (least + moved)[..., None]
