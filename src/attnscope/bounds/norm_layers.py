r"""Norm layers: the radius of the ball in which they put their tokens, the R that bounds on a ball
need, and bounds through them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds.asking import bound_of
from attnscope.bounds.places import Normed
from attnscope.bounds.registry import theorems
from attnscope.validation import check_kind, check_same_kind, check_shape, check_tensor


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


def through_norm(
    found: Bounds,
    norm: torch.nn.Module | None,
    x: Float[Tensor, "n d"],
    *,
    norm_first: bool,
    residual: bool,
) -> Bounds:
    r"""Bounds on attention turned into bounds on a part of a block with its norm layer $N$.

    $\|J_fJ_N\| \le \|J_f\|\|J_N\|$ for a norm before the attention, $\|J_N(I + J_f)\| \le \|J_N\|(1
    + \|J_f\|)$ for one after it; a residual adds 1 to what it goes around.

    Args:
        found: Bounds on the attention at its input.
        norm: The norm layer, None where the part has none.
        x: The tokens that the norm layer sees.
        norm_first: Whether the norm comes before the attention.
        residual: Whether the tokens are added to what the attention writes.

    Returns:
        The same bounds for the part, which say so.
    """
    check_kind("found", found, Bounds)
    gain = 1.0 if norm is None else norm_lipschitz(norm, x).value
    how = f"norm layer of constant {gain:.6g}" + ", plus the residual" * residual
    return Bounds(
        replace(
            bound,
            value=gain * bound.value + residual if norm_first else gain * (residual + bound.value),
            assumes=f"{bound.assumes}; {how}",
        )
        for bound in found
    )


def norm_lipschitz(norm: torch.nn.Module, x: Float[Tensor, "n d"]) -> Bound:
    r"""A proved bound on $\|J_N\|$, the Jacobian of a LayerNorm or RMSNorm at these tokens."""
    check_kind("norm", norm, torch.nn.Module)
    check_tensor("x", x, "n d")
    place = Normed.of(norm, x)
    return Bounds(
        bound_of(proved, None, place, float(proved(None, place)))
        for proved in theorems(None, place)
    ).tightest
