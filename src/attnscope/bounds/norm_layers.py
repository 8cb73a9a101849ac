r"""The radius of the ball in which a norm layer puts its tokens: the R that bounds on a ball
need.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.validation import check_same_kind, check_shape, check_tensor


def layer_norm_radius(gain: Float[Tensor, " d"], bias: Float[Tensor, " d"] | None = None) -> float:
    r"""$\sqrt d\max|g| + |b|$: no token that leaves LayerNorm(g, b) has a larger norm."""
    radius = rms_norm_radius(gain)
    if bias is None:
        return radius
    check_tensor("bias", bias, "d")
    check_same_kind("bias", bias, "gain", gain)
    check_shape("bias", bias, tuple(gain.shape), "the shape of gain")
    return radius + float(torch.linalg.vector_norm(bias.double()))


def rms_norm_radius(gain: Float[Tensor, " d"]) -> float:
    r"""$\sqrt d\max|g|$: no token that leaves RMSNorm(g) has a larger norm."""
    check_tensor("gain", gain, "d")
    return math.sqrt(gain.shape[0]) * float(gain.double().abs().max())
