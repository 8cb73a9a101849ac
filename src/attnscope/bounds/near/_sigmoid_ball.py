r"""Sigmoid attention at one input and over a ball around it: every score moves alone, nothing is
normalised.

$F(X)_i = rx_i + \sum_h\sum_j\varsigma\,\sigma(s_{ij})(C_hx_j + c_h)$, $\varsigma$ the mass of a
token, and $s_{ij} = \langle Ax_i + v, x_j\rangle + \langle w, x_i\rangle + c_{ij}$. Gradients of a
score: $\kappa_i = Ax_i + v$ in the key token, $\eta_j = A^Tx_j + w$ in the query token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attention.sigmoid import Sigmoid
from attnscope.measures import Particles
from attnscope.norms import spectral

STEEPEST = math.log(2 + math.sqrt(3))
r"""$\sigma''$ is largest at minus this and smallest at this."""
SIGMOID_CURVATURE = math.sqrt(3) / 18
ROUNDING = 1e-12


@final
@dataclass(frozen=True, eq=False)
class SigmoidAt:
    r"""`key` are the rows $\kappa_i$, `query` the rows $\eta_j$, `value` the rows $C_hx_j + c_h$,
    `p` is $\varsigma\sigma(s)$.
    """

    x: Float[Tensor, "b n d"]
    a: Float[Tensor, "h d d"]
    c: Float[Tensor, "h d d"]
    a_norm: Float[Tensor, " h"]
    own_norm: Float[Tensor, " h"]
    c_norm: Float[Tensor, " h"]
    scores: Float[Tensor, "b h n n"]
    p: Float[Tensor, "b h n n"]
    mass: float
    allowed: Bool[Tensor, "n n"]
    key: Float[Tensor, "b h n d"]
    query: Float[Tensor, "b h n d"]
    value: Float[Tensor, "b h n d"]

    @classmethod
    def of(cls, attention: Sigmoid, x: Float[Tensor, "b n d"]) -> SigmoidAt:
        heads, n, tokens = attention.heads, x.shape[-2], x[..., None, :, :]
        count = attention.tokens or 1
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device)
        allowed = allowed.tril() if attention.causal else allowed
        scores = attention.scores(x, Particles(x)) + (attention.bias - math.log(count))
        a, c = heads.a, heads.values
        none = torch.zeros_like(heads.key[..., 0])
        v, w = (
            heads.scale * (matrix.mT @ (none if bias is None else bias)[..., None])[..., 0]
            for matrix, bias in ((heads.key, heads.query_bias), (heads.query, heads.key_bias))
        )
        offset = heads.values.new_zeros(heads.count, heads.dim)
        if heads.value_bias is not None:
            offset = (
                heads.value_bias
                if heads.output is None
                else (heads.output @ heads.value_bias[..., None])[..., 0]
            )
        return cls(
            x=x,
            a=a,
            c=c,
            a_norm=spectral(a),
            own_norm=spectral((a + a.mT) / 2),
            c_norm=spectral(c),
            scores=scores,
            p=count / n * torch.sigmoid(scores) * allowed,
            mass=count / n,
            allowed=allowed,
            key=tokens @ a.mT + v[:, None],
            query=tokens @ a + w[:, None],
            value=tokens @ c.mT + offset[:, None],
        )


@final
@dataclass(frozen=True, eq=False)
class SigmoidBall:
    r"""`slope` bounds $|P'_{ij} - P_{ij}|$ over the ball, `steep` $\varsigma\sigma'$, `bend_low`
    and `bend_high` $\varsigma\sigma''$.

    `b`, `y`, `kappa` bound $|C x'_j + c|$, $|\eta'_j|$ and $|\kappa'_i|$.
    """

    reading: SigmoidAt
    eps: Float[Tensor, " b"]
    slope: Float[Tensor, "b h n n"]
    steep: Float[Tensor, "b h n n"]
    bend_low: Float[Tensor, "b h n n"]
    bend_high: Float[Tensor, "b h n n"]
    b: Float[Tensor, "b h n"]
    y: Float[Tensor, "b h n"]
    kappa: Float[Tensor, "b h n"]

    @classmethod
    def of(cls, reading: SigmoidAt, eps: Float[Tensor, " b"]) -> SigmoidBall:
        radius = eps[..., None, None, None]
        low, high = (reading.scores + sign * _radius(reading, radius) for sign in (-1, 1))
        mass = reading.mass * reading.allowed * (1 + ROUNDING)
        slope = torch.maximum(_difference(high, reading.scores), _difference(reading.scores, low))
        steep = torch.where((low < 0) & (high > 0), 0.25, torch.maximum(_first(low), _first(high)))
        bend_high = torch.maximum(_second(low), _second(high))
        bend_high = torch.where(
            (low < -STEEPEST) & (high > -STEEPEST), SIGMOID_CURVATURE, bend_high
        )
        bend_low = torch.minimum(_second(low), _second(high))
        bend_low = torch.where((low < STEEPEST) & (high > STEEPEST), -SIGMOID_CURVATURE, bend_low)
        length = radius[..., 0]
        sizes = [
            torch.linalg.vector_norm(rows, dim=-1)
            for rows in (reading.value, reading.query, reading.key)
        ]
        norms = [
            norm[:, None] * length for norm in (reading.c_norm, reading.a_norm, reading.a_norm)
        ]
        b, y, kappa = (size + norm for size, norm in zip(sizes, norms, strict=True))
        noise = ROUNDING * reading.mass
        return cls(
            reading,
            eps,
            slope * mass,
            steep * mass,
            bend_low * mass - noise,
            bend_high * mass + noise,
            b,
            y,
            kappa,
        )


def _radius(reading: SigmoidAt, radius: Float[Tensor, "b 1 1 1"]) -> Float[Tensor, "b h n n"]:
    r"""At least $|s'_{ij} - s_{ij}|$."""
    key, query = (
        torch.linalg.vector_norm(rows, dim=-1).square() for rows in (reading.key, reading.query)
    )
    off = (
        radius * (key[..., :, None] + query[..., None, :] + 1e-200).sqrt()
        + radius**2 * reading.a_norm[:, None, None] / 2
    )
    own = torch.linalg.vector_norm(reading.key + reading.query, dim=-1)[..., None]
    on = radius * own + radius**2 * reading.own_norm[:, None, None]
    eye = torch.eye(reading.p.shape[-1], dtype=torch.bool, device=radius.device)
    return torch.where(eye, on, off) * (1 + ROUNDING)


def _difference(high: Tensor, low: Tensor) -> Tensor:
    r"""$\sigma(h) - \sigma(l) = \sigma(h)\sigma(-l)(1 - e^{l - h})$, no digits lost."""
    return -torch.sigmoid(high) * torch.sigmoid(-low) * torch.expm1(low - high)


def _first(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _second(z: Tensor) -> Tensor:
    return -_first(z) * torch.tanh(z / 2)
