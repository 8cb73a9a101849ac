"""The ReLU with its corner rounded by a parabola, and its derivatives."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor


def rounded(u: Tensor, half_width: float) -> Tensor:
    r"""$s(u + w(1 - s))$ with its slope $s = ((u + w)/(2w))$ cut to [0, 1].

    Forward mode goes through its operations: inside itself it would take the rule below for linear,
    and lose the second order.
    """
    if getattr(forward_ad, "_current_level", 0) >= 0:
        return _rounded(u, half_width)
    return _Rounded.apply(u, half_width)


class _Rounded(torch.autograd.Function):
    """Backward passes need the slope alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, half_width: float) -> Tensor:
        return _rounded(u, half_width)

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


def _rounded(u: Tensor, half_width: float) -> Tensor:
    slope = _slope(u, half_width)
    return slope * torch.add(u, 1 - slope, alpha=half_width)


def _slope(u: Tensor, half_width: float) -> Tensor:
    return (u * (0.5 / half_width) + 0.5).clamp(0, 1)
