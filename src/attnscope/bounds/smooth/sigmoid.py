r"""Sigmoid attention: on a ball, and how long its field is. Nothing is normalised, so value biases
count, and no exponential appears.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.sigmoid import Sigmoid
from attnscope.bounds.head_norms import Parts, PerHead, written_bias
from attnscope.bounds.places import Flow, OnBall, Reach
from attnscope.bounds.registry import theorem
from attnscope.bounds.smooth.flow import spread
from attnscope.norms import SLACK, spectral, spectral_of_product


@theorem("S1", variant=Sigmoid, where=OnBall, source="after castin25", p=None)
def s1(attention: Sigmoid, ball: OnBall) -> Parts:
    r"""$\sigma'_*ug_1$ in space, $\sigma'_*ug_2 + \sigma_*\|C\|$ in the measure, $u = \|C\|R +
    |Wb_V|$, $g_1 = \|A\|R + s|Q^Tb_K|$, $g_2 = \|A\|R + s|K^Tb_Q|$, $\sigma_*$ and $\sigma'_*$ the
    largest value and slope over the scores that occur.
    """
    count, shift = attention.tokens or 1, _shift(attention)
    reach = _reach(attention, ball.radius)
    steepest = torch.sigmoid(shift + torch.full_like(reach, -shift).clamp(-reach, reach))
    return _parts(
        attention, ball, count * steepest * (1 - steepest), count * torch.sigmoid(shift + reach)
    )


@theorem("S1-plain", variant=Sigmoid, where=OnBall, source="S1, any scores", p=None, convex=True)
def s1_plain(attention: Sigmoid, ball: OnBall) -> Parts:
    r"""S1 with $\sigma'_* = \frac14$ and $\sigma_* = 1$: a polynomial in the radius."""
    level = torch.full_like(attention.heads.query[:, 0, 0], attention.tokens or 1)
    return _parts(attention, ball, level / 4, level)


@theorem("field size", variant=Sigmoid, where=Reach, source="castin25")
def field_size(attention: Sigmoid, reach: Reach) -> Float[Tensor, ""]:
    r"""$\sum_h\sigma_*(\|C_h\|R + |W_hb_V|) + |b_O|$."""
    heads = attention.heads
    level = (attention.tokens or 1) * torch.sigmoid(
        _shift(attention) + _reach(attention, reach.radius)
    )
    total = (level * (_written(heads) * reach.radius + written_bias(heads))).sum(-1)
    return (total + _output_bias(heads)) * (1 + SLACK)


@theorem("flow radius", variant=Sigmoid, where=Flow, source="castin25", positional=True)
def flow_radius(attention: Sigmoid, flow: Flow) -> Float[Tensor, "*times"]:
    r"""$R_0e^{ct} + b(e^{ct} - 1)/c$, $c = \varsigma\sum_h\|C_h\|$, $b = \varsigma\sum_h|W_hb_V| +
    |b_O|$, $\varsigma$ = 1 or the number of tokens.
    """
    heads, count = attention.heads, attention.tokens or 1
    push = count * written_bias(heads).sum() + _output_bias(heads)
    return spread(count * _written(heads).sum(), push, flow)


def _parts(
    attention: Sigmoid,
    ball: OnBall,
    slope: Float[Tensor, "*at h"],
    level: Float[Tensor, "*at h"],
) -> Parts:
    heads, slopes = attention.heads, ball.slopes(attention)
    g1 = slopes.a * ball.radius + slopes.query_shift
    g2 = slopes.a * ball.radius + slopes.key_shift
    read = spectral(heads.value)
    bias = torch.zeros_like(read)
    bias = bias if heads.value_bias is None else torch.linalg.vector_norm(heads.value_bias, dim=-1)
    norms = ((_written(heads), written_bias(heads)), (read, bias))
    sizes = [(norm, norm * ball.radius + own) for norm, own in norms]
    return Parts(
        PerHead(*(slope * size * g1 for _, size in sizes)),
        PerHead(*(slope * size * g2 + level * norm for norm, size in sizes)),
    )


def _shift(attention: Sigmoid) -> float:
    return attention.bias - math.log(attention.tokens or 1)


def _reach(attention: Sigmoid, radius: float | Tensor) -> Float[Tensor, "*at h"]:
    """The largest score without the bias of the sigmoid."""
    heads = attention.heads
    pairs = ((heads.query, heads.query_bias), (heads.key, heads.key_bias))
    query, key = (
        spectral(matrix) * radius
        + (0.0 if bias is None else torch.linalg.vector_norm(bias, dim=-1))
        for matrix, bias in pairs
    )
    return heads.scale * query * key


def _written(heads: Heads) -> Float[Tensor, " h"]:
    return (
        spectral(heads.value)
        if heads.output is None
        else spectral_of_product(heads.output, heads.value)
    )


def _output_bias(heads: Heads) -> Float[Tensor, ""]:
    if heads.output_bias is None:
        return heads.query.new_zeros(())
    return torch.linalg.vector_norm(heads.output_bias)
