r"""How far a softmax can move over a ball: every gap of two scores has a radius, so every
probability has an interval.

For $|D|_F \le \varepsilon$ the gap $s_{ik} - s_{ij}$ changes by at most $\rho_{ijk}$, hence
$P_{ij}/\sum_kP_{ik}e^{\rho_{ijk}} \le P'_{ij} \le P_{ij}/\sum_kP_{ik}e^{-\rho_{ijk}}$. For three
tokens $\rho_{ijk} = \varepsilon(|A^T(x_k - x_j)|^2 + |\kappa_{ij}|^2 + |\kappa_{ik}|^2)^{1/2} +
(\|A\|/\sqrt2 + \|M\|/2)\varepsilon^2$.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds.near._scores import ScoresAt, distances
from attnscope.norms import TINY

ENTRIES = 2**15
"""Entries of the array over (i, j, k) held at once."""
GROUPS = 16
"""Into how many groups the rows of dot-product attention fall: neighbours in $|\\kappa_i|$ are
judged by the largest of them.
"""
LEAST = 1e-130
"""Probabilities count as at least this where they weigh an exponential that may be large."""
LONGEST = 350.0
"""The square of its exp is finite, and its exp times LEAST is above HUGE: no sum below HUGE has met
the limit.
"""
HUGE = 1e13
"""A sum of this size counts as infinite."""
FAINT = 1e-130
"""A sum below this counts as zero: what the limits above may add to it is not small beside it."""


def box(
    reading: ScoresAt, eps: Float[Tensor, "b 1 1 1"]
) -> tuple[Float[Tensor, "b h n n"], Float[Tensor, "b h n n"]]:
    r"""$\log(l_{ij}/P_{ij})$ and $\log(u_{ij}/P_{ij})$ of the interval $[l, u]$ that holds
    $P'_{ij}$.
    """
    away = ~torch.eye(reading.n, dtype=torch.bool, device=eps.device)
    heavy = reading.p.clamp(min=LEAST) * reading.allowed
    grown, shrunk = _between_three(reading, eps, heavy * away, reading.p * away)
    down = (-_own_radius(reading, eps).clamp(max=LONGEST)).exp()
    up = 1 / down
    grown = torch.where(
        away,
        grown + heavy.diagonal(dim1=-2, dim2=-1)[..., None] * up,
        (heavy * up).sum(-1, keepdim=True),
    )
    shrunk = torch.where(
        away,
        shrunk + reading.p.diagonal(dim1=-2, dim2=-1)[..., None] * down,
        (reading.p * down).sum(-1, keepdim=True),
    )
    faint = shrunk < FAINT
    most = -shrunk.masked_fill(faint, 1.0).log()
    return -grown.masked_fill(grown >= HUGE, math.inf).log(), most.masked_fill(faint, math.inf)


def _own_radius(reading: ScoresAt, eps: Float[Tensor, "b 1 1 1"]) -> Float[Tensor, "b h n n"]:
    r"""$\rho_{iji} = \rho_{iij}$: the radius of the gap between the score of j and that of the
    token itself; zero for j = i.
    """
    linear = (
        distances(reading.query + reading.own, reading.query).square()
        + reading.kappa.square()
        + TINY
    ).sqrt()
    bend = (reading.matrices.a_norm * (1 + math.sqrt(2)) / 2 + reading.matrices.m_norm / 2)[
        :, None, None
    ]
    eye = torch.eye(reading.n, dtype=torch.bool, device=eps.device)
    return (eps * linear + bend * eps**2).masked_fill(eye, 0.0)


def _between_three(
    reading: ScoresAt,
    eps: Float[Tensor, "b 1 1 1"],
    heavy: Float[Tensor, "b h n n"],
    p: Float[Tensor, "b h n n"],
) -> tuple[Float[Tensor, "b h n n"], Float[Tensor, "b h n n"]]:
    r"""$\sum_{k \ne i}P_{ik}e^{\pm\rho_{ijk}}$ for $i \ne j$, a few groups of rows at a time."""
    matrices, n = reading.matrices, reading.n
    kappa, together = reading.kappa.square(), max(1, n // GROUPS) if matrices.m is None else 1
    order = kappa.amax(-1).argsort(-1, descending=True)
    back = order.argsort(-1).flatten(0, 1)[..., None].expand(-1, -1, n)
    filled = order[
        ..., torch.arange(-(-n // together) * together, device=order.device).clamp(max=n - 1)
    ].flatten(0, 1)
    gap = distances(reading.query, reading.query).square()
    bend = eps**2 * (matrices.a_norm / math.sqrt(2) + matrices.m_norm / 2)[:, None, None]
    gap, bend, radius = (part.flatten(0, 1) for part in (gap, bend, eps.expand_as(bend)))
    sorted_rows = (
        _rows_at(part.flatten(0, 1), filled).unflatten(1, (-1, together))
        for part in (kappa, heavy, p)
    )
    kappa, heavy, p = sorted_rows  # (bh, groups, together, n or 1)
    some, rows = max(1, ENTRIES // (n * n * p.shape[1])), max(1, ENTRIES // n**2)
    found = []
    for g in range(0, p.shape[0], some):
        part = slice(g, g + some)
        pieces = [
            _one_part(
                kappa[part, r : r + rows],
                heavy[part, r : r + rows],
                p[part, r : r + rows],
                gap[part],
                radius[part],
                bend[part],
            )
            for r in range(0, p.shape[1], rows)
        ]
        found.append(torch.cat(pieces, dim=2))
    grown, shrunk = torch.cat(found, dim=1).flatten(2, 3)
    grown, shrunk = (part.gather(1, back).unflatten(0, order.shape[:2]) for part in (grown, shrunk))
    return grown, shrunk


def _rows_at(matrix: Float[Tensor, "g n m"], index: Int[Tensor, "g r"]) -> Float[Tensor, "g r m"]:
    return matrix.gather(1, index[..., None].expand(-1, -1, matrix.shape[-1]))


def _one_part(
    kappa: Float[Tensor, "g r t m"],
    heavy: Float[Tensor, "g r t n"],
    p: Float[Tensor, "g r t n"],
    gap: Float[Tensor, "g n n"],
    radius: Float[Tensor, "g 1 1"],
    bend: Float[Tensor, "g 1 1"],
) -> Float[Tensor, "2 g r t n"]:
    """Rows of one group share the radii of its first row, the largest."""
    reach = kappa[:, :, 0]
    square = gap[:, None] + reach[..., None, :] + reach[..., :, None]
    rho = (square + TINY).sqrt() * radius[:, None] + bend[:, None]
    rho.diagonal(dim1=-2, dim2=-1).zero_()
    down = (-rho.clamp(max=LONGEST)).exp()
    return torch.stack([heavy @ (1 / down), p @ down])
