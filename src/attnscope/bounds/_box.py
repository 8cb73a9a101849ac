r"""How far a softmax can move over a ball: every gap of two scores has a radius, so every probability has an interval.

For $|D|_F \le \varepsilon$ the gap $s_{ik} - s_{ij}$ changes by at most $\rho_{ijk}$, hence
$P_{ij}/\sum_kP_{ik}e^{\rho_{ijk}} \le P'_{ij} \le P_{ij}/\sum_kP_{ik}e^{-\rho_{ijk}}$.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._positive import TINY
from attnscope.bounds._reading import Reading, distances

ENTRIES = 2**18
"""Entries of the array over (i, j, k) held at once."""
LEAST = 1e-290
"""Probabilities count as at least this where they weigh an exponential that may be large."""
LONGEST = 700.0
"""exp of this is finite, and times LEAST it is above HUGE: no sum below HUGE has met the limit."""
HUGE = 1e13
"""A sum of this size counts as infinite."""


def box(reading: Reading, eps: Float[Tensor, "*eps 1 1 1"]) -> tuple[Float[Tensor, "*out h n n"], Float[Tensor, "*out h n n"]]:
    r"""$\log(l_{ij}/P_{ij})$ and $\log(u_{ij}/P_{ij})$ of the interval $[l, u]$ that holds $P'_{ij}$."""
    layer, n = reading.layer, reading.n
    gap = distances(reading.query, reading.query).square()
    bend = (layer.a_norm / math.sqrt(2) + layer.m_norm / 2)[:, None, None] * eps**2
    away = ~torch.eye(n, dtype=torch.bool, device=eps.device)
    heavy = reading.p.clamp(min=LEAST) * reading.allowed
    shape = torch.broadcast_shapes(reading.p.shape, eps.shape)
    parts = (heavy * away, reading.p * away, gap, reading.kappa.square().expand_as(reading.p), eps, bend)
    flat = [part.expand(*shape[:-2], *part.shape[-2:]).flatten(0, -3) for part in parts]
    grown, shrunk = (part.reshape(shape) for part in _sums(*flat))
    mine = _own_radius(reading, eps)
    up, down = _exp(mine), (-mine).exp()
    grown = grown + heavy.diagonal(dim1=-2, dim2=-1)[..., None] * up
    shrunk = shrunk + reading.p.diagonal(dim1=-2, dim2=-1)[..., None] * down
    grown = torch.where(away, grown, (heavy * up).sum(-1, keepdim=True))
    shrunk = torch.where(away, shrunk, (reading.p * down).sum(-1, keepdim=True))
    grown = grown.masked_fill(grown >= HUGE, math.inf)
    return -grown.log(), -(shrunk + LEAST).log()


def _own_radius(reading: Reading, eps: Float[Tensor, "*eps 1 1 1"]) -> Float[Tensor, "*out h n n"]:
    r"""$\rho_{iji} = \rho_{iij}$: the radius of the gap between the score of j and that of the token itself; zero for j = i."""
    linear = (distances(reading.query + reading.own, reading.query).square() + reading.kappa.square() + TINY).sqrt()
    bend = (reading.layer.a_norm * (1 + math.sqrt(2)) / 2 + reading.layer.m_norm / 2)[:, None, None]
    return (eps * linear + bend * eps**2) * ~torch.eye(reading.n, dtype=torch.bool, device=eps.device)


def _exp(rho: Tensor) -> Tensor:
    return rho.clamp(max=LONGEST).exp()


def _sums(
    heavy: Float[Tensor, "g n n"],
    p: Float[Tensor, "g n n"],
    gap: Float[Tensor, "g n n"],
    kappa: Float[Tensor, "g n n"],
    eps: Float[Tensor, "g 1 1"],
    bend: Float[Tensor, "g 1 1"],
) -> tuple[Float[Tensor, "g n n"], Float[Tensor, "g n n"]]:
    r"""$\sum_{k \ne i} P_{ik}e^{\pm\rho_{ijk}}$ for $i \ne j$, a few (g, i) at a time."""
    n = p.shape[-1]
    groups, rows = max(1, ENTRIES // n**3), max(1, ENTRIES // n**2)
    grown, shrunk = [], []
    for g in range(0, p.shape[0], groups):
        part = slice(g, g + groups)
        found = [
            _rows(*(one[part, i : i + rows] for one in (heavy, p, kappa)), gap[part], eps[part], bend[part]) for i in range(0, n, rows)
        ]
        grown.append(torch.cat([up for up, _ in found], dim=1))
        shrunk.append(torch.cat([down for _, down in found], dim=1))
    return torch.cat(grown), torch.cat(shrunk)


def _rows(
    heavy: Float[Tensor, "g r n"],
    p: Float[Tensor, "g r n"],
    kappa: Float[Tensor, "g r n"],
    gap: Float[Tensor, "g n n"],
    eps: Float[Tensor, "g 1 1"],
    bend: Float[Tensor, "g 1 1"],
) -> tuple[Float[Tensor, "g r n"], Float[Tensor, "g r n"]]:
    linear = (gap[:, None] + kappa[..., None, :] + kappa[..., :, None] + TINY).sqrt()
    rho = linear * eps[:, None] + bend[:, None]
    rho.diagonal(dim1=-2, dim2=-1).zero_()
    return (_exp(rho) @ heavy[..., None])[..., 0], ((-rho).exp() @ p[..., None])[..., 0]
