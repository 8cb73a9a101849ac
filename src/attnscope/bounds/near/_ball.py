r"""What a softmax-like layer can become when its input moves by at most $\varepsilon$: the
quantities that L3 and the remainder share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near._box import LEAST, box
from attnscope.bounds.near._scores import ScoresAt, distances
from attnscope.bounds.near._sums import falling, fullest, others
from attnscope.norms import TINY

ROUNDING = 1e-12
"""Relative slack of every probability, far above its rounding; also the absolute slack of a row."""


@final
@dataclass(frozen=True, eq=False)
class Ball:
    r"""Upper bounds over all $X'$ with $|X' - X|_F \le \varepsilon$, axes (stack, head, query i,
    key j).

    `high`, `low` hold $P'_{ij}$; `rise` and `fall` are the most that it can gain and lose; `b`,
    `y`, `kappa` bound $|C(x'_j - m'_i)|$, $|A^T(x'_j - m'_i)|$ and $|\kappa'_{ij}|$; `written` is
    the largest mean of b and `bent` of $by$ under a row of $P'$; `spread` bounds
    $\|\mathrm{diag}P'_i - P'_iP_i'^T\|$.
    """

    reading: ScoresAt
    eps: Float[Tensor, " b"]
    low: Float[Tensor, "b h n n"]
    high: Float[Tensor, "b h n n"]
    rise: Float[Tensor, "b h n n"]
    fall: Float[Tensor, "b h n n"]
    reach: Float[Tensor, "b h n"]
    r"""$\max_j|e_j - P'_i| \le \sqrt2$."""
    b: Float[Tensor, "b h n n"]
    y: Float[Tensor, "b h n n"]
    kappa: Float[Tensor, "b h n m"]
    written: Float[Tensor, "b h n"]
    bent: Float[Tensor, "b h n"]
    spread: Float[Tensor, "b h n"]

    @classmethod
    def of(cls, reading: ScoresAt, eps: Float[Tensor, " b"]) -> Ball:
        radius = eps[..., None, None, None]
        low, high, rise, fall = probabilities(reading, radius)
        matrices, slope = reading.matrices, torch.maximum(rise, fall)
        reach = (1 + torch.minimum(high.amax(-1), high.square().sum(-1))).sqrt()
        written, read = (
            fullest(reading.b, reading.b_order, low, high),
            fullest(reading.y, reading.y_order, low, high),
        )
        shift_b = (
            torch.minimum((slope * reading.b).sum(-1), written)
            + reach * matrices.c_norm[:, None] * radius[..., 0]
        )
        shift_y = (
            torch.minimum((slope * reading.y).sum(-1), read)
            + reach * matrices.a_norm[:, None] * radius[..., 0]
        )
        b, y = reading.b + shift_b[..., None], reading.y + shift_y[..., None]
        return cls(
            reading=reading,
            eps=eps,
            low=low,
            high=high,
            rise=rise,
            fall=fall,
            reach=reach,
            b=b,
            y=y,
            kappa=_kappa(reading, radius),
            written=written + shift_b,
            bent=fullest(b * y, falling(b * y), low, high),
            spread=spread(low, high),
        )

    @property
    def slope(self) -> Float[Tensor, "b h n n"]:
        r"""At least $|P'_{ij} - P_{ij}|$."""
        return torch.maximum(self.rise, self.fall)

    @property
    def left(self) -> Float[Tensor, "b h n n"]:
        r"""At least $1 - P'_{ij} - u_{ij}$, and 0: $|u_j - \sum_kP'_{ik}u_k| \le \sum_ku_{ik}|u_k|
        + left_{ij}|u_j|$.
        """
        return (1 - self.low - self.high).clamp(min=0)

    @property
    def balance(self) -> Float[Tensor, "b h n m"]:
        r"""$\frac12(\kappa_{ij}^2/\tau_i + \tau_i)$, $\tau_i = \max_j\kappa_{ij}$: for weights $p$
        and lengths $v$, $(\sum_jp_j\kappa_{ij}^2v_j^2\,\sum_jp_jv_j^2)^{1/2} \le
        \sum_jp_j\,$balance$_{ij}v_j^2$.
        """
        if self.reading.matrices.m is None:
            return self.kappa
        top = self.kappa.amax(-1, keepdim=True)
        return (self.kappa * (self.kappa / (top + TINY)) + top) / 2


