r"""The Jacobians of the norm layers that stand beside attention, token by token and in closed form.

With $z$ the normalised token and $r$ its scale, LayerNorm has $J u = g \odot (u - \bar u -
z\,\langle z, u\rangle/d)/r$; RMSNorm has the same without the mean.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import MOST_COMMON, common_part, wide
from attnscope.validation import check_shape, check_tensor


def of_norm(
    x: Float[Tensor, "*stack n d"], gain: Float[Tensor, " d"], eps: float, centred: bool
) -> LinearOperator:
    """LayerNorm (`centred`) or RMSNorm with this gain at the tokens x, as a linear operator;
    leading axes are a stack.
    """
    check_tensor("x", x, "... n d")
    check_tensor("gain", gain, "d")
    check_shape("gain", gain, tuple(x.shape[-1:]), "one per coordinate")

    def mean_free(u: Tensor) -> Tensor:
        return u - u.mean(-1, keepdim=True) if centred else u

    common = common_part(x[..., None]) if centred else 1.0
    spread = mean_free(x)
    inverse = (spread.square().mean(-1, keepdim=True) + eps).rsqrt()
    z = spread * inverse

    def core(u: Tensor) -> Tensor:
        """The symmetric part, without the gain."""
        u = mean_free(u)
        return (u - z * (z * u).mean(-1, keepdim=True)) * inverse

    shape = tuple(x.shape[-2:])
    stack = x.ndim - 2
    return LinearOperator(
        mv=lambda u: core(u) * gain,
        rmv=lambda u: core(u * gain),
        in_shape=shape,
        out_shape=shape,
        dtype=x.dtype,
        device=x.device,
        stack=tuple(x.shape[:-2]),
        rounding=2 * torch.finfo(x.dtype).eps * common,
        exact=(
            None if x.dtype == torch.float64 else lambda: of_norm(wide(x), wide(gain), eps, centred)
        ),
        coarse=(
            None
            if x.dtype != torch.float64 or common > MOST_COMMON
            else lambda: of_norm(x.float(), gain.float(), eps, centred)
        ),
        restrict=(
            None
            if not stack
            else lambda index: of_norm(x.flatten(0, stack - 1)[index], gain, eps, centred)
        ),
    )
