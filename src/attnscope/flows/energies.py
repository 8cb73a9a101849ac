r"""Energies that attention flows climb, and the rates at which they do [castin25; sander22;
geshkovski25].

For $A$ symmetric and $V = cA$, along $x' = \Gamma_\mu(x)$ (or its part $v$ tangent to a surface):

- softmax and exponential, $F(\mu) = \frac12\iint e^{\langle Ax,y\rangle} d\mu d\mu$: $\frac{dF}{dt}
  = \frac1c\int z\,\langle\Gamma, v\rangle d\mu$ with $z = \int e^{\langle Ax,y\rangle}d\mu(y)$ for
  softmax, $z = 1$ for exponential;
- Sinkhorn, $\frac12 E(\mu) = \frac12\max_\pi \int\langle Ax,y\rangle d\pi - \varepsilon
  KL(\pi|\mu\otimes\mu)$: rate $\frac1c\int\langle\Gamma, v\rangle d\mu$;
- centred Gaussians, softmax $\frac14 tr((AS)^2)$, Sinkhorn $\frac\varepsilon2[tr(R - I) -
  \frac12\log\det R]$, L2 with $Q = K$ and $V = cG$, $G = sK^TK$: $\frac12 tr(GS) -
  \frac14\log\det(I + 2SG)$; rate $\frac1c tr(BSB^T)$.

On the unit sphere with $A = \beta I$ the first is $\beta$ times the energy $\frac{1}{2\beta
n^2}\sum e^{\beta\langle x_i,x_j\rangle}$.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from attnscope.attention import Attention, variants
from attnscope.flows.spaces import Ellipsoid, Space, Sphere
from attnscope.measures import Gaussian, Particles
from attnscope.validation import check_kind


class Energy(NamedTuple):
    """The energy of a measure, and the time derivative that the theory gives it along the flow."""

    value: float
    rate: float


def energy(attention: Attention, mu: Particles | Gaussian, space: Space | None = None) -> Energy:
    """The energy whose gradient the flow follows; an error says when this attention has none (see
    the top of this file).
    """
    check_kind("attention", attention, Attention)
    check_kind("mu", mu, Particles, Gaussian)
    if space is not None:
        check_kind("space", space, Sphere, Ellipsoid)
    _check_simple(attention)
    if isinstance(mu, Gaussian):
        return _of_gaussian(attention, mu)
    climbed = attention.energy(mu)
    if climbed is None:
        raise _none_known(attention, "energy", "particles")
    c = _factor(attention)
    field = attention(mu.x, mu)
    velocity = field if space is None else space.velocity(mu.x, field)
    power = (mu.weights * (field * velocity).sum(-1)).to(torch.float64)
    return Energy(float(climbed.value), float((climbed.density * power).sum() / c))


def _of_gaussian(attention: Attention, mu: Gaussian) -> Energy:
    if mu.mean.abs().max() > 1e-12 * max(float(mu.cov.abs().max()) ** 0.5, 1e-300):
        raise ValueError(
            "the energies of Gaussians are those of centred ones. Pass Gaussian(0 * mean, cov)."
        )
    value = attention.energy_on_gaussian(mu)
    if value is None:
        raise _none_known(attention, "energy_on_gaussian", "Gaussians")
    c, b = _factor(attention), attention.affine(mu).matrix.to(torch.float64)
    return Energy(float(value), float(torch.trace(b @ mu.cov.to(torch.float64) @ b.mT) / c))


def _none_known(attention: Attention, method: str, where: str) -> ValueError:
    having = [
        variant.__name__
        for variant in variants().values()
        if getattr(variant, method) is not getattr(Attention, method)
    ]
    return ValueError(
        f"{attention.name} attention has no energy on {where}. These have one: {', '.join(having)}."
    )


def _check_simple(attention: Attention) -> None:
    heads = attention.heads
    biased = any(
        bias is not None
        for bias in (heads.query_bias, heads.key_bias, heads.value_bias, heads.output_bias)
    )
    if heads.count != 1 or biased or heads.positional or attention.causal:
        raise ValueError("an energy needs one head without biases or positions, and no mask.")


def _factor(attention: Attention) -> float:
    """c of $V = cA$, A symmetric; refused when the flow is not a gradient flow."""
    a, values = attention.heads.a[0].detach(), attention.heads.values[0].detach()
    c = float((values * a).sum() / (a * a).sum())
    size = float(a.abs().max())
    if (
        not abs(c) > 0  # NaN too: nothing is a multiple of A = 0
        or (a - a.mT).abs().max() > 1e-6 * size
        or (values - c * a).abs().max() > 1e-6 * abs(c) * size
    ):
        raise ValueError(
            "the flow climbs an energy when A is symmetric and V is a multiple of A (of K^T K for"
            " L2): here it is not."
        )
    return c