def probabilities(
    reading: ScoresAt, radius: Float[Tensor, "b 1 1 1"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Interval of $P'_{ij}$ and the most that it can gain and lose: the box, and Jensen's $P'_{ij}
    \le P_{ij}e^{\rho_{ij}}$.

    Never $P e^{\rho}$ with $\rho$ cut: the exponent is $\min(\rho, -\log P)$, which cuts the
    product at one.
    """
    least, most = box(reading, radius)
    room = (-reading.log_p).masked_fill(~reading.allowed, 0.0)
    grow = torch.minimum(torch.minimum(_jensen(reading, radius), most), room)
    p, log_p = reading.p, reading.log_p.masked_fill(~reading.allowed, 0.0)
    counted = p > LEAST
    high = (log_p + grow).exp().clamp(max=1) * reading.allowed * (1 + ROUNDING)
    rise = torch.where(counted, p * grow.masked_fill(~counted, 0.0).expm1(), high) * (1 + ROUNDING)
    low = p * least.exp() * (1 - ROUNDING)
    fall = -p * least.expm1() * (1 + ROUNDING)
    return low, high, rise + ROUNDING * p, fall + ROUNDING * p


def _jensen(reading: ScoresAt, radius: Float[Tensor, "b 1 1 1"]) -> Float[Tensor, "b h n n"]:
    r"""At least $t_{ij} - \sum_kP_{ik}t_{ik}$, $t$ the change of the scores."""
    p, matrices = reading.p, reading.matrices
    eye = torch.eye(reading.n, dtype=torch.bool, device=p.device)
    rest = others(p)
    own_p, own_rest = (part.diagonal(dim1=-2, dim2=-1)[..., None] for part in (p, rest))
    mean = p @ reading.query
    off = distances(mean + own_p * reading.own, reading.query)
    on = torch.linalg.vector_norm(reading.query - mean + own_rest * reading.own, dim=-1)[..., None]
    weighed = (p * reading.kappa).square().masked_fill(eye, 0.0)
    keys = torch.where(
        eye, weighed.sum(-1, keepdim=True), (rest * reading.kappa).square() + others(weighed)
    )
    linear = (torch.where(eye, on, off).square() + keys + TINY).sqrt()
    turn = torch.where(eye, own_rest, own_p) + (rest.square() + others(p.square()) + TINY).sqrt()
    bend = matrices.a_norm[:, None, None] * turn + matrices.m_norm[:, None, None] * p.amax(
        -1, keepdim=True
    )
    return radius * linear + radius**2 * bend / 2


def _kappa(reading: ScoresAt, radius: Float[Tensor, "b 1 1 1"]) -> Float[Tensor, "b h n m"]:
    other, same = (norm[:, None, None] for norm in reading.matrices.key_norms)
    if reading.matrices.m is None:
        return reading.kappa + radius * other
    eye = torch.eye(reading.n, dtype=torch.bool, device=radius.device)
    return reading.kappa + radius * torch.where(eye, same, other)


def spread(low: Float[Tensor, "b h n n"], high: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h n"]:
    r"""At least $\lambda_{max}(\mathrm{diag}\,p - pp^T)$ for every row $p$ with $l \le p \le u$.

    $\lambda \le p_1(1 - p_1 + p_2)$ and $\le 2p_1(1 - p_1)$, $p_1 \ge p_2$ the largest: the worst
    over the entries that can be $p_1$.
    """
    top = high.topk(min(2, high.shape[-1]), dim=-1).values
    second = torch.where(high >= top[..., :1], top[..., -1:], top[..., :1])
    second = second if high.shape[-1] > 1 else torch.zeros_like(high)
    away = others(high)
    away = torch.where(low < 1 - 1e-3, torch.minimum(away, 1 - low), away) * (1 + ROUNDING)
    twice = torch.where(
        high < 0.5, 2 * high * (1 - high), torch.where(low > 0.5, 2 * high.clamp(max=1) * away, 0.5)
    ).clamp(max=0.5)
    peak = (1 + second) / 2
    pair = torch.where(
        high < peak,
        high * (1 - high + second),
        torch.where(low > peak, low * (away + second), peak.square()),
    )
    best = torch.minimum(torch.minimum(high, twice), pair)
    return (
        best.masked_fill(high < low.amax(-1, keepdim=True), 0.0).amax(-1) * (1 + ROUNDING)
        + ROUNDING
    )
