r"""How far flows can spread: the support's radius, and the distance between two flows, with the
theorems that bound them [castin25].

Proved on compact supports (docs/theorems.md): $R(t) \le R_0 e^{ct} + |b|(e^{ct} - 1)/c$ with $c =
\sum_h |C_h|$, and $W_p(\mu_t, \nu_t) \le \exp(\int_0^t L(R(s))\,ds)\, W_p(\mu_0, \nu_0)$ with $L$
the Lipschitz constant of the velocity, in space plus in measure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attnscope.attention import Attention
from attnscope.bounds import (
    Bound,
    Flow,
    LayerNorms,
    OnBall,
    Parts,
    TwoFlows,
    bound_of,
    theorems,
)
from attnscope.flows.trajectory import Trajectory
from attnscope.measures import Particles
from attnscope.transport import conditional_wasserstein, wasserstein
from attnscope.validation import check_kind, check_positive, described


class VelocityLipschitz(NamedTuple):
    r"""Lipschitz constants of $(x, \mu) \mapsto \Gamma_\mu(x)$ on a ball, $\mu$ measured in $W_1$.
    Proved upper bounds.
    """

    space: float
    measure: float


def radius_bound(attention: Attention, radius: float, time: float) -> Bound:
    """A proved upper bound on the support's radius after `time`, from a support in the ball of this
    radius. Biases and masks are allowed.
    """
    check_kind("attention", attention, Attention)
    check_positive("radius", radius)
    _check_time(time)
    found = _smallest(attention, Flow(radius, time))
    if found is None:
        raise ValueError(
            f"the support of a {attention.name} flow has no such bound: one token can blow up in"
            " finite time."
        )
    return found


def velocity_lipschitz(attention: Attention, radius: float) -> VelocityLipschitz:
    r"""Lipschitz constants of the velocity on the ball of this radius, biases included.

    Under a mask $\mu$ is what the token may read.
    """
    check_kind("attention", attention, Attention)
    check_positive("radius", radius)
    attention = attention.to(torch.float64)
    norms, ball = LayerNorms.of(attention.heads), OnBall(None, radius)
    with torch.no_grad():
        found = [proved(attention, ball) for proved in theorems(attention, ball)]
        parts = [
            (float(norms.combine(one.space)), float(norms.combine(one.measure)))
            for one in found
            if isinstance(one, Parts)
        ]
    if not parts:
        raise ValueError(_unproved(attention))
    space, measure = (min(several) for several in zip(*parts, strict=True))
    return VelocityLipschitz(space, measure)


def stability_bound(attention: Attention, radius: float, time: float, p: float = 2) -> Bound:
    r"""A proved upper bound on $W_p(\mu_t, \nu_t) / W_p(\mu_0, \nu_0)$, both supports in the ball
    of this radius at time 0.

    For causal attention it bounds the conditional distance. The exponent is a convex function of
    time, which the trapezoid rule integrates from above; it may be infinite.
    """
    check_positive("radius", radius)
    _check_time(time)
    check_kind("attention", attention, Attention)
    _check_order(attention, p)
    found = _smallest(attention, TwoFlows(radius, time, p))
    if found is None:
        raise ValueError(_unproved(attention))
    return found


def distances(
    first: Trajectory[Particles], second: Trajectory[Particles], p: float = 2, causal: bool = False
) -> list[float]:
    """$W_p$ between two flows at each of their common times (the conditional distance for causal
    flows).
    """
    for name, flown in (("first", first), ("second", second)):
        check_kind(name, flown, Trajectory)
    if not torch.equal(first.times, second.times):
        raise ValueError(
            f"the flows must have the same times, got {first.times.tolist()[-3:]} and"
            f" {second.times.tolist()[-3:]} at the end."
        )
    between = conditional_wasserstein if causal else wasserstein
    return [between(mu, nu, p) for mu, nu in zip(first.states, second.states, strict=True)]


def _smallest(attention: Attention, place: Any) -> Bound | None:
    """The smallest bound at a place of flows, None where no theorem holds."""
    attention = attention.to(torch.float64)
    with torch.no_grad():
        found = [
            bound_of(proved, attention, place, float(proved(attention, place)))
            for proved in theorems(attention, place)
        ]
    return min(found, key=lambda bound: bound.value, default=None)


def _check_time(time: float) -> None:
    if isinstance(time, bool) or not isinstance(time, int | float) or not time >= 0:
        raise ValueError(f"time must be a number of at least 0, got {described(time)}.")


def _check_order(attention: Attention, p: float) -> None:
    if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
        raise ValueError(f"p must be a number of at least 1, got {described(p)}.")
    if attention.causal and p <= 1:
        raise ValueError(f"the causal bound needs p > 1, got p = {p}.")


def _unproved(attention: Attention) -> str:
    places = " with rotary heads or a position bias" if attention.heads.positional else ""
    return (
        "no Lipschitz constant of the velocity is proved here for"
        f" {attention.name} attention{places}."
    )
