r"""Convex activations with $0 \le \sigma' \le 1$, and the curvature that a certificate pays for
each.

`curvature(u, theta)` is at least $\sup_{|t| \le \theta} 2(\sigma(u + t) - \sigma(u) -
\sigma'(u)t)/t^2$.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.validation import check_positive


class Activation(nn.Module, ABC):
    """A convex function whose slope lies in [0, 1]."""

    @abstractmethod
    def forward(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]: ...

    def kinked(self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]) -> Tensor | None:
        r"""Where a linear bound $\sigma(u + t) - \sigma(u) - \sigma'(u)t \le |t|$ must stand in for
        the curvature; None: nowhere.
        """
        return None


class _Rounded(torch.autograd.Function):
    r"""The quadratic ReLU, $s(u + w(1 - s))$ with its slope $s = ((u + w)/(2w))$ cut to [0, 1]:
    backward passes need the slope alone.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, half_width: float) -> Tensor:
        slope = _slope(u, half_width)
        return slope * torch.add(u, 1 - slope, alpha=half_width)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.half_width = inputs[1]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return cotangents[0] * _slope(ctx.saved_tensors[0], ctx.half_width), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return tangents[0] * _slope(ctx.saved_tensors[0], ctx.half_width)


def _slope(u: Tensor, half_width: float) -> Tensor:
    return (u * (0.5 / half_width) + 0.5).clamp(0, 1)


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
        return _Rounded.apply(u, self.half_width)

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
        return torch.full_like(u + theta, self.sharpness / 4)


@final
class ReLU(Activation):
    """max(u, 0): no curvature away from the corner, a linear bound near it."""

    NEAR = 0.25
    """Units with |u| below this part of theta take the linear bound."""

    def forward(self, u: Tensor) -> Tensor:
        return F.relu(u)

    def curvature(
        self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]
    ) -> Float[Tensor, "*out"]:
        r"""The remainder is $(|t| - |u|)_+$, and $2(|t| - |u|)/t^2$ is largest at $|t| = 2|u|$."""
        size = u.abs()
        tiny = torch.finfo(u.dtype).tiny
        far = 2 * (theta - size) / theta.square().clamp(min=tiny)
        value = torch.where(2 * size >= theta, far, 1 / (2 * size).clamp(min=tiny))
        return torch.where((size >= theta) | (size < self.NEAR * theta), 0.0, value)

    def kinked(self, u: Float[Tensor, "*units"], theta: Float[Tensor, "*reach"]) -> Tensor | None:
        return u.abs() < self.NEAR * theta


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
