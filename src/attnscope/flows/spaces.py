r"""Where tokens live: all of $R^d$ by default, a sphere or an ellipsoid after a normalisation
layer.

RMSNorm with gains $g$ maps every token to the ellipsoid $\{x : |D^{-1}x| = 1\}$, $D =
\sqrt{d}\,\mathrm{diag}(g)$. A residual step followed by the radial retraction $z \mapsto z /
|D^{-1}z|$ has, as the step goes to zero, the velocity
$$ x' = \Gamma(x) - \langle D^{-1}x, D^{-1}\Gamma(x)\rangle\, x, $$
which on the sphere is the orthogonal projection $(I - xx^T/r^2)\,\Gamma(x)$ [geshkovski25].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.measures import Particles
from attnscope.validation import brief, check_positive, check_tensor


@final
@dataclass(frozen=True)
class Sphere:
    """The sphere of this radius around 0; as a function, the retraction of points onto it."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def gauge(self, x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n 1"]:
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True) / self.radius

    def __call__(self, x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
        return x / self.gauge(x)

    def velocity(
        self, x: Float[Tensor, "*stack n d"], field: Float[Tensor, "*stack n d"]
    ) -> Float[Tensor, "*stack n d"]:
        """The part of the field that is tangent at the points x of the sphere."""
        return field - (x * field).sum(-1, keepdim=True) / self.radius**2 * x


@final
@dataclass(frozen=True, eq=False)
class Ellipsoid:
    """The ellipsoid around 0 with these half-axes along the coordinates; as a function, the radial
    retraction onto it.
    """

    axes: Float[Tensor, " d"]

    __repr__ = brief

    def __post_init__(self) -> None:
        check_tensor("axes", self.axes, "d")
        if self.axes.min() <= 0:
            raise ValueError(
                f"axes must be above 0, got a smallest axis of {float(self.axes.min()):.6g}. The"
                " sign of a gain does not matter."
            )

    @classmethod
    def from_gains(cls, gains: Float[Tensor, " d"]) -> Ellipsoid:
        r"""Where RMSNorm with these gains puts its tokens: half-axes $\sqrt{d}\,|g_i|$."""
        check_tensor("gains", gains, "d")
        return cls(math.sqrt(gains.shape[-1]) * gains.abs())

    def gauge(self, x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n 1"]:
        return torch.linalg.vector_norm(x / self.axes.to(x), dim=-1, keepdim=True)

    def __call__(self, x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
        return x / self.gauge(x)

    def velocity(
        self, x: Float[Tensor, "*stack n d"], field: Float[Tensor, "*stack n d"]
    ) -> Float[Tensor, "*stack n d"]:
        """The field minus its part along x, measured in the norm of the ellipsoid."""
        return field - (x * field / self.axes.to(x) ** 2).sum(-1, keepdim=True) * x


Space = Sphere | Ellipsoid


def check_on(space: Space, mu: Particles) -> None:
    """Refuse a cloud that does not lie on the surface."""
    if isinstance(space, Ellipsoid) and len(space.axes) != mu.dim:
        raise ValueError(
            f"an ellipsoid with {len(space.axes)} axes cannot hold particles in dimension {mu.dim}."
        )
    gauge = space.gauge(mu.x)
    off = float((gauge - 1).abs().max())
    if off > (1e-6 if mu.x.dtype == torch.float64 else 1e-3):
        raise ValueError(
            f"the particles must lie on {type(space).__name__}, got norms from"
            f" {float(gauge.min()):.6g} to {float(gauge.max()):.6g} times its own. Start from"
            " mu.at(space(mu.x))."
        )
