r"""How far flows can spread: the support's radius, and the distance between two flows, with the
theorems that bound them [castin25].

Proved on compact supports (proofs in docs): $R(t) \le R_0 e^{ct} + |b|(e^{ct} - 1)/c$ with $c =
\sum_h |C_h|$, and $W_p(\mu_t, \nu_t) \le \exp(\int_0^t L(R(s))\,ds)\, W_p(\mu_0, \nu_0)$ with $L$
the Lipschitz constant of the velocity, in space plus in measure.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from attnscope.attention import Attention
from attnscope.attention.exponential import Exponential
from attnscope.attention.l2 import L2
from attnscope.attention.linear import Linear
from attnscope.attention.sigmoid import Sigmoid
from attnscope.attention.softmax import Softmax
from attnscope.bounds import Bound
from attnscope.flows.trajectory import Trajectory
from attnscope.measures import Particles
from attnscope.transport import conditional_wasserstein, wasserstein
from attnscope.validation import check_positive

PANELS = 200


class VelocityLipschitz(NamedTuple):
    r"""Lipschitz constants of $(x, \mu) \mapsto \Gamma_\mu(x)$ on a ball, $\mu$ measured in $W_1$.
    Proved upper bounds.
    """

    space: float
    measure: float


def radius_bound(attention: Attention, radius: float, time: float) -> Bound:
    """A proved upper bound on the support's radius after `time`, from a support in the ball of this
    radius.
    """
    if isinstance(attention, Exponential | Linear) or (
        isinstance(attention, Sigmoid) and attention.tokens is not None
    ):
        raise ValueError(
            f"the support of a {attention.name} flow has no such bound: one token can blow up in"
            " finite time."
        )
    check_positive("radius", radius)
    heads = attention.heads
    rate = float(torch.linalg.matrix_norm(heads.values.to(torch.float64), 2).sum())
    push = (
        0.0
        if heads.output_bias is None
        else float(torch.linalg.vector_norm(heads.output_bias.to(torch.float64)))
    )
    if heads.value_bias is not None:
        written = (
            heads.value_bias
            if heads.output is None
            else (heads.output @ heads.value_bias[..., None])[..., 0]
        )
        push += float(torch.linalg.vector_norm(written.to(torch.float64), dim=-1).sum())
    value = radius * math.exp(rate * time) + (
        push * time if rate == 0 else push * math.expm1(rate * time) / rate
    )
    return Bound(
        value,
        "upper",
        "proved",
        "flow radius",
        "castin25",
        f"support in the ball of radius {radius:.6g} at time 0",
    )


def velocity_lipschitz(attention: Attention, radius: float) -> VelocityLipschitz:
    """Lipschitz constants of the velocity on the ball of this radius: softmax, L2 and mean-form
    sigmoid heads without biases.
    """
    check_positive("radius", radius)
    heads = attention.heads
    if (
        any(bias is not None for bias in (heads.query_bias, heads.key_bias, heads.value_bias))
        or heads.positional
    ):
        raise ValueError("these constants are proved for heads without biases and positions.")
    v, a, q, k = (
        torch.linalg.matrix_norm(m.to(torch.float64), 2).cpu().numpy()
        for m in (heads.values, heads.a, heads.query, heads.key)
    )
    square = radius**2
    with np.errstate(over="ignore"):
        if isinstance(attention, Softmax):
            space, measure = v * a * square, v * (1 + 2 * a * square) * np.exp(2 * a * square)
        elif isinstance(attention, L2):
            reach = heads.scale * (q + k) ** 2 * square
            space, measure = (
                2 * v * a * square,
                v * np.exp(reach) * (1 + 4 * heads.scale * k * (q + k) * square),
            )
        elif isinstance(attention, Sigmoid) and attention.tokens is None:
            space, measure = v * a * square / 4, v * (1 + a * square / 4)
        else:
            raise ValueError(
                f"no Lipschitz constant of the velocity is proved for {attention.name} attention"
                " here."
            )
    return VelocityLipschitz(float(space.sum()), float(measure.sum()))


def stability_bound(attention: Attention, radius: float, time: float, p: float = 2) -> Bound:
    r"""A proved upper bound on $W_p(\mu_t, \nu_t) / W_p(\mu_0, \nu_0)$, both supports in the ball
    of this radius at time 0.

    For causal attention it bounds the conditional distance, p > 1. The exponent is a convex
    function of time, which the trapezoid rule integrates from above; it may be infinite.
    """
    if attention.causal and p <= 1:
        raise ValueError(f"the causal bound needs p > 1, got p = {p}.")
    hidden = p / (p - 1) if attention.causal else 1.0
    values = []
    for t in np.linspace(0, time, PANELS + 1):
        space, measure = velocity_lipschitz(
            attention, radius_bound(attention, radius, float(t)).value
        )
        values.append(space + hidden * measure)
    exponent = float(np.trapezoid(values, dx=time / PANELS))
    distance = f"conditional distance of order {p:g}" if attention.causal else f"W_{p:g}"
    assumes = f"both supports in the ball of radius {radius:.6g} at time 0; {distance}"
    return Bound(
        math.exp(exponent) if exponent < 700 else math.inf,
        "upper",
        "proved",
        "flow stability",
        "castin25",
        assumes,
    )


def distances(
    first: Trajectory[Particles], second: Trajectory[Particles], p: float = 2, causal: bool = False
) -> list[float]:
    """$W_p$ between two flows at each of their common times (the conditional distance for causal
    flows).
    """
    if not torch.equal(first.times, second.times):
        raise ValueError(
            f"the flows must have the same times, got {first.times.tolist()[-3:]} and"
            f" {second.times.tolist()[-3:]} at the end."
        )
    between = conditional_wasserstein if causal else wasserstein
    return [between(mu, nu, p) for mu, nu in zip(first.states, second.states, strict=True)]
