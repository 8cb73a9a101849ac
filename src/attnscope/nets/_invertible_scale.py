r"""Proved Lipschitz constants of attention on a ball as differentiable functions of the weights, in
float64.

The formulas of `bounds.on_ball` (docs/theorems.md: U1', M1', K3, S1, L2-M1, L2-global) with norms
from dense decompositions, which cannot underestimate. A training step differentiates through them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.sigmoid import Sigmoid
from attnscope.attention.softmax import Softmax
from attnscope.bounds._tied import growth
from attnscope.nets._invertible_layer import factor
from attnscope.norms import SLACK, spectral
from attnscope.validation import described

STEEP = 40.0
"""Exponent above which a mean-field bound is larger than the one with the root of n for every n
that fits in a computer.
"""


class Norms(NamedTuple):
    r"""$\|A_h\|$ (rotary heads: $s\|K\|\|Q\|$), what biases add to the gradients of a score,
    $\|V_h\|$ and $\|W_hV_h\|$.
    """

    a: Float[Tensor, " h"]
    key_shift: Float[Tensor, " h"]
    query_shift: Float[Tensor, " h"]
    value: Float[Tensor, " h"]
    written: Float[Tensor, " h"]

    @classmethod
    def of(cls, heads: Heads) -> Norms:
        turned = heads.rotary is not None
        return cls(
            a=heads.scale
            * (
                spectral(heads.key) * spectral(heads.query)
                if turned
                else spectral(heads.key.mT @ heads.query)
            ),
            key_shift=_shift(heads, heads.key, heads.query_bias),
            query_shift=_shift(heads, heads.query, heads.key_bias),
            value=spectral(heads.value),
            written=spectral(heads.values),
        )


def check_proved(attention: object, radius: float | None) -> None:
    """Refuse an attention for which no theorem here gives a Lipschitz constant on the set in
    use.
    """
    if not isinstance(attention, Attention):
        raise TypeError(
            "an invertible layer needs an attention such as Softmax(heads), got"
            f" {described(attention)}."
        )
    tied = isinstance(attention, L2) and factor(attention.heads) is not None
    start = f"no contraction is proved for {attention.name} attention"
    if not isinstance(attention, Softmax | L2 | Sigmoid):
        raise ValueError(
            f"{start}: no Lipschitz constant on a ball is known here. Use Softmax, Sigmoid or L2."
        )
    if isinstance(attention, L2 | Sigmoid) and attention.heads.positional:
        raise ValueError(
            f"{start} with rotary heads or a position bias. Use Softmax, or heads without them."
        )
    if isinstance(attention, L2) and attention.causal and not tied:
        raise ValueError(
            f"{start} with a mask unless queries and keys are tied and values factor: Q = K, V"
            " = UQ."
        )
    if radius is None and not tied:
        untied = " unless Q = K and V = UQ" if isinstance(attention, L2) else ""
        raise ValueError(
            f"{start} on the whole space, where it is not Lipschitz{untied}. Pass the radius of a"
            " ball that holds the tokens."
        )


def lipschitz(
    attention: Attention,
    reads: Float[Tensor, "h v k"] | None,
    n: int,
    radius: Float[Tensor, ""] | None,
) -> Float[Tensor, ""]:
    r"""A proved constant of $X \mapsto f(X)$ for at most n tokens of equal weight in the ball,
    anywhere if `radius` is None.

    `reads` is U of tied L2 attention, $V = UQ$. Attention and radius are in float64.
    """
    if isinstance(attention, Sigmoid):
        assert radius is not None
        return _sigmoid(attention, radius)
    if isinstance(attention, L2):
        return _l2(attention, reads, n, radius)
    assert radius is not None
    heads, norms = attention.heads, Norms.of(attention.heads)
    t = radius * (norms.a * radius + norms.key_shift)
    y = radius * (norms.a * radius + (norms.query_shift if heads.rotary is not None else 0.0))
    single = math.sqrt(n) * (1 + t) + y
    if not heads.positional:
        steep = (
            2 * (1 + 2 * t) * (2 * t).clamp(max=STEEP).exp()
            if attention.causal
            else (1 + t) * t.clamp(max=STEEP).exp()
        )
        single = torch.minimum(single, steep + y)
    return _combined(heads, norms.written * single, norms.value * single)


def displacement(attention: Attention, radius: Float[Tensor, ""]) -> Float[Tensor, ""]:
    r"""How far one token of the ball is moved at most, $\sup|f(X)_i|$: rows of a softmax sum to
    one, sigmoids lie below their largest.
    """
    heads = attention.heads
    written = spectral(heads.values)
    if not isinstance(attention, Sigmoid):
        return ((written * radius).sum() + torch.linalg.vector_norm(heads.constant)) * (1 + SLACK)
    largest = _largest_mass(attention, radius)
    bias = 0.0 if heads.output_bias is None else torch.linalg.vector_norm(heads.output_bias)
    return ((largest * (written * radius + _written_bias(heads))).sum() + bias) * (1 + SLACK)


def _shift(
    heads: Heads, matrix: Float[Tensor, "h k d"], bias: Float[Tensor, "h k"] | None
) -> Float[Tensor, " h"]:
    if bias is None:
        return torch.zeros_like(matrix[:, 0, 0])
    if heads.rotary is not None:
        return heads.scale * spectral(matrix) * torch.linalg.vector_norm(bias, dim=-1)
    return heads.scale * torch.linalg.vector_norm((matrix.mT @ bias[..., None])[..., 0], dim=-1)


def _combined(
    heads: Heads, written: Float[Tensor, " h"], concatenated: Float[Tensor, " h"]
) -> Float[Tensor, ""]:
    r"""$\min(\sum_h b_h, \|W_O\|(\sum_h c_h^2)^{1/2})$: bounds b with, c without the output
    matrices.
    """
    if heads.count == 1:
        return written.sum() * (1 + SLACK)
    output = (
        heads.count**0.5
        if heads.output is None
        else spectral(heads.output.permute(1, 0, 2).flatten(1))
    )
    return torch.minimum(written.sum(), output * torch.linalg.vector_norm(concatenated)) * (
        1 + SLACK
    )


def _l2(attention: L2, reads: Tensor | None, n: int, radius: Tensor | None) -> Float[Tensor, ""]:
    found = [] if reads is None else [_tied(attention.heads, reads, growth(n, attention.causal))]
    if radius is not None and not attention.causal:
        found += _l2_on_ball(attention, radius, optional=bool(found))
    return torch.stack(found).amin()


def _tied(heads: Heads, reads: Tensor, growth: float) -> Float[Tensor, ""]:
    through = spectral(heads.query) * growth
    written = spectral(reads) if heads.output is None else spectral(heads.output @ reads)
    return _combined(heads, written * through, spectral(reads) * through)


def _l2_on_ball(attention: L2, radius: Tensor, optional: bool) -> list[Tensor]:
    r"""L2-M1, or nothing where its exponential is beyond use and another bound is at hand."""
    heads, norms = attention.heads, Norms.of(attention.heads)
    key, query, s = spectral(heads.key), spectral(heads.query), heads.scale
    gap = torch.zeros_like(heads.query[..., 0])
    gap = gap if heads.query_bias is None else gap + heads.query_bias
    gap = gap if heads.key_bias is None else gap - heads.key_bias
    rho = (query + key) * radius + torch.linalg.vector_norm(gap, dim=-1)
    steepest = float((s * rho**2).detach().max())
    if steepest > STEEP and optional:
        return []
    if steepest > 700:
        raise ValueError(
            "no useful contraction is proved for l2 attention here: its constant on the ball of"
            f" radius {float(radius.detach()):.6g} is of order exp({steepest:.4g}). Use smaller"
            " weights or a smaller radius, or tie it: Q = K, V = UQ."
        )
    single = 2 * norms.a * radius**2 + (s * rho**2).exp() * (1 + 4 * s * key * radius * rho)
    return [_combined(heads, norms.written * single, norms.value * single)]


def _sigmoid(attention: Sigmoid, radius: Tensor) -> Float[Tensor, ""]:
    heads, norms = attention.heads, Norms.of(attention.heads)
    count = attention.tokens or 1
    shift, reach = attention.bias - math.log(count), _reach(attention, radius)
    steepest = torch.sigmoid(shift + torch.full_like(reach, -shift).clamp(-reach, reach))
    slope = count * steepest * (1 - steepest)
    size = norms.written * radius + _written_bias(heads)
    gradients = 2 * norms.a * radius + norms.query_shift + norms.key_shift
    return (slope * size * gradients + _largest_mass(attention, radius) * norms.written).sum() * (
        1 + SLACK
    )


def _largest_mass(attention: Sigmoid, radius: Tensor) -> Float[Tensor, " h"]:
    count = attention.tokens or 1
    return count * torch.sigmoid(attention.bias - math.log(count) + _reach(attention, radius))


def _reach(attention: Sigmoid, radius: Tensor) -> Float[Tensor, " h"]:
    heads = attention.heads
    pairs = ((heads.query, heads.query_bias), (heads.key, heads.key_bias))
    sizes = [
        spectral(matrix) * radius
        + (0.0 if bias is None else torch.linalg.vector_norm(bias, dim=-1))
        for matrix, bias in pairs
    ]
    return heads.scale * sizes[0] * sizes[1]


def _written_bias(heads: Heads) -> Float[Tensor, " h"]:
    if heads.value_bias is None:
        return torch.zeros_like(heads.value[:, 0, 0])
    out = (
        heads.value_bias
        if heads.output is None
        else (heads.output @ heads.value_bias[..., None])[..., 0]
    )
    return torch.linalg.vector_norm(out, dim=-1)
