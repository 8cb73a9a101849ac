r"""Smooth activations: GELU, SiLU, tanh, the sigmoid. Slope and curvature over the interval that an
entry can reach.

$\rho(t) = t^2\int_0^1(1 - s)\,a''(u + st)\,ds$ lies between $\frac12t^2\inf a''$ and
$\frac12t^2\sup a''$ over the interval. The extremes of $a'$ and $a''$ lie at its ends or where the
next derivative is 0: each class lists these points, and a point outside counts as the nearer end.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.layers.activations import Entrywise
from attnscope.layers.units import beyond_by_range
from attnscope.norms import SLACK

ROUNDING = 1e-14
"""Absolute allowance for the rounding of a derivative of size at most 2."""


class Smooth(Entrywise):
    r"""A function with two continuous derivatives whose extremes are known."""

    turns: ClassVar[tuple[float, ...]]
    """Every point where the slope has a local extremum."""
    bends: ClassVar[tuple[float, ...]]
    """Every point where the curvature has one."""

    @abstractmethod
    def first(self, u: Tensor) -> Tensor:
        """The derivative."""

    @abstractmethod
    def second(self, u: Tensor) -> Tensor:
        """The second derivative."""

    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        low, high = _extremes(self.second, self.bends, u, theta)
        return torch.maximum(high, -low)

    def weights(self, gradients: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return gradients.abs()

    def bent(
        self,
        gradients: Float[Tensor, ...],
        u: Float[Tensor, ...],
        theta: Float[Tensor, ...],
    ) -> Float[Tensor, ...]:
        r"""$-g\rho \le \frac12t^2\max(-g\sup a'', -g\inf a'', 0)$."""
        low, high = _extremes(self.second, self.bends, u, theta)
        falling = gradients.clamp(max=0).neg() * high.clamp(min=0)
        return falling + gradients.clamp(min=0) * (-low).clamp(min=0)

    def beyond(
        self,
        gradients: Float[Tensor, "c n m"],
        u: Float[Tensor, "n m"],
        reach: Float[Tensor, "n m"],
    ) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n m"], Float[Tensor, "n m"]]:
        low, high = _extremes(self.second, self.bends, u, reach)
        return beyond_by_range(gradients, self.second(u), low, high)

    def steepest(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        low, high = _extremes(self.first, self.turns, u, theta)
        return torch.maximum(high, -low)


def _extremes(
    derivative: Callable[[Tensor], Tensor],
    points: tuple[float, ...],
    u: Float[Tensor, "*units"],
    theta: Float[Tensor, "*reach"],
) -> tuple[Float[Tensor, "*out"], Float[Tensor, "*out"]]:
    """The least and the largest value over $[u - theta, u + theta]$, rounded outward."""
    left, right = u - theta, u + theta
    ends = [derivative(left), derivative(right)]
    within = [derivative(torch.full_like(left, at).clamp(left, right)) for at in points]
    values = torch.stack([*ends, *within])
    return (
        values.amin(0) - SLACK * values.abs().amax(0) - ROUNDING,
        values.amax(0) + SLACK * values.abs().amax(0) + ROUNDING,
    )


@final
class GELU(Smooth):
    r"""$u\Phi(u)$ [hendrycks16]: $a' = \Phi + u\varphi$, $a'' = \varphi(2 - u^2)$, $a''' =
    \varphi u(u^2 - 4)$.
    """

    slope = 1.13
    turns = (-math.sqrt(2), math.sqrt(2))
    bends = (-2.0, 0.0, 2.0)

    def forward(self, u: Tensor) -> Tensor:
        return F.gelu(u)

    def first(self, u: Tensor) -> Tensor:
        return torch.special.ndtr(u) + u * _density(u)

    def second(self, u: Tensor) -> Tensor:
        return _density(u) * (2 - u.square())


def _density(u: Tensor) -> Tensor:
    return torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)


@final
class TanhGELU(Smooth):
    r"""$\frac u2(1 + \tanh q)$, $q = \sqrt{2/\pi}(u + 0.044715u^3)$, the common approximation of
    GELU [hendrycks16].

    $a''$ and $a'''$ have no zeros but these: tests/layers/test_smooth.py scans them with a
    Lipschitz constant for what lies between two points.
    """

    slope = 1.13
    turns = (-1.4185040087908284, 1.4185040087908284)
    bends = (-2.0134807246242579, 0.0, 2.0134807246242579)

    def forward(self, u: Tensor) -> Tensor:
        return F.gelu(u, approximate="tanh")

    def _parts(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""$\tanh q$ and its first two derivatives."""
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(scale * (u + cubic * u**3))
        slope = scale * (1 + 3 * cubic * u.square())
        left = 1 / torch.cosh((scale * (u + cubic * u**3)).clamp(-300, 300)).square()
        return t, left * slope, left * (6 * scale * cubic * u - 2 * t * slope.square())

    def first(self, u: Tensor) -> Tensor:
        t, dt, _ = self._parts(u)
        return (1 + t + u * dt) / 2

    def second(self, u: Tensor) -> Tensor:
        _, dt, ddt = self._parts(u)
        return dt + u * ddt / 2


@final
class SiLU(Smooth):
    r"""$u\varsigma(u)$ [hendrycks16]: with $T = \tanh\frac u2$, $a'' = \varsigma'(2 - uT)$ and
    $a''' = \frac12\varsigma'(u(3T^2 - 1) - 6T)$, whose sign changes at 0 and once on either side.
    """

    slope = 1.1
    turns = (-2.3993572805154677, 2.3993572805154677)
    bends = (-3.4358409935351107, 0.0, 3.4358409935351107)

    def forward(self, u: Tensor) -> Tensor:
        return F.silu(u)

    def first(self, u: Tensor) -> Tensor:
        s = torch.sigmoid(u)
        return s + u * s * torch.sigmoid(-u)

    def second(self, u: Tensor) -> Tensor:
        return torch.sigmoid(u) * torch.sigmoid(-u) * (2 - u * torch.tanh(u / 2))


@final
class Tanh(Smooth):
    r"""$a'' = -2T(1 - T^2)$, extreme where $T^2 = 1/3$: at most $4/(3\sqrt3)$."""

    turns = (0.0,)
    bends = (-math.atanh(1 / math.sqrt(3)), math.atanh(1 / math.sqrt(3)))

    def forward(self, u: Tensor) -> Tensor:
        return torch.tanh(u)

    def first(self, u: Tensor) -> Tensor:
        return 1 - torch.tanh(u).square()

    def second(self, u: Tensor) -> Tensor:
        t = torch.tanh(u)
        return -2 * t * (1 - t.square())


@final
class Sigmoid(Smooth):
    r"""$\frac12(1 + \tanh\frac u2)$: a slope of at most 1/4, $|a''| \le 1/(6\sqrt3)$."""

    slope = 0.25
    turns = (0.0,)
    bends = (-2 * math.atanh(1 / math.sqrt(3)), 2 * math.atanh(1 / math.sqrt(3)))

    def forward(self, u: Tensor) -> Tensor:
        return torch.sigmoid(u)

    def first(self, u: Tensor) -> Tensor:
        return torch.sigmoid(u) * torch.sigmoid(-u)

    def second(self, u: Tensor) -> Tensor:
        return -torch.sigmoid(u) * torch.sigmoid(-u) * torch.tanh(u / 2)
