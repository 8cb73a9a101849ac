r"""Flows $\dot x = \Gamma_\mu(x)$ on compact supports: how far they spread, and how far two of them
part [castin25].
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.bounds.head_norms import LayerNorms, Parts
from attnscope.bounds.places import Flow, OnBall, Reach, TwoFlows
from attnscope.bounds.registry import Theorem, theorem, theorems
from attnscope.norms import SLACK

PANELS = 1000
"""Parts of the time; more of them bring the trapezoid rule down to the integral."""


def averages(attention: Attention, place: object) -> bool:
    """Whether the rows of the coupling sum to one."""
    return attention.normalised


@theorem(
    "field size",
    variant=Attention,
    where=Reach,
    source="castin25",
    positional=True,
    when=averages,
)
def field_size(attention: Attention, reach: Reach) -> Float[Tensor, ""]:
    r"""$\sum_h\|C_h\|R + |b|$, $b = b_O + \sum_hW_hb_V$."""
    norms, push = LayerNorms.of(attention.heads), _push(attention)
    return ((norms.written * reach.radius).sum(-1) + push) * (1 + SLACK)


@theorem(
    "flow radius",
    variant=Attention,
    where=Flow,
    source="castin25",
    positional=True,
    when=averages,
)
def flow_radius(attention: Attention, flow: Flow) -> Float[Tensor, "*times"]:
    r"""$R_0e^{ct} + |b|(e^{ct} - 1)/c$, $c = \sum_h\|C_h\|$, $b = b_O + \sum_hW_hb_V$."""
    return spread(LayerNorms.of(attention.heads).written.sum(), _push(attention), flow)


@theorem(
    "flow stability",
    variant=Attention,
    where=TwoFlows,
    source="castin25",
    p=None,
    when=lambda attention, flows: bool(velocities(attention, flows.p)),
)
def flow_stability(attention: Attention, flows: TwoFlows) -> Float[Tensor, ""]:
    r"""$\exp\int_0^tL(R(s))\,ds$, $L$ the Lipschitz constant of the velocity in space plus in the
    measure, $R(s)$ of flow radius.
    """
    (radius_bound,) = theorems(attention, Flow(flows.radius, flows.time))
    fractions = torch.linspace(
        0, 1, PANELS + 1, dtype=torch.float64, device=attention.heads.query.device
    )
    radii = radius_bound(attention, Flow(flows.radius, flows.time * fractions))
    ball = OnBall(None, radii[:, None], p=flows.p)
    norms = LayerNorms.of(attention.heads)
    exponents = []
    for proved in velocities(attention, flows.p):
        # The trapezoid rule bounds the integral of a convex function: each way to put heads
        # together is one, their minimum need not be.
        for rates in norms.ways(norms.per_head(proved(attention, ball))):
            rates = torch.where(rates.isnan(), torch.inf, rates)
            exponents.append(torch.trapezoid(rates, fractions) * flows.time)
    return (torch.stack(exponents).amin() * (1 + SLACK)).exp() * (1 + SLACK)


def velocities(attention: Attention, p: float) -> list[Theorem]:
    """The theorems with a constant in space and one in the measure that are convex in the radius,
    for attention whose support cannot blow up.
    """
    if not theorems(attention, Flow(1.0, 0.0)):
        return []
    ball = OnBall(None, 1.0, p=p)
    with torch.no_grad():
        return [
            proved
            for proved in theorems(attention, ball)
            if proved.convex and isinstance(proved(attention, ball), Parts)
        ]


def spread(rate: Float[Tensor, ""], push: Float[Tensor, ""], flow: Flow) -> Float[Tensor, "*times"]:
    """Gronwall's inequality for a radius that grows by at most `rate` times itself plus `push`."""
    grown = rate * torch.as_tensor(flow.time, dtype=rate.dtype, device=rate.device)
    still = rate == 0
    part = torch.where(still, flow.time, grown.expm1() / torch.where(still, 1.0, rate))
    return (flow.radius * grown.exp() + push * part) * (1 + SLACK)


def _push(attention: Attention) -> Float[Tensor, ""]:
    return torch.linalg.vector_norm(attention.heads.constant)
