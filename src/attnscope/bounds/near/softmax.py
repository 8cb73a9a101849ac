r"""Softmax and L2 attention over a ball: every theorem on $F(X) = rX + \sum_hP_hXC_h^T$.

The two share their scores up to the quadratic term $M$ of the keys, which dot products do not have
(`_scores.py`). What several theorems use is worked out once per input or once per ball.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.bounds.near._ball import ROUNDING, Ball, spread
from attnscope.bounds.near._covariance import covariance_norm
from attnscope.bounds.near._direct import direct_blocks, direct_norm, jacobian_norm
from attnscope.bounds.near._graded import SHARES, graded, weighed
from attnscope.bounds.near._score_norms import ScoreNorms
from attnscope.bounds.near._scores import HeadMatrices, ScoresAt
from attnscope.bounds.near._taylor import Curvature, Directions, hessian_norm
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
from attnscope.measures import Particles
from attnscope.norms import TINY, positive_norm, spectral

stated = partial(
    theorem,
    variant=(Softmax, L2),
    where=Near,
    source="ours, the split of havens24",
    positional=True,
    masses="equal",
    when=without_rotary,
)


# What the theorems share.


@at_input
def reading(near: Around) -> ScoresAt:
    attention, mu = near.attention, Particles(near.x)
    assert isinstance(attention, Softmax | L2)
    q, k, bias, scale = attention.kernel(near.x, mu)
    scores = scale * q @ k.mT + bias[..., None, :]
    position_bias = attention.position_bias(*attention.token_numbers(near.x, mu, None))
    scores = scores if position_bias is None else scores + position_bias
    matrices = HeadMatrices.of(attention.heads, distance=isinstance(attention, L2))
    at = ScoresAt.of(matrices, scores, near.x, attention.causal)
    span = movements(near)
    return at if span is None else at.along(span)


def movements(near: Around) -> Float[Tensor, "d k"] | None:
    """The span of the movements where it is made use of: with dot products."""
    return near.span if isinstance(near.attention, Softmax) else None


@at_input
def score_norms(near: Around) -> ScoreNorms:
    return ScoreNorms.of(reading(near))


@kept
def score_slope(near: Around) -> Float[Tensor, "b h"]:
    r"""At least the norm of the linear part of the change of the scores."""
    return score_norms(near).linear()


@kept
def direct(near: Around) -> Float[Tensor, " b"]:
    r"""$\xi$, the norm of what moves with the coupling held fixed."""
    at = reading(near)
    return direct_norm(at.p, at.matrices.c, near.residual, movements(near))


@kept
def first_order(near: Around) -> Float[Tensor, " b"]:
    r"""At least $\|DF(X)\|$."""
    return jacobian_norm(reading(near), near.residual, direct(near), movements(near))


@over_ball
def ball(near: Around) -> Ball:
    return Ball.of(reading(near), near.eps)


@over_ball
def halved(near: Around) -> Float[Tensor, "b h"]:
    r"""At least $|P' - P|_F$: the slope of softmax is at most one half."""
    eps, scores = near.eps[:, None], score_norms(near)
    return (eps * score_slope(near) + scores.bend * eps**2) / 2


@over_ball
def boxed(near: Around) -> Float[Tensor, "b h"]:
    r"""At least $|P' - P|_F$: the slope of softmax on the box."""
    eps, scores, slope = near.eps[:, None], score_norms(near), ball(near).spread
    local = eps * scores.weighed(slope) + slope.amax(-1) * scores.bend * eps**2
    return torch.minimum(halved(near), local)


@over_ball
def entrywise(near: Around) -> Float[Tensor, "b h"]:
    r"""At least $|P' - P|_F$: the box itself, entry by entry."""
    return torch.minimum(boxed(near), torch.linalg.matrix_norm(ball(near).slope))


