r"""Activations: functions of single entries, and the curvature that a certificate pays for each.

For $a$ applied to each entry, $-\langle g, R\rangle = -\sum_i g_i\rho_i(t_i)$ with $\rho_i(t) =
a(u_i + t) - a(u_i) - a'(u_i)t$. An entry counts with a weight $c_i \ge 0$ and a curvature
$\kappa_i$ such that $-g_i\rho_i(t) \le c_i\kappa_it^2/2$ for $|t| \le \theta$, or, near a corner,
$\le c_i\chi_i|t|$ with the chord $\chi_i = (1 - |u_i|/\theta)_+$.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.layers.along import Along, Tangent
from attnscope.layers.contract import OverBall, Remainder
from attnscope.layers.rounded import rounded
from attnscope.layers.units import beyond_by_range, corner_curvature, units_along
from attnscope.norms import SLACK
from attnscope.validation import check_positive

NEAR = 0.25
"""Entries with |u| below this part of theta are near a corner, and take the linear bound."""
PARTS = (0.0, 0.0625, NEAR, 0.5, 1.0)
"""The same, tried one after the other where the best of them can be taken."""

WIDE = 0.3
"""The parabola over a corner is at least as wide as this part of what an entry can move."""


class Entrywise(nn.Module, ABC):
    r"""A function of every entry by itself; as a layer it moves an input by at most its largest
    slope times as far.
    """

    slope = 1.0
    """The largest slope, in absolute value."""
    cornered = False
    """Whether there is a corner at 0, near which no curvature is finite."""
    jump = 1.0
    """By how much the slope jumps at the corner."""

    @abstractmethod
    def forward(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        r"""$\kappa$, at least $2|\rho(t)|/t^2$ over $|t| \le \theta$ (up to the factor in
        `weights`).
        """

    @abstractmethod
    def weights(self, gradients: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The $c_i$ of each direction: 0 where the remainder has the harmless sign."""

    def bent(
        self,
        gradients: Float[Tensor, ...],
        u: Float[Tensor, ...],
        theta: Float[Tensor, ...],
    ) -> Float[Tensor, ...]:
        r"""$c_i\kappa_i \ge 0$: what each entry adds to the form against these gradients."""
        return self.weights(gradients) * self.curvature(u, theta)

    def steepest(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        """At least the slope of every entry over its interval, in absolute value."""
        return torch.full_like(u + theta, self.slope)

    def lost(
        self, u: Float[Tensor, "k ..."], theta: Float[Tensor, "*reach"]
    ) -> tuple[Float[Tensor, "k ..."], Float[Tensor, "k ..."]]:
        r"""$\kappa$ and $j$ for every entry, with $|\rho(t)| \le \min(\frac12\kappa t^2, j|t|)$
        over the interval, whatever the sign.
        """
        ones = torch.ones_like(u)
        bent = torch.maximum(self.bent(ones, u, theta), self.bent(-ones, u, theta))
        if not self.cornered:
            return bent, torch.full_like(bent, torch.inf)
        return bent, torch.where(u.abs() < theta, self.jump, 0.0)

    def beyond(
        self,
        gradients: Float[Tensor, "c n m"],
        u: Float[Tensor, "n m"],
        reach: Float[Tensor, "n m"],
    ) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n m"], Float[Tensor, "n m"]]:
        r"""$\alpha, \beta, a''(u)$ with $-g(\rho(t) - \frac12a''(u)t^2) \le \alpha t^2 + \beta$
        over $|t| \le$ `reach`.

        A corner has no $a''$, and $(|t| - |u|)_+ \le t^2/(2m) + (\frac12m - |u|)_+$ for every $m >
        0$; below the parabola through its ends where that is flatter.
        """
        if not self.cornered:
            raise NotImplementedError
        size, reach = u.abs(), reach.clamp(min=torch.finfo(u.dtype).tiny)
        m = torch.maximum(2 * size, WIDE * reach)
        near = 2 * size < reach
        alpha = torch.where(near, 1 / (2 * m), (reach - size).clamp(min=0) / reach.square())
        beta = torch.where(near, (m / 2 - size).clamp(min=0), 0.0)
        weight = self.weights(gradients) * (1 + SLACK)
        return weight * alpha, weight * beta, torch.zeros_like(u)

    def third(
        self, u: Float[Tensor, "n m"], reach: Float[Tensor, "n m"], spare: Float[Tensor, "n m"]
    ) -> Float[Tensor, "n m"]:
        r"""At least $|\rho(t) - \frac12a''(u)s^2|$ where the entry moves by $t$, $|t| \le$ `reach`,
        and to first order by $s$, $|t - s| \le$ `spare`.
        """
        if self.cornered:
            return self.jump * (reach - u.abs()).clamp(min=0) * (1 + SLACK)
        signs = torch.stack([torch.ones_like(u), -torch.ones_like(u)])
        alpha, beta, bend = self.beyond(signs, u, reach)
        swing = (alpha * reach.square() + beta).amax(0)
        return (swing + bend.abs() * spare * (2 * reach + spare) / 2) * (1 + SLACK)

    def along(self, x: Float[Tensor, "1 ..."], tangent: Tangent) -> Along:
        """Every entry by its own row of the Jacobian."""
        return units_along(self, x, tangent.entries(x.shape))

    def kinked(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"], part: float = NEAR
    ) -> Bool[Tensor, "*out"] | None:
        r"""Where a linear bound must stand in for the curvature; None: nowhere."""
        return u.abs() < part * theta if self.cornered else None

    def chord(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        r"""$\chi = (1 - |u|/\theta)_+$: $(|t| - |u|)_+$ is convex in $|t|$ and 0 at 0, so that over
        $|t| \le \theta$ it lies below its chord, $\chi|t|$.
        """
        return (1 - u.abs() / theta.clamp(min=torch.finfo(u.dtype).tiny)).clamp(min=0)

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        """Tokens do not mix; what is left of each is its most curved entry."""
        by_tokens = each is not None and x.ndim == 3
        reach = each[..., None] if each is not None and by_tokens else _aligned(eps, x)

        def remainder(gradients: Float[Tensor, "c k ..."]) -> Remainder:
            u, weight = x.double(), self.weights(gradients.double())
            bent = self.bent(gradients.double(), u, reach)
            if by_tokens:
                kinked = self.kinked(u, reach)
                form, corners = _split(weight * self.chord(u, reach), bent, kinked)
                return Remainder(None, torch.diag_embed(form), None if kinked is None else corners)
            best = torch.full(weight.shape[:2], torch.inf, dtype=u.dtype, device=u.device)
            for part in PARTS if self.cornered else (0.0,):
                curved, corner = _split(
                    (weight * self.chord(u, reach)).flatten(2),
                    bent.flatten(2),
                    (u.abs() < part * reach).flatten(1) if self.cornered else None,
                )
                best = torch.minimum(best, eps * corner + eps.square() / 2 * curved)
            return Remainder(best * (1 + SLACK))

        return self._found(x, eps, reach, remainder)

    def _found(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        reach: Tensor,
        remainder: Callable[[Tensor], Remainder],
    ) -> OverBall:
        u = x.double()
        steep = self.steepest(u, reach).broadcast_to(u.shape) * (1 + SLACK)

        def rest() -> Tensor:
            most = (part.broadcast_to(u.shape).flatten(1).amax(1) for part in self.lost(u, reach))
            bend, jump = most
            return torch.minimum(jump * eps, bend * eps.square() / 2) * (1 + SLACK)

        budget = torch.diag_embed(steep.amax(-1)) if x.ndim == 3 else None
        radius = steep.flatten(1).amax(1) * eps
        return OverBall(radius, budget, remainder, "slope", rest=rest)


def _split(
    weight: Float[Tensor, "c k ..."], bent: Float[Tensor, "c k ..."], near: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The largest curvature away from corners along the last axis, and the length of the weights
    near them.
    """
    if near is None:
        return bent.amax(-1) * (1 + SLACK), torch.zeros_like(weight).sum(-1)
    away = torch.where(near | (weight == 0), 0.0, bent).amax(-1)
    length = torch.linalg.vector_norm(torch.where(near, weight, 0.0), dim=-1)
    return away * (1 + SLACK), length * (1 + SLACK)


def _aligned(eps: Float[Tensor, " k"], x: Float[Tensor, "k ..."]) -> Tensor:
    """One radius per input, against all its entries."""
    return eps.reshape(-1, *(1,) * (x.ndim - 1))


class Activation(Entrywise):
    r"""A convex function whose slope lies in [0, 1]: the remainder is never negative."""

    def weights(self, gradients: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return (-gradients).clamp(min=0)


@final
class QuadraticReLU(Activation):
    r"""The ReLU with its corner rounded by a parabola: $0$ for $u \le -w$, $u$ for $u \ge w$, $(u +
    w)^2/(4w)$ between.
    """

    def __init__(self, half_width: float = 1.0) -> None:
        super().__init__()
        check_positive("half_width", half_width)
        self.half_width = float(half_width)

    def forward(self, u: Tensor) -> Tensor:
        return rounded(u, self.half_width)

    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        r"""$\frac{1}{2w}(1 - (|u| - w)_+/\theta)_+^2$: beyond the band only what a step of $\theta$
        reaches of it counts.
        """
        w = self.half_width
        outside = (u.abs() - w).clamp(min=0)
        return (1 - outside / theta.clamp(min=torch.finfo(u.dtype).tiny)).clamp(min=0).square() / (
            2 * w
        )

    def beyond(
        self,
        gradients: Float[Tensor, "c n m"],
        u: Float[Tensor, "n m"],
        reach: Float[Tensor, "n m"],
    ) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n m"], Float[Tensor, "n m"]]:
        r"""Up to the edge of its piece, at distance l, nothing; beyond it at most $(|t| -
        l)_+^2/(4w)$, below 0 from within the band and above 0 from outside, and at most
        $\frac1{4w}(1 - l/\tau)_+^2t^2$.
        """
        w, away = self.half_width, u.abs() - self.half_width
        edge = away.abs() / reach.clamp(min=torch.finfo(u.dtype).tiny)
        alpha = (1 - edge).clamp(min=0).square() / (4 * w) * (1 + SLACK)
        lowering = torch.where(away < 0, gradients.clamp(min=0), gradients.clamp(max=0).neg())
        at = away.abs() <= SLACK * w  # either piece may be the one that derivatives are of
        lowering = torch.where(at, gradients.abs(), lowering)
        return lowering * alpha, torch.zeros_like(lowering), (at | (away < 0)) / (2 * w)


@final
class Softplus(Activation):
    r"""$\log(1 + e^{\beta u})/\beta$, of curvature at most $\beta/4$."""

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        check_positive("sharpness", sharpness)
        self.sharpness = float(sharpness)

    def forward(self, u: Tensor) -> Tensor:
        return (
            torch.logaddexp(self.sharpness * u, torch.zeros_like(u)) / self.sharpness
        )  # F.softplus jumps where it becomes linear

    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        r"""$\beta\varsigma(1 - \varsigma)$ where it is largest: at the point nearest to 0."""
        nearest = torch.sigmoid(self.sharpness * (u.abs() - theta).clamp(min=0))
        return self.sharpness * nearest * (1 - nearest) * (1 + SLACK)

    def beyond(
        self,
        gradients: Float[Tensor, "c n m"],
        u: Float[Tensor, "n m"],
        reach: Float[Tensor, "n m"],
    ) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n m"], Float[Tensor, "n m"]]:
        here = torch.sigmoid(self.sharpness * u.abs())
        far = torch.sigmoid(self.sharpness * (u.abs() + reach))
        here, far = (self.sharpness * part * (1 - part) for part in (here, far))
        return beyond_by_range(gradients, here, far, self.curvature(u, reach))


@final
class ReLU(Activation):
    """max(u, 0): no curvature away from the corner, a linear bound near it."""

    cornered = True

    def forward(self, u: Tensor) -> Tensor:
        return F.relu(u)

    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        return corner_curvature(u, theta)


@final
class LeakyReLU(Entrywise):
    r"""$u$ above 0 and s times u below, s of any size: $\rho = (1 - s)(|t| - |u|)_+$ at most."""

    cornered = True

    def __init__(self, negative_slope: float) -> None:
        super().__init__()
        self.negative_slope = float(negative_slope)
        self.slope = max(1.0, abs(self.negative_slope))
        self.jump = abs(1 - self.negative_slope)

    def forward(self, u: Tensor) -> Tensor:
        return F.leaky_relu(u, self.negative_slope)

    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        return corner_curvature(u, theta)

    def weights(self, gradients: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return ((self.negative_slope - 1) * gradients).clamp(min=0)


def activation(name: str, half_width: float) -> Activation:
    """The activation of this name; softplus takes the curvature of the quadratic ReLU, $\\beta =
    2/w$.
    """
    made = {
        "quadratic": lambda: QuadraticReLU(half_width),
        "softplus": lambda: Softplus(2 / half_width),
        "relu": ReLU,
    }
    if name not in made:
        raise ValueError(f"activation must be one of {', '.join(made)}, got {name!r}.")
    return made[name]()
