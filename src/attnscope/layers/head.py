"""The last layer: from tokens to logits."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers.contract import AffineLayer
from attnscope.norms import spectral


@final
class Head(AffineLayer):
    r"""A linear map of all tokens side by side ("flatten"), of their mean ("mean"), or of each by
    itself ("tokens").
    """

    def __init__(
        self, tokens: int, dim: int, classes: int, pooling: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.pooling, self.tokens = pooling, tokens
        inputs = dim * (tokens if pooling == "flatten" else 1)
        self.weight = nn.Parameter(torch.randn(classes, inputs, generator=generator) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        if self.pooling != "tokens":
            x = x.flatten(-2) if self.pooling == "flatten" else x.mean(-2)
        return x @ self.weight.mT + self.bias

    def norm(self) -> Float[Tensor, ""]:
        norm = spectral(self.weight.detach().double())
        return norm / self.tokens**0.5 if self.pooling == "mean" else norm

    def budget(
        self, x: Float[Tensor, "k n d"], norm: Float[Tensor, ""]
    ) -> Float[Tensor, "k n n"] | None:
        return super().budget(x, norm) if self.pooling == "tokens" else None
