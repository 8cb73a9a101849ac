"""Attention whose input is known to first order, and what it really leaves beyond second order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jvp

from attnscope import Heads, Particles, Softmax
from attnscope.bounds.near.along import NearTangent
from derivatives import bend

N, D, SAMPLES = 3, 3, 64


def random_tangent(seed: int) -> NearTangent:
    """Two heads with every bias; movements in any direction."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    heads = Heads(
        normal(2, 2, D), normal(2, 2, D), normal(2, 2, D), normal(2, D, 2),
        query_bias=normal(2, 2), position_bias=normal(2, N, N),
    )  # fmt: skip
    rest = (0.0, 0.02, 0.2)[seed % 3] * torch.rand(N, generator=g, dtype=torch.float64)
    return NearTangent(Softmax(heads), normal(N, D), normal(4, N, D) / 3, 0.2, rest)


def left(place: NearTangent, along: int | None = None) -> Tensor:
    r"""$f(x + \Delta) - f(x) - Df\Delta - \frac12D^2f[J\delta, J\delta]$ at random movements;
    with `along` E keeps to one coordinate.
    """
    g = torch.Generator().manual_seed(0)
    delta = torch.randn(SAMPLES, len(place.jacobian), generator=g, dtype=torch.float64)
    delta = place.eps * delta / torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    beside = torch.randn(SAMPLES, N, D, generator=g, dtype=torch.float64)
    if along is not None:
        beside = beside * torch.eye(D, dtype=torch.float64)[along]
    beside = beside / torch.linalg.vector_norm(beside, dim=-1, keepdim=True)
    first = torch.einsum("sp,pnd->snd", delta, place.jacobian)
    moved = first + beside * place.rest[:, None]
    x = place.x.expand(SAMPLES, N, D).clone()

    def f(tokens: Tensor) -> Tensor:
        return place.attention.dense(tokens, Particles(x).at(tokens))

    slope = jvp(f, (x,), (moved,))[1]
    return f(x + moved) - f(x) - slope - bend(f, x, first).detach() / 2
