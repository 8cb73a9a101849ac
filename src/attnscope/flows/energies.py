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
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.exponential import Exponential
from attnscope.attention.l2 import L2
from attnscope.attention.sinkhorn import Sinkhorn
from attnscope.attention.softmax import Softmax
from attnscope.flows.spaces import Space
from attnscope.measures import Gaussian, Particles

ROWS = 2**22
"""Entries of the kernel that are held at once."""


class Energy(NamedTuple):
    """The energy of a measure, and the time derivative that the theory gives it along the flow."""

    value: float
    rate: float


def energy(attention: Attention, mu: Particles | Gaussian, space: Space | None = None) -> Energy:
    """The energy whose gradient the flow follows; an error says when this attention has none (see
    the top of this file).
    """
    a, c = _structure(attention)
    if isinstance(mu, Gaussian):
        return _on_gaussian(attention, mu, a, c)
    field = attention(mu.x, mu)
    velocity = field if space is None else space.velocity(mu.x, field)
    power = (mu.weights * (field * velocity).sum(-1)).to(torch.float64)
    if isinstance(attention, Sinkhorn):
        potentials = attention.potentials(mu)
        value = (
            -attention.eps
            / 2
            * (mu.weights * (potentials.f + potentials.g)[..., 0, :]).sum(dtype=torch.float64)
        )
        return Energy(float(value), float(power.sum() / c))
    if not isinstance(attention, Softmax | Exponential):
        raise ValueError(
            f"{attention.name} attention has no energy on particles. Softmax, Exponential and"
            " Sinkhorn have one."
        )
    z = torch.cat(
        [(rows @ a @ mu.x.mT).exp() @ mu.weights for rows in mu.x.split(max(1, ROWS // mu.n))]
    ).to(torch.float64)
    weight = z if isinstance(attention, Softmax) else torch.ones_like(z)
    return Energy(float((mu.weights * z).sum() / 2), float((weight * power).sum() / c))


def _on_gaussian(attention: Attention, mu: Gaussian, a: Tensor, c: float) -> Energy:
    if mu.mean.abs().max() > 1e-12 * max(float(mu.cov.abs().max()) ** 0.5, 1e-300):
        raise ValueError(
            "the energies of Gaussians are those of centred ones. Pass Gaussian(0 * mean, cov)."
        )
    s, root = mu.cov.to(torch.float64), mu.factor().to(torch.float64)
    b = attention.affine(mu).matrix.to(torch.float64)
    identity = torch.eye(mu.dim, dtype=torch.float64, device=s.device)
    a = a.to(torch.float64)
    if isinstance(attention, Softmax):
        value = torch.trace(a @ s @ a @ s) / 4
    elif isinstance(attention, L2):
        value = (
            torch.trace(a @ s) / 2
            - torch.linalg.slogdet(identity + 2 * root @ a @ root).logabsdet / 4
        )
    elif isinstance(attention, Sinkhorn):
        singular = torch.linalg.svdvals(root @ a @ root / attention.eps)
        r = (1 + (1 + 4 * singular**2).sqrt()) / 2
        value = attention.eps * ((r - 1).sum() - r.log().sum() / 2) / 2
    else:
        raise ValueError(
            f"{attention.name} attention has no energy on Gaussians. Softmax, L2 and Sinkhorn have"
            " one."
        )
    return Energy(float(value), float(torch.trace(b @ s @ b.mT) / c))


def _structure(attention: Attention) -> tuple[Tensor, float]:
    """The symmetric matrix A (G for L2) and the factor c of the values; refused when the flow is
    not a gradient flow.
    """
    heads = attention.heads
    biased = any(
        bias is not None
        for bias in (heads.query_bias, heads.key_bias, heads.value_bias, heads.output_bias)
    )
    if heads.count != 1 or biased or heads.positional or attention.causal:
        raise ValueError("an energy needs one head without biases or positions, and no mask.")
    a, values = heads.a[0].detach(), heads.values[0].detach()
    if isinstance(attention, L2) and not torch.allclose(heads.query, heads.key):
        raise ValueError(
            "the L2 flow climbs an energy when query and key are equal and the values are a"
            " multiple of K^T K."
        )
    c = float((values * a).sum() / (a * a).sum())
    size = float(a.abs().max())
    if (
        c == 0
        or (a - a.mT).abs().max() > 1e-6 * size
        or (values - c * a).abs().max() > 1e-6 * abs(c) * size
    ):
        raise ValueError(
            "the flow climbs an energy when A is symmetric and V is a multiple of A (of K^T K for"
            " L2): here it is not."
        )
    return a, c
