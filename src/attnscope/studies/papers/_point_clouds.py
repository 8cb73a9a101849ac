r"""Sets of points in the plane, and a normalising flow of invertible attention on them.

A set is n points around two places of its own: one point alone is normal, but points know of each
other. The flow maps a set to noise by blocks of one layer of tied L2 attention, a bijection of the
whole space, and one affine map of the plane. Its density is exact and does not depend on the order
of the points: $\log p(x) = \log N(z; 0, I) + \sum \log\det$.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.attention.l2 import L2
from attnscope.nets.invertible import Invertible

SPREAD = 0.15


def clouds(count: int, n: int, generator: torch.Generator) -> Float[Tensor, "count n 2"]:
    """Sets of n points, each near one of two places with a spread of 0.15; the places are standard
    normal.
    """
    places = torch.randn(count, 2, 2, dtype=torch.float64, generator=generator)
    which = torch.randint(0, 2, (count, n, 1), generator=generator)
    centre = torch.where(which == 0, places[:, :1], places[:, 1:])
    return centre + SPREAD * torch.randn(count, n, 2, dtype=torch.float64, generator=generator)


class Flow(nn.Module):
    """Blocks of one invertible layer of tied L2 attention and one affine map of the plane."""

    def __init__(self, blocks: int, n: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Invertible(_attention(heads, generator), n) for _ in range(blocks)
        )
        self.matrices = nn.Parameter(torch.eye(2, dtype=torch.float64).repeat(blocks, 1, 1))
        self.shifts = nn.Parameter(torch.zeros(blocks, 2, dtype=torch.float64))

    def log_density(self, x: Float[Tensor, "count n 2"]) -> Float[Tensor, " count"]:
        """Per set, in nats."""
        n, total = x.shape[-2], torch.zeros(len(x), dtype=x.dtype)
        for layer, matrix, shift in zip(self.layers, self.matrices, self.shifts, strict=True):
            assert isinstance(layer, Invertible)
            moved = layer.log_determinant(x)
            total = total + moved.value + n * torch.linalg.slogdet(matrix).logabsdet
            x = moved.y @ matrix.mT + shift
        return total - x.square().sum((-2, -1)) / 2 - n * math.log(2 * math.pi)

    @torch.no_grad()
    def sample(self, count: int, n: int, generator: torch.Generator) -> Float[Tensor, "count n 2"]:
        """Sets drawn from the density: noise through the inverse."""
        x = torch.randn(count, n, 2, dtype=torch.float64, generator=generator)
        for layer, matrix, shift in reversed(
            list(zip(self.layers, self.matrices, self.shifts, strict=True))
        ):
            assert isinstance(layer, Invertible)
            x = layer.inverse(torch.linalg.solve(matrix, (x - shift).mT).mT).x
        return x


def _attention(heads: int, generator: torch.Generator) -> L2:
    query, reads = (
        torch.randn(heads, 2, 2, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    return L2(Heads(query, query, reads @ query))


def law_log_density(x: Float[Tensor, "count n 2"]) -> Float[Tensor, " count"]:
    r"""The density of the sets themselves: a sum over who belongs to which place, both places
    integrated out.

    m points around a place have covariance $s^2I + 11^T$ in each coordinate.
    """
    n = x.shape[-2]
    chosen = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=x.dtype)] * n).reshape(-1, n)
    total = torch.zeros(len(x), len(chosen), dtype=x.dtype)
    for member in (chosen, 1 - chosen):
        m, variance = member.sum(-1), SPREAD**2
        square = x.square().sum(-1) @ member.mT / variance
        shared = torch.einsum("cnd,an->cad", x, member).square().sum(-1) / (
            variance * (variance + m)
        )
        volume = m * math.log(2 * math.pi * variance) + torch.log1p(m / variance)
        total = total - volume - (square - shared) / 2
    return total.logsumexp(-1) - n * math.log(2)


def gaussian_log_density(
    fitted: Float[Tensor, "many m"], x: Float[Tensor, "count m"]
) -> Float[Tensor, " count"]:
    """Of the Gaussian with the mean and covariance of other sets."""
    law = torch.distributions.MultivariateNormal(fitted.mean(0), torch.cov(fitted.mT))
    return law.log_prob(x)
