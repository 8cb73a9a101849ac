r"""Bounds on the movement of sigmoid attention over a ball, and on its Taylor remainder."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._direct import dense_direct, direct_norm, is_small
from attnscope.bounds._graded import SHARES, graded, graded_remainder, weighed
from attnscope.bounds._sigmoid_ball import ROUNDING, SigmoidBall, SigmoidReading
from attnscope.norms import TINY, largest_root, positive_norm, spectral


def sigmoid_candidates(
    reading: SigmoidReading, eps: Float[Tensor, " b"], residual: float
) -> dict[str, Tensor]:
    """Every bound by name; names as in docs/theorems.md."""
    xi = direct_norm(reading.p, reading.c, residual)
    first = _jacobian_norm(reading, residual, xi)
    balls = [SigmoidBall.of(reading, share * eps) for share in SHARES]
    constants = [_token_local(ball, xi) for ball in balls]
    return {
        "L2-sigmoid": _coupling(balls[-1], xi),
        "L3-sigmoid": eps * constants[-1],
        "L3-sigmoid graded": eps * weighed(constants),
        "T3-sigmoid graded": graded(eps, first, constants, [_hessian_norm(ball) for ball in balls]),
    }


def sigmoid_remainder(
    reading: SigmoidReading, eps: Float[Tensor, " b"], gradient: Float[Tensor, "c b n d"]
) -> Float[Tensor, "c b"]:
    return graded_remainder(
        eps, lambda radius: largest_root(curvature_form(SigmoidBall.of(reading, radius), gradient))
    )


def _coupling(ball: SigmoidBall, xi: Tensor) -> Tensor:
    r"""$\varepsilon\xi + \sum_h|P' - P|_F(\|V\| + \varepsilon\|C\|)$, the coupling from its box or
    from the slope of the sigmoid.
    """
    reading, eps = ball.reading, ball.eps[..., None]
    query = _weighed(ball.steep, reading.query)
    key = _weighed(ball.steep.mT, reading.key)
    linear = eps * (query + key) + ball.steep.amax((-2, -1)) * reading.a_norm * eps**2
    moved = torch.minimum(torch.linalg.matrix_norm(ball.slope), linear) + ROUNDING
    return ball.eps * xi + (moved * (spectral(reading.value) + reading.c_norm * eps)).sum(-1)


def _weighed(
    weights: Float[Tensor, "b h n n"], rows: Float[Tensor, "b h n d"]
) -> Float[Tensor, "b h"]:
    r"""At least $\max_i\|\mathrm{diag}(w_{i\cdot})R\|$: by the largest weight or in Frobenius
    norm.
    """
    frobenius = (weights.square() @ rows.square().sum(-1)[..., None] + TINY)[..., 0].sqrt()
    return torch.minimum(frobenius, weights.amax(-1) * spectral(rows)[..., None]).amax(-1)


def _token_local(ball: SigmoidBall, xi: Tensor) -> Tensor:
    r"""$\|DF\| \le \xi + \sum_h\|P' - P\|\|C\| + \|\sum_h[\sigma'b_j\kappa_i] +
    \mathrm{diag}\sum_j\sigma'b_jy_j\|$ over the ball.
    """
    moved = (positive_norm(ball.slope) * ball.reading.c_norm).sum(-1)
    return xi + moved + positive_norm(_budget(ball.steep, ball.b, ball.y, ball.kappa))


def _budget(steep: Tensor, b: Tensor, y: Tensor, kappa: Tensor) -> Float[Tensor, "b n n"]:
    written = steep * b[..., None, :]
    return (written * kappa[..., None] + torch.diag_embed((written * y[..., None, :]).sum(-1))).sum(
        -3
    )


def _jacobian_norm(reading: SigmoidReading, residual: float, xi: Tensor) -> Float[Tensor, " b"]:
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
    reading: SigmoidReading,
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
    return spectral(blocks.reshape(n * d, n * d) + dense_direct(p, reading.c, residual))


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


def curvature_form(
    ball: SigmoidBall, gradient: Float[Tensor, "c b n d"]
) -> Float[Tensor, "c b n n"]:
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
