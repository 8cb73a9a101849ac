r"""The second derivative of softmax-like attention over a ball, in norm and against fixed
directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near._ball import ROUNDING, Ball
from attnscope.bounds.near._scores import ScoresAt
from attnscope.norms import TINY, largest_root, positive_norm

ENTRIES = 2**15
"""Entries of one array over (direction, input, head, i, j) held at once."""


def hessian_norm(ball: Ball) -> Float[Tensor, " b"]:
    r"""At least $|D^2F(X')[U, U]|_F$ over the ball and $|U|_F \le 1$.

    $\sum_h2\|C\|(\mathrm{row}(uy) + \mathrm{col}(u\kappa)) + 2\|A\|\mathrm{row}(ub) +
    \|M\|\mathrm{col}(ub) + (\sqrt{K_1} + \sqrt{K_2} + \sqrt{K_3})^2$ with the upper bounds u, b, y,
    $\kappa$ of the ball; row and col are the largest norms of rows and columns.
    """
    matrices, high = ball.reading.matrices, ball.high
    written, keys = high * ball.b, high * ball.kappa
    left = ball.left * ball.kappa
    first = (written * ball.y.square()).sum(-1).amax(-1)
    second = _columns(written * left.square())
    third = (
        torch.minimum(written.sum(-1), ball.written) * torch.linalg.vector_norm(keys, dim=-1)
    ).amax(-1) * positive_norm(keys)
    squared = ((first + TINY).sqrt() + (second + TINY).sqrt() + (third + TINY).sqrt()).square()
    value = 2 * matrices.c_norm * (_columns((high * ball.y).mT) + _columns(high * ball.balance))
    score = 2 * matrices.a_norm * _columns(written.mT) + matrices.m_norm * _columns(written)
    return (value + score + squared).sum(-1)


def _columns(matrix: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h"]:
    return torch.linalg.vector_norm(matrix, dim=-2).amax(-1)


@final
@dataclass(frozen=True, eq=False)
class Directions:
    r"""Directions g as the layer sees them: `size` is $|C^Tg_i|$, `beta` is $\langle C(x_j - m_i),
    g_i\rangle$.
    """

    gradient: Float[Tensor, "c b 1 n d"]
    size: Float[Tensor, "c b h n 1"]
    beta: Float[Tensor, "c b h n n"]

    @classmethod
    def of(cls, reading: ScoresAt, gradient: Float[Tensor, "c b n d"]) -> Directions:
        g = gradient[..., None, :, :]
        size = torch.linalg.vector_norm(g @ reading.matrices.c, dim=-1, keepdim=True)
        return cls(
            g, size, g @ reading.value.mT - (g * (reading.p @ reading.value)).sum(-1, keepdim=True)
        )


@final
@dataclass(frozen=True, eq=False)
class Curvature:
    r"""Bounds $-\langle g, D^2F(X')[U, U]\rangle$ over the ball and $|U|_F \le 1$, for any
    directions g: what does not depend on g.

    A quadratic form in the lengths $|u_i|$ bounds it; the largest root of its non-negative matrix
    bounds the form.
    """

    ball: Ball
    gained: Float[Tensor, "b h n d"]
    r"""$\sum_j r_{ij}C(x_j - m_i)$, r the most that a probability can gain; `lost` is the same for
    what it can lose.
    """
    lost: Float[Tensor, "b h n d"]
    pulled: Float[Tensor, "b h n n"]
    r"""$u_{ij}y_{ij}$; `keys` is $u_{ij}\kappa_{ij}$, `left` what is left of $\kappa_{ij}$ beside
    it.
    """
    keys: Float[Tensor, "b h n n"]
    left: Float[Tensor, "b h n n"]

    @classmethod
    def of(cls, ball: Ball) -> Curvature:
        value = ball.reading.value
        centre = ball.reading.p @ value
        gained, lost = (
            part @ value - part.sum(-1, keepdim=True) * centre for part in (ball.rise, ball.fall)
        )
        return cls(
            ball, gained, lost, ball.high * ball.y, ball.high * ball.kappa, ball.left * ball.kappa
        )

    def __call__(self, directions: Directions) -> Float[Tensor, "c b"]:
        return largest_root(self.form(directions))

    def form(self, directions: Directions) -> Float[Tensor, "c b n n"]:
        """The matrix of the form, a few directions at a time."""
        some = max(1, ENTRIES // self.keys.numel())
        parts = (
            part.split(some) for part in (directions.gradient, directions.size, directions.beta)
        )
        return torch.cat([self._form(Directions(*part)) for part in zip(*parts, strict=True)])

    def _form(self, directions: Directions) -> Float[Tensor, "c b n n"]:
        ball, matrices, high, size = (
            self.ball,
            self.ball.reading.matrices,
            self.ball.high,
            directions.size,
        )
        lowest, highest = self._along(directions)
        drop, rise = (-lowest).clamp(min=0), highest.clamp(min=0)
        weight = drop * high
        tilted, stretched = weight * ball.y, weight * self.left
        form = 2 * size * self.pulled + 2 * matrices.a_norm[:, None, None] * (
            torch.maximum(drop, rise) * high
        )
        form = form + 2 * tilted.sum(-1, keepdim=True) * self.keys + 2 * tilted * self.left
        form = form + self.keys.mT @ (weight.sum(-1, keepdim=True) * self.keys + 2 * stretched)
        diagonal = (2 * size * (high * ball.balance) + stretched * self.left).sum(-2) + (
            tilted * ball.y
        ).sum(-1)
        if matrices.m is not None:
            diagonal = diagonal + matrices.m_norm[:, None] * (high * rise).sum(-2)
        form = (form + torch.diag_embed(diagonal)).sum(-3)
        return (form + form.mT) / 2

    def _along(
        self, directions: Directions
    ) -> tuple[Float[Tensor, "c b h n n"], Float[Tensor, "c b h n n"]]:
        r"""An interval that holds $\langle C(x'_j - m'_i), g_i\rangle$ over the ball.

        It is $\beta_{ij} - \sum_k(P'_{ik} - P_{ik})\beta_{ik}$ up to $|e_j -
        P'_i|\varepsilon|C^Tg_i|$, and $\sum_k(P'_{ik} - P_{ik})\beta_{ik} \le
        \sum_kr_{ik}\beta_{ik}^+ + f_{ik}\beta_{ik}^-$, r and f the most that it gains and loses.
        """
        ball, g, size, beta = self.ball, directions.gradient, directions.size, directions.beta
        swing = ((ball.rise + ball.fall) * beta.clamp(min=0)).sum(-1, keepdim=True)
        noise = (
            ROUNDING
            * torch.linalg.vector_norm(ball.reading.x, dim=-1).amax(-1)[:, None, None, None]
        )
        moved = swing + (ball.reach[..., None] * ball.eps[:, None, None, None] + noise) * size
        return beta - (moved - (g * self.lost).sum(-1, keepdim=True)), beta + (
            moved - (g * self.gained).sum(-1, keepdim=True)
        )
