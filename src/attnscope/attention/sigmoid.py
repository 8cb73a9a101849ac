r"""Sigmoid attention: every score passes through its own sigmoid, nothing is normalised
[ramapuram24].

$$ \Gamma_\mu(x) = \sum_h C_h \int \sigma(\langle A_h x, y\rangle + b)\, y\, d\mu(y) $$
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Attention
from attnscope.measures import Particles
from attnscope.validation import described


@final
@dataclass(frozen=True, eq=False)
class Sigmoid(Attention):
    r"""The mean form by default. With `tokens=n` it is the sum over n tokens with bias $b - \log n$
    of [ramapuram24]:

    $\Gamma_\mu(x) = n \sum_h C_h \int \sigma(\langle A_h x, y\rangle + b - \log n)\, y\, d\mu(y)$,
    still a map on measures.
    """

    bias: float = 0.0
    tokens: int | None = None

    name: ClassVar[str] = "sigmoid"
    normalised: ClassVar[bool] = False
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "ramapuram24"
    interpolates: ClassVar[bool] = True
    no_closed_form: ClassVar[str] = (
        "a sigmoid of a linear form does not turn a Gaussian into a Gaussian"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            isinstance(self.bias, bool)
            or not isinstance(self.bias, int | float)
            or not math.isfinite(self.bias)
        ):
            raise ValueError(f"bias must be a finite number, got {described(self.bias)}.")
        if self.tokens is not None and (
            isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or self.tokens < 1
        ):
            raise ValueError(
                "tokens must be a whole number of at least 1, or None for the mean form, got"
                f" {described(self.tokens)}."
            )

    def coupling(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        n = self.tokens or 1
        scores = self.scores(x, mu, positions) + (self.bias - math.log(n))
        return n * torch.sigmoid(scores) * self.mass(x, mu, positions)
