r"""Sigmoid attention over a ball: every theorem on $F(X) = rX + \sum_hP_h(XC_h^T + 1c_h^T)$,
$P = \varsigma\sigma(S)$.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.sigmoid import Sigmoid
from attnscope.bounds.near._direct import (
    dense_direct,
    direct_blocks,
    direct_norm,
    identity,
    is_small,
)
from attnscope.bounds.near._graded import SHARES, graded, weighed
from attnscope.bounds.near._sigmoid_ball import ROUNDING, SigmoidAt, SigmoidBall
from attnscope.bounds.near.place import (
    Around,
    Budget,
    Near,
    NearBend,
    NearCurvature,
    NearTokens,
    at_input,
    kept,
    over_ball,
    without_rotary,
)
from attnscope.bounds.registry import theorem
from attnscope.norms import TINY, positive_norm, spectral

stated = partial(
    theorem,
    variant=Sigmoid,
    where=Near,
    source="ours, the split of havens24",
    positional=True,
    masses="equal",
    when=without_rotary,
)


# What the theorems share.


@at_input
def reading(near: Around) -> SigmoidAt:
    assert isinstance(near.attention, Sigmoid)
    return SigmoidAt.of(near.attention, near.x)


@kept
def direct(near: Around) -> Float[Tensor, " b"]:
    r"""$\xi$, the norm of what moves with the coupling held fixed."""
    return direct_norm(reading(near).p, reading(near).c, near.residual)


@kept
def first_order(near: Around) -> Float[Tensor, " b"]:
    r"""At least $\|DF(X)\|$."""
    return _jacobian_norm(reading(near), near.residual, direct(near))


@over_ball
def ball(near: Around) -> SigmoidBall:
    return SigmoidBall.of(reading(near), near.eps)


@over_ball
def token_local(near: Around) -> Float[Tensor, " b"]:
    r"""At least $\|DF\|$ over the ball."""
    over = ball(near)
    moved = (positive_norm(over.slope) * over.reading.c_norm).sum(-1)
    return direct(near) + moved + positive_norm(_budget(over.steep, over.b, over.y, over.kappa))


# How far the output moves.


@stated("sigmoid coupling")
def coupling(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\xi + \sum_h\delta(\|[Cx_j + c]\| + \varepsilon\|C\|)$,
    $\delta \ge |P' - P|_F$ from its box or from the slope of the sigmoid.
    """
    over, at, eps = ball(near), reading(near), near.eps[..., None]
    query, key = _weighed(over.steep, at.query), _weighed(over.steep.mT, at.key)
    linear = eps * (query + key) + over.steep.amax((-2, -1)) * at.a_norm * eps**2
    moved = torch.minimum(torch.linalg.matrix_norm(over.slope), linear) + ROUNDING
    size = spectral(at.value) + at.c_norm * eps
    return near.eps * direct(near) + (moved * size).sum(-1)


