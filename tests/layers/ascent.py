"""An attack on a function over a ball: projected gradient ascent from several starts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def largest(
    score: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    radius: float,
    generator: torch.Generator,
    steps: int = 60,
) -> float:
    """The largest value of `score` found among D of Frobenius norm at most `radius`; `score` takes
    a stack of D to a stack of numbers.
    """

    def onto(d: Tensor) -> Tensor:
        size = d.flatten(1).norm(dim=1).reshape(-1, *(1,) * len(shape))
        return d * (radius / size.clamp(min=radius))

    starts = torch.randn(6, *shape, dtype=torch.float64, generator=generator)
    d = onto(starts / starts.flatten(1).norm(dim=1).reshape(-1, *(1,) * len(shape)) * radius)
    best = float("-inf")
    for step in range(steps):
        d = d.detach().requires_grad_()
        values = score(d)
        best = max(best, float(values.detach().max()))
        (slope,) = torch.autograd.grad(values.sum(), d)
        size = slope.flatten(1).norm(dim=1).reshape(-1, *(1,) * len(shape)).clamp(min=1e-30)
        d = onto(d + slope / size * radius * (0.5 if step < steps // 2 else 0.1))
    return best
