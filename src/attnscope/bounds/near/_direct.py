r"""The norm $\xi$ of $D \mapsto rD + \sum_hP_hDC_h^T$, and of the whole Jacobian: exact when small,
else from n x n and d x d matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near._covariance import covariance_norm
from attnscope.bounds.near._scores import ScoresAt
from attnscope.norms import SLACK, TINY, positive_norm, spectral

SMALL = 512
"""Largest nd for which nd x nd matrices are built, one input of a stack at a time."""


def is_small(x: Float[Tensor, "b n d"]) -> bool:
    return x.shape[-2] * x.shape[-1] <= SMALL


def direct_norm(
    p: Float[Tensor, "b h n n"],
    c: Float[Tensor, "h d k"],
    residual: float,
    span: Float[Tensor, "d k"] | None = None,
) -> Float[Tensor, " b"]:
    r"""At least $\|rI + \sum_hP_h \otimes C_h\|$ for non-negative $P_h$; on a span B of movements
    $C_h$ is $C_hB$ and $I$ is $I \otimes B$.
    """
    if p.shape[-1] * c.shape[-2] <= SMALL:
        kept = residual * identity(c, span)
        flat = [spectral(dense_direct(one, c, kept)) for one in p.reshape(-1, *p.shape[-3:])]
        return torch.stack(flat).reshape(p.shape[:-3])
    norm = spectral(c)
    found = [positive_norm(direct_blocks(p, c, residual))]
    found += [
        _split(p, c, norm, residual),
        _split(p.mT, c.mT, norm, residual),
        _uniform(p, c, norm, residual, span),
    ]
    return torch.stack(torch.broadcast_tensors(*found)).amin(0)


def identity(c: Float[Tensor, "h d k"], span: Float[Tensor, "d k"] | None) -> Float[Tensor, "d k"]:
    return torch.eye(c.shape[-1], dtype=c.dtype, device=c.device) if span is None else span


def direct_blocks(
    p: Float[Tensor, "b h n n"], c: Float[Tensor, "h d k"], residual: float
) -> Float[Tensor, "b n n"]:
    r"""At least the norms of the blocks: $\|\sum_hp_hC_h\|^2 \le \sum_{hg}p_hp_g\|C_h^TC_g\|$ or
    with $C_hC_g^T$; $|r|$ on the diagonal.
    """
    eye = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    either = [spectral(left[:, None] @ right[None]) for left, right in ((c.mT, c), (c, c.mT))]
    mixed = [
        ((torch.einsum("bhij,hg->bgij", p, cross) * p).sum(1) + TINY).sqrt() for cross in either
    ]
    return torch.minimum(*mixed) * (1 + SLACK) + abs(residual) * eye


def _split(p: Tensor, c: Tensor, norm: Float[Tensor, " h"], residual: float) -> Float[Tensor, " b"]:
    r"""$\||r|I + \sum_h\|C_h\|P_h^TP_h\|^{1/2}\,\||r|I + \sum_h\|C_h\|^{-1}C_hC_h^T\|^{1/2}$, heads
    that write nothing left out.
    """
    alive = norm > 0
    inverse = torch.where(alive, 1 / norm.where(alive, torch.ones_like(norm)), 0.0)[:, None, None]
    eye_n, eye_d = (
        abs(residual) * torch.eye(size, dtype=p.dtype, device=p.device)
        for size in (p.shape[-1], c.shape[-2])
    )
    left = positive_norm(eye_n + (norm[:, None, None] * (p.mT @ p)).sum(-3))
    right = spectral(eye_d + ((inverse * c) @ c.mT).sum(0))
    return left.sqrt() * right.sqrt()  # factor by factor: products of small numbers would vanish


def _uniform(
    p: Tensor,
    c: Tensor,
    norm: Float[Tensor, " h"],
    residual: float,
    span: Float[Tensor, "d k"] | None,
) -> Float[Tensor, " b"]:
    r"""$\max(|r|, \|rI + n\sum_h\bar p_hC_h\|) + \sum_h\|P_h - \bar p_h11^T\|\|C_h\|$: the norm is
    exact for a constant coupling.
    """
    mean = p.mean((-2, -1))
    centre = spectral(
        residual * identity(c, span) + p.shape[-1] * torch.einsum("...h,hab->...ab", mean, c)
    ).clamp(min=abs(residual))
    return centre + (spectral(p - mean[..., None, None]) * norm).sum(-1)


def dense_direct(
    p: Float[Tensor, "h n n"], c: Float[Tensor, "h d k"], kept: Float[Tensor, "d k"]
) -> Float[Tensor, "nd nk"]:
    n = p.shape[-1]
    eye = torch.eye(n, dtype=p.dtype, device=p.device)
    blocks = torch.einsum("hij,hab->iajb", p, c) + torch.einsum("ij,ab->iajb", eye, kept)
    return blocks.reshape(n * c.shape[-2], n * c.shape[-1])


def jacobian_norm(
    reading: ScoresAt,
    residual: float,
    xi: Float[Tensor, " b"],
    span: Float[Tensor, "d k"] | None = None,
) -> Float[Tensor, " b"]:
    r"""At least $\|DF(X)\|$: exact when small, else $\xi + \|N\|$ or $\||r|I + \sum_h\|C_h\|P_h +
    N\|$,

    $N = \sum_h[Pb|\kappa|]_{ij} + \mathrm{diag}_i\sum_j[Pby]_{ij}$.
    """
    matrices, p = reading.matrices, reading.p
    if is_small(reading.x):
        return torch.stack([spectral(one) for one in jacobians(reading, residual, span)])
    bent = (p * reading.b * reading.y).sum(-1)
    moved = (p * reading.b * reading.kappa + torch.diag_embed(bent)).sum(-3)
    budget = direct_blocks(p, matrices.c, residual)
    added = torch.minimum(
        positive_norm(moved), covariance_norm(reading, p, reading.kappa, torch.zeros_like(xi))
    )
    return torch.minimum(xi + added, positive_norm(budget + moved))


def jacobians(
    reading: ScoresAt, residual: float, span: Float[Tensor, "d k"] | None
) -> Iterator[Float[Tensor, "nd nk"]]:
    """The Jacobian at each input, dense, one after the other."""
    kept = residual * identity(reading.matrices.c, span)
    parts = (reading.p, reading.value, reading.query, reading.key, reading.x)
    for one in zip(*parts, strict=True):
        yield _jacobian(reading, kept, *one)


def _jacobian(
    reading: ScoresAt,
    kept: Float[Tensor, "d k"],
    p: Tensor,
    value: Tensor,
    query: Tensor,
    key: Tensor,
    x: Tensor,
) -> Float[Tensor, "nd nk"]:
    deviation = p[..., None] * (value[:, None] - (p @ value)[:, :, None])  # (h, i, j, d)
    kappa = (
        key[:, :, None]
        if reading.matrices.m is None
        else key[:, :, None] - (x @ reading.matrices.m)[:, None]
    )
    blocks = torch.einsum(
        "hija,hijb->iajb", deviation, kappa.expand(*deviation.shape[:3], kappa.shape[-1])
    )
    own = torch.einsum("hija,hjb->iab", deviation, query)
    direct = dense_direct(p, reading.matrices.c, kept)
    eye = torch.eye(len(x), dtype=p.dtype, device=p.device)
    blocks = blocks + torch.einsum("iab,ij->iajb", own, eye)
    return blocks.reshape(direct.shape) + direct
