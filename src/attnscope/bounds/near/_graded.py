r"""Graded radius: the point at share s of a segment lies in the ball of radius s eps, so each part
of it is judged by its own ball.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Radii, in units of eps, of the balls behind a bound on the movement."""
FEW = (0.5, 1.0)
"""The same for budgets of tokens and for the remainder."""


def _steps(shares: Sequence[float]) -> list[float]:
    return [share - before for before, share in zip((0.0, *shares), shares, strict=False)]


def weighed(
    constants: Sequence[Float[Tensor, "*any"]], shares: Sequence[float] = SHARES
) -> Float[Tensor, "*any"]:
    r"""$\sum_k(s_k - s_{k-1})\Lambda(s_k)$."""
    return torch.stack(
        [step * constant for step, constant in zip(_steps(shares), constants, strict=True)]
    ).sum(0)


def graded(
    eps: Float[Tensor, " b"], first: Tensor, constants: list[Tensor], hessians: list[Tensor]
) -> Float[Tensor, " b"]:
    r"""$\int_0^\varepsilon\min(\Lambda(s), \|DF(X)\| + \int_0^sH)\,ds$, $\Lambda$ and $H$ rounded
    up to the next radius.
    """
    total, grown = torch.zeros_like(eps), first
    for step, constant, hessian in zip(_steps(SHARES), constants, hessians, strict=True):
        gain = step * eps * hessian
        total = total + step * eps * torch.minimum(constant, grown + gain / 2)
        grown = grown + gain
    return total


def curved(curvatures: Sequence[Float[Tensor, "*any"]]) -> Float[Tensor, "*any"]:
    r"""$\sum_kW_kQ(s_k)$, $W_k = \int_{s_{k-1}}^{s_k}(1 - s)\,ds$, $Q(s)$ the curvature on the ball
    of share s: what it makes of the remainder of a unit move.
    """
    pairs = zip((0.0, *FEW), FEW, strict=False)
    weights = [(share - before) * (1 - (share + before) / 2) for before, share in pairs]
    return torch.stack([weight * one for weight, one in zip(weights, curvatures, strict=True)]).sum(
        0
    )