@over_ball
def capped(near: Around) -> Float[Tensor, " b"]:
    r"""At least $\|DF\|$ over the ball, using that rows of $P'$ sum to one."""
    over, scores = ball(near), score_norms(near)
    matrices, block = over.reading.matrices, over.high * over.b * over.kappa
    moved = torch.minimum(positive_norm(over.slope), halved(near) + ROUNDING) * matrices.c_norm
    matrix = positive_norm((block + torch.diag_embed(over.bent)).sum(-3))
    rows = (over.kappa.amax(-1) * over.written).amax(-1)
    schur = ((rows * block.sum(-2).amax(-1) + TINY).sqrt() + over.bent.amax(-1)).sum(-1)
    size = scores.value + matrices.c_norm * near.eps[:, None]
    by_rows = (over.spread.amax(-1) * scores.nearby(score_slope(near), near.eps) * size).sum(-1)
    added = (matrix, schur, by_rows, covariance_norm(over.reading, over.high, over.kappa, over.eps))
    return direct(near) + (moved.sum(-1) + torch.stack(added).amin(0))


def split(near: Around, coupling_moves: Float[Tensor, "b h"]) -> Float[Tensor, " b"]:
    r"""$\varepsilon\xi + \sum_h\delta_h(\|X_cC_h^T\| + \varepsilon\|C_h\|)$: values move first."""
    size = score_norms(near).value + reading(near).matrices.c_norm * near.eps[:, None]
    return near.eps * direct(near) + ((coupling_moves + ROUNDING) * size).sum(-1)


# How far the output moves.


def anywhere(attention: Attention, near: Around) -> bool:
    """Tokens that may move in every direction."""
    return without_rotary(attention, near) and near.span is None


