r"""Units beyond second order: entries of a value, or of a linear map of its tokens, each with a
function of its own.

Unit k moves by $t = \langle b_k, \delta\rangle + r_k$, $|r_k| \le S_k$, so $|t| \le \tau_k =
|b_k|\varepsilon + S_k$. What is left of it is $\rho(t) - \frac12a''(u)t^2$, at most $\alpha t^2 +
\beta$ against a gradient, and $\frac12a''(u)(t^2 - \langle b_k, \delta\rangle^2)$, at most
$|a''(u)|(|\langle b_k, \delta\rangle|S_k + \frac12S_k^2)$.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near.along import Forms, crossed, split
from attnscope.layers.along import Along, Tangent
from attnscope.norms import SLACK, spectral


@runtime_checkable
class Beyond(Protocol):
    """What an activation says of its entries beyond second order; see `Entrywise.beyond`."""

    def beyond(
        self, gradients: Tensor, u: Tensor, reach: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def third(self, u: Tensor, reach: Tensor, spare: Tensor) -> Tensor: ...


def units_along(
    activation: Beyond,
    x: Float[Tensor, "1 ..."],
    tangent: Tangent,
    weight: Float[Tensor, "m d"] | None = None,
    bias: Float[Tensor, " m"] | None = None,
    output: Float[Tensor, "m e"] | None = None,
) -> Along:
    r"""Of $a(x)$ or $U^Ta(Wx + b)$, token by token."""
    slope, spare = tangent.units(weight)
    u = x.double().reshape(tangent.shape)
    if weight is not None and bias is not None:
        u = u @ weight.mT + bias
    first = torch.linalg.vector_norm(slope, dim=0) * tangent.eps * (1 + SLACK)
    reach = first + spare
    left = activation.third(u, reach, spare)
    tokens = torch.linalg.vector_norm(left, dim=-1)
    if output is not None:
        long = torch.linalg.vector_norm(output, dim=-1)
        tokens = torch.minimum(left @ long, tokens * spectral(output))

    def pulled(gradients: Float[Tensor, "c ..."]) -> Float[Tensor, "c n m"]:
        pulls = gradients.double().reshape(len(gradients), len(u), -1)
        return pulls if output is None else pulls @ output.mT

    def third(gradients: Float[Tensor, "c ..."]) -> Float[Tensor, " c"]:
        return (pulled(gradients).abs() * left).sum((1, 2)) * (1 + SLACK)

    def forms(gradients: Float[Tensor, "c ..."]) -> Forms:
        pulls = pulled(gradients)
        alpha, beta, bend = activation.beyond(pulls, u, reach)
        share, rest = split(first, spare)
        half, cross = crossed(first, spare)
        bend = pulls.abs() * bend.abs()
        weights = (alpha * share + bend * half).flatten(1)
        flat = slope.flatten(1)
        made = torch.stack([(flat * one) @ flat.mT for one in weights])
        left = alpha * rest + beta + bend * (cross + spare.square() / 2)
        return made * (1 + SLACK), left.sum((1, 2)) * (1 + SLACK)

    return Along(tokens * (1 + SLACK), third, forms)


def beyond_by_range(
    gradients: Float[Tensor, "c n m"],
    here: Float[Tensor, "n m"],
    low: Float[Tensor, "n m"],
    high: Float[Tensor, "n m"],
) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n m"], Float[Tensor, "n m"]]:
    r"""`Entrywise.beyond` from $a''(u)$ and the range of $a''$ over the interval: $\rho =
    \frac12bt^2$ with $b$ in the range.
    """
    up, down = (high - here).clamp(min=0) / 2, (here - low).clamp(min=0) / 2
    alpha = gradients.clamp(max=0).neg() * up + gradients.clamp(min=0) * down
    return alpha * (1 + SLACK), torch.zeros_like(alpha), here


def corner_curvature(
    u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
) -> Float[Tensor, "*out"]:
    r"""The remainder of a unit corner is $(|t| - |u|)_+$, and $2(|t| - |u|)/t^2$ is largest at $|t|
    = 2|u|$, or at $\theta$ when that is nearer.
    """
    size, tiny = u.abs(), torch.finfo(u.dtype).tiny
    far = 2 * (theta - size).clamp(min=0) / theta.square().clamp(min=tiny)
    return torch.where(2 * size >= theta, far, 1 / (2 * size).clamp(min=tiny))
