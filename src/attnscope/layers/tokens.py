"""From feature maps to tokens and back to one vector: affine, and written once for all readers."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers.contract import AffineLayer
from attnscope.norms import SLACK


class _Selecting(AffineLayer):
    """A layer of norm 1 that changes which tokens there are, so that budgets end or begin here."""

    def norm(self) -> Float[Tensor, ""]:
        return torch.ones((), dtype=torch.float64)

    def budget(
        self, x: Float[Tensor, "k ..."], norm: Float[Tensor, ""]
    ) -> Float[Tensor, "k n n"] | None:
        return None


@final
class Tokens(_Selecting):
    """A feature map (b, d, height, width) as tokens (b, height * width, d), row by row."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mT


@final
class ClassToken(_Selecting):
    """Learned tokens before all others: one, or two for a distilled network [touvron21]."""

    def __init__(self, tokens: Float[Tensor, "m d"]) -> None:
        super().__init__()
        self.tokens = nn.Parameter(tokens)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.tokens.to(x).expand(len(x), -1, -1), x], dim=1)


@final
class Positions(AffineLayer):
    """A fixed or learned vector added to each token."""

    def __init__(self, position: Float[Tensor, "n d"]) -> None:
        super().__init__()
        self.position = nn.Parameter(position)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position

    def norm(self) -> Float[Tensor, ""]:
        return torch.ones((), dtype=torch.float64)


@final
class FirstToken(_Selecting):
    """The class token alone, (b, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


@final
class MeanToken(AffineLayer):
    r"""The mean of n tokens, (b, d), of norm $1/\sqrt n$; bounded by 1 where n is not known."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)

    def norm(self) -> Float[Tensor, ""]:
        return torch.ones((), dtype=torch.float64)

    def budget(
        self, x: Float[Tensor, "k ..."], norm: Float[Tensor, ""]
    ) -> Float[Tensor, "k n n"] | None:
        return None


@final
class Normalise(AffineLayer):
    """Pixels in [0, 1] to what a network was trained on: (x - mean)/deviation, channel by
    channel.
    """

    def __init__(self, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        if len(mean) != len(deviation) or not all(
            math.isfinite(m) and math.isfinite(s) and s > 0
            for m, s in zip(mean, deviation, strict=True)
        ):
            raise ValueError(
                "a normalisation needs one finite mean and one deviation above 0 for each channel,"
                f" got {mean} and {deviation}."
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = self.get_buffer("mean").to(x), self.get_buffer("deviation").to(x)
        return (x - mean[:, None, None]) / deviation[:, None, None]

    def norm(self) -> Float[Tensor, ""]:
        return (1 / self.get_buffer("deviation").double()).amax() * (1 + SLACK)

    def budget(
        self, x: Float[Tensor, "k ..."], norm: Float[Tensor, ""]
    ) -> Float[Tensor, "k n n"] | None:
        return None