@stated("G0", variant=Softmax, when=anywhere)
def g0(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon(|r| + \sum_h\|C\|(\sqrt n + \|A\|R^2 + \sqrt nR(\|A\|R + |v|)))$,
    $R = \max_i|x_i| + \varepsilon$.
    """
    matrices, root = reading(near).matrices, math.sqrt(near.x.shape[-2])
    radius = (torch.linalg.vector_norm(near.x, dim=-1).amax(-1) + near.eps)[..., None]
    score = matrices.a_norm * radius + torch.linalg.vector_norm(matrices.shift, dim=-1)
    per_head = matrices.c_norm * (root + matrices.a_norm * radius**2 + root * radius * score)
    return near.eps * (abs(near.residual) + per_head.sum(-1))


@stated("L1", variant=Softmax, when=anywhere)
def l1(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\xi + \sum_h\delta(\|XC^T\| + \varepsilon\|C\|)$,
    $\delta = \frac12(\varepsilon(\|XA\| + \|[\kappa_i]\|) + \varepsilon^2\|A\|)$.
    """
    matrices, tokens, radius = reading(near).matrices, near.x[:, None], near.eps[:, None]
    linear = spectral(tokens @ matrices.a) + spectral(reading(near).key)
    moved = (radius * linear + matrices.a_norm * radius**2) / 2
    size = spectral(tokens @ matrices.c.mT) + matrices.c_norm * radius
    return near.eps * direct(near) + ((moved + ROUNDING) * size).sum(-1)


@stated("L1c")
def l1c(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\xi + \sum_h\delta(\|X_cC^T\| + \varepsilon\|C\|)$ with centred tokens $X_c$,
    $\delta = \frac12(\varepsilon\Omega(1) + \varepsilon^2(\|A\| + \frac12\sqrt n\|M\|))$.
    """
    return split(near, halved(near))


@stated("L1c box")
def l1c_box(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""L1c with $\delta$ also at most $\varepsilon\Omega(\lambda) +
    \varepsilon^2\max_i\lambda_i(\|A\| + \frac12\sqrt n\|M\|)$, $\lambda_i$ the slope on the box.
    """
    return split(near, boxed(near))


@stated("L1c entrywise")
def l1c_entrywise(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""L1c box with $\delta$ also at most $|\delta P|_F$, the box entry by entry."""
    return split(near, entrywise(near))


@stated("T3", variant=Softmax)
def t3(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\|DF(X)\| + \sum_h(\lambda_0\|A\|\varepsilon^2 + E)\|X_cC^T\| +
    \delta\varepsilon\|C\|$, $E$ what the second derivative of softmax adds on the box.
    """
    over, scores, eps = ball(near), score_norms(near), near.eps[:, None]
    matrices = over.reading.matrices
    bend, turn = matrices.a_norm * eps**2, over.reach / 2
    length = eps[..., None] * scores.rows() + bend[..., None]
    curved = torch.linalg.vector_norm(turn * over.spread * length.square(), dim=-1)
    curved = torch.minimum(curved, (turn * length).amax(-1) * (boxed(near) + ROUNDING))
    here = spread(over.reading.p, over.reading.p).amax(-1)
    added = (here * bend + curved + ROUNDING) * scores.value
    added = added + (entrywise(near) + ROUNDING) * eps * matrices.c_norm
    return near.eps * first_order(near) + added.sum(-1)


@stated("L3")
def l3(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon(\xi + \sum_h\|\delta P\|\|C\| + \|\sum_h[u\hat b\hat\kappa]_{ij} +
    \mathrm{diag}_i\sum_j[u\hat b\hat y]_{ij}\|)$: each token pays with its own budget.
    """
    over = ball(near)
    moved = (positive_norm(over.slope) * over.reading.matrices.c_norm).sum(-1)
    bent = torch.diag_embed((over.high * over.b * over.y).sum(-1))
    matrix = (over.high * over.b * over.kappa + bent).sum(-3)
    return near.eps * (direct(near) + (moved + positive_norm(matrix)))


@stated("L3cap")
def l3cap(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\Lambda(\varepsilon)$: L3 where rows of $P'$ sum to one, its matrix norm also
    bounded by Schur's test, by rows of scores and by covariances.
    """
    return near.eps * capped(near)


@stated("L3cap graded")
def l3cap_graded(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\varepsilon\sum_k(s_k - s_{k-1})\Lambda(s_k\varepsilon)$, $\Lambda$ of L3cap."""
    return near.eps * weighed([capped(near.within(share)) for share in SHARES])


@stated("T3 graded")
def t3_graded(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\int_0^\varepsilon\min(\Lambda(s), \|DF(X)\| + \int_0^sH)\,ds$, $\Lambda$ of L3cap, $H$ at
    least the norm of the second derivative.
    """
    parts = [near.within(share) for share in SHARES]
    hessians = [hessian_norm(ball(part)) for part in parts]
    return graded(near.eps, first_order(near), [capped(part) for part in parts], hessians)


# Token by token, and against a direction.


@stated("Token budgets", where=NearTokens)
def token_budgets(attention: Attention, near: NearTokens) -> Budget:
    r"""$|r|I + (\sum_{hg}u_hu_g\|C_h^TC_g\|)^{1/2} + \sum_h[u\hat b\hat\kappa]_{ij} +
    \mathrm{diag}_i\mathrm{Gr}_i(\hat b\hat y)$ bounds the blocks of $DF$, $\Lambda$ of L3cap its
    norm.
    """
    over = ball(near)
    blocks = direct_blocks(over.high, over.reading.matrices.c, near.residual)
    blocks = blocks + (over.high * over.b * over.kappa).sum(-3)
    return Budget(partial(capped, near), blocks + torch.diag_embed(over.bent.sum(-2)))


@stated("Remainder", where=NearCurvature)
def curvature(attention: Attention, near: NearCurvature) -> Callable[[Tensor], Tensor]:
    r"""$-\langle g, D^2F[U, U]\rangle \le \sum_{ij}2\gamma_iu_{ij}\hat y_{ij}v_iv_j +
    2\|A\|\bar w_{ij}v_iv_j + 2\gamma_iu_{ij}\hat\kappa_{ij}v_j^2 + w_{ij}(\hat y_{ij}v_i +
    \sum_k(u\hat\kappa)_{ik}v_k + t_{ij}\hat\kappa_{ij}v_j)^2$, $v_i = |u_i|$; for L2 attention
    $+ \|M\|u_{ij}(\beta'_{ij})^+v_j^2$.
    """
    bent = Curvature.of(ball(near))
    return lambda gradient: bent.form(Directions.of(reading(near), gradient))


@stated("Bend", where=NearBend)
def bend(attention: Attention, near: NearBend) -> Float[Tensor, " b"]:
    r"""$\sum_h2\|C\|(\mathrm{row}(uy) + \mathrm{col}(u\kappa)) + 2\|A\|\mathrm{row}(ub) +
    \|M\|\mathrm{col}(ub) + (\sqrt{K_1} + \sqrt{K_2} + \sqrt{K_3})^2$, the $H$ of T3 graded.
    """
    return hessian_norm(ball(near))