@stated("L3-sigmoid")
def l3(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon(\xi + \sum_h\|\delta P\|\|C\| + \|\sum_h[\bar\sigma_{ij}\hat
    b_j\hat\kappa_i] + \mathrm{diag}_i\sum_j\bar\sigma_{ij}\hat b_j\hat y_j\|)$.
    """
    return near.eps * token_local(near)


@stated("L3-sigmoid graded")
def l3_graded(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\sum_k(s_k - s_{k-1})\Lambda(s_k\varepsilon)$, $\Lambda$ of L3-sigmoid."""
    return near.eps * weighed([token_local(near.within(share)) for share in SHARES])


@stated("T3-sigmoid graded")
def t3_graded(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\int_0^\varepsilon\min(\Lambda(s), \|DF(X)\| + \int_0^sH)\,ds$, $\Lambda$ of
    L3-sigmoid, $H$ at least the norm of the second derivative.
    """
    parts = [near.within(share) for share in SHARES]
    hessians = [_hessian_norm(ball(part)) for part in parts]
    return graded(near.eps, first_order(near), [token_local(part) for part in parts], hessians)


# Token by token, and against a direction.


@stated("Token budgets-sigmoid", where=NearTokens)
def token_budgets(attention: Attention, near: NearTokens) -> Budget:
    r"""$|r|I + (\sum_{hg}q_hq_g\|C_h^TC_g\|)^{1/2}$, $q = P + \delta P$, and the matrix of
    L3-sigmoid bound the blocks of $DF$, $\Lambda$ of L3-sigmoid its norm.
    """
    over = ball(near)
    blocks = direct_blocks(over.reading.p + over.slope, over.reading.c, near.residual)
    blocks = blocks + _budget(over.steep, over.b, over.y, over.kappa)
    return Budget(partial(token_local, near), blocks)


@stated("Bend-sigmoid", where=NearBend)
def bend(attention: Attention, near: NearBend) -> Float[Tensor, " b"]:
    r"""$2\|C\|(\mathrm{row}(\bar\sigma\hat y) + \mathrm{col}(\bar\sigma\hat\kappa)) +
    2\|A\|\mathrm{row}(\bar\sigma\hat b) + (\sqrt{K_1} + \sqrt{K_2})^2$, the $H$ of T3-sigmoid
    graded.
    """
    return _hessian_norm(ball(near))


@stated("Remainder-sigmoid", where=NearCurvature)
def curvature(attention: Attention, near: NearCurvature) -> Callable[[Tensor], Tensor]:
    r"""$-\langle g, D^2F[U, U]\rangle \le \sum_{ij}2\bar\sigma\gamma_i(\hat y_jv_iv_j +
    \hat\kappa_iv_j^2) + 2\|A\|\bar\sigma|\beta'|v_iv_j + w_{ij}(\hat y_jv_i +
    \hat\kappa_iv_j)^2$, $v_i = |u_i|$.
    """
    over = ball(near)
    return lambda gradient: _form(over, gradient)


# The formulas.


def _weighed(
    weights: Float[Tensor, "b h n n"], rows: Float[Tensor, "b h n d"]
) -> Float[Tensor, "b h"]:
    r"""At least $\max_i\|\mathrm{diag}(w_{i\cdot})R\|$: by the largest weight or in Frobenius
    norm.
    """
    frobenius = (weights.square() @ rows.square().sum(-1)[..., None] + TINY)[..., 0].sqrt()
    return torch.minimum(frobenius, weights.amax(-1) * spectral(rows)[..., None]).amax(-1)


def _budget(steep: Tensor, b: Tensor, y: Tensor, kappa: Tensor) -> Float[Tensor, "b n n"]:
    written = steep * b[..., None, :]
    return (written * kappa[..., None] + torch.diag_embed((written * y[..., None, :]).sum(-1))).sum(
        -3
    )


def _jacobian_norm(reading: SigmoidAt, residual: float, xi: Tensor) -> Float[Tensor, " b"]:
    steep = (
        reading.mass
        * torch.sigmoid(reading.scores)
        * torch.sigmoid(-reading.scores)
        * reading.allowed
    )
    if not is_small(reading.x):
        b, y, kappa = (
            torch.linalg.vector_norm(rows, dim=-1)
            for rows in (reading.value, reading.query, reading.key)
        )
        return xi + positive_norm(_budget(steep, b, y, kappa))
    stack, parts = (
        reading.x.shape[:-2],
        (steep, reading.p, reading.value, reading.query, reading.key),
    )
    found = [
        _dense_norm(reading, residual, *one)
        for one in zip(*(part.reshape(-1, *part.shape[-3:]) for part in parts), strict=True)
    ]
    return torch.stack(found).reshape(stack)


def _dense_norm(
    reading: SigmoidAt,
    residual: float,
    steep: Tensor,
    p: Tensor,
    value: Tensor,
    query: Tensor,
    key: Tensor,
) -> Tensor:
    blocks = torch.einsum("hij,hja,hib->iajb", steep, value, key)
    own = torch.einsum("hij,hja,hjb->iab", steep, value, query)
    n, d = value.shape[-2:]
    blocks = blocks + torch.einsum(
        "iab,ij->iajb", own, torch.eye(n, dtype=p.dtype, device=p.device)
    )
    kept = residual * identity(reading.c, None)
    return spectral(blocks.reshape(n * d, n * d) + dense_direct(p, reading.c, kept))


def _hessian_norm(ball: SigmoidBall) -> Tensor:
    r"""At least $|D^2F(X')[U, U]|_F$ over the ball and $|U|_F \le 1$."""
    reading, steep = ball.reading, ball.steep
    y, kappa = ball.y[..., None, :], ball.kappa[..., None]
    written = steep * ball.b[..., None, :]
    curved = torch.maximum(-ball.bend_low, ball.bend_high) * ball.b[..., None, :]
    first, second = (curved * y.square()).sum(-1).amax(-1), _columns(curved * kappa.square())
    squared = ((first + TINY).sqrt() + (second + TINY).sqrt()).square()
    value = 2 * reading.c_norm * (_columns((steep * y).mT) + _columns(steep * kappa))
    return (value + 2 * reading.a_norm * _columns(written.mT) + squared).sum(-1)


def _columns(matrix: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h"]:
    return torch.linalg.vector_norm(matrix, dim=-2).amax(-1)


def _form(ball: SigmoidBall, gradient: Float[Tensor, "c b n d"]) -> Float[Tensor, "c b n n"]:
    r"""At least $-\langle g, D^2F(X')[U, U]\rangle$ over the ball and $|U|_F \le 1$: a quadratic
    form in the lengths $|u_i|$.
    """
    reading, steep = ball.reading, ball.steep
    size = torch.linalg.vector_norm(gradient[..., None, :, :] @ reading.c, dim=-1)
    beta = gradient[..., None, :, :] @ reading.value.mT
    noise = (
        ROUNDING
        * torch.linalg.vector_norm(gradient, dim=-1)[..., None, :]
        * ball.b.amax(-1, keepdim=True)
    )
    moved = (size * ball.eps[..., None, None] + noise)[..., None]
    low, high = beta - moved, beta + moved
    products = [-end * bend for end in (low, high) for bend in (ball.bend_low, ball.bend_high)]
    weight = torch.stack(torch.broadcast_tensors(*products)).amax(0).clamp(min=0)
    y, kappa = ball.y[..., None, :], ball.kappa[..., None]
    form = (
        2
        * steep
        * (size[..., None] * y + reading.a_norm[:, None, None] * torch.maximum(-low, high))
        + 2 * weight * y * kappa
    )
    diagonal = (weight * y.square()).sum(-1) + (
        2 * steep * size[..., None] * kappa + weight * kappa.square()
    ).sum(-2)
    form = (form + torch.diag_embed(diagonal)).sum(-3)
    return (form + form.mT) / 2
