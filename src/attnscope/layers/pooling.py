"""Maxima over windows: a maximum moves by no more than what it reads, and is linear as long as the
winner stays.
"""

from __future__ import annotations

import math
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers.contract import OverBall, Remainder
from attnscope.norms import SLACK


@final
class MaxPool(nn.Module):
    r"""`nn.MaxPool2d` without padding, dilation or rounded-up sizes, on (b, c, height, width).

    With w windows over a pixel at most, $|\max(x + t) - \max x| \le |t|_{window}$ sums to a radius
    of $\sqrt w\varepsilon$. The remainder of a window is convex, and at most $(\sqrt2|t| - gap)_+$,
    with the gap between its two largest entries.
    """

    def __init__(self, size: tuple[int, int], stride: tuple[int, int]) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.size, self.stride)

    def over(
        self,
        x: Float[Tensor, "k c height width"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        overlap = math.prod(-(-k // s) for k, s in zip(self.size, self.stride, strict=True))
        radius = math.sqrt(overlap) * eps * (1 + SLACK)
        windows = F.unfold(x.double().flatten(0, 1)[:, None], self.size, stride=self.stride)
        top = windows.topk(min(2, windows.shape[1]), dim=1).values
        gap = (
            (top[:, 0] - top[:, -1]) if top.shape[1] > 1 else torch.full_like(top[:, 0], torch.inf)
        )
        open_ = gap.reshape(len(x), -1) < math.sqrt(2) * eps[:, None] * (1 + SLACK)

        def remainder(gradients: Float[Tensor, "c k ..."]) -> Remainder:
            weight = (-gradients.double()).clamp(min=0).flatten(2) * open_
            size = torch.linalg.vector_norm(weight, dim=-1)
            return Remainder(whole=math.sqrt(2) * size * radius * (1 + SLACK))

        def rest() -> Tensor:
            return torch.where(open_.any(1), math.sqrt(2) * radius * (1 + SLACK), 0.0)

        return OverBall(radius, None, remainder, "maximum", rest=rest)
