"""Norm layers on the features of each token. Only mean-centring moves things by a bounded
amount.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.layers.contract import AffineLayer, Unbounded

NORMS = ("none", "centre", "layer", "rms")


@final
class Centre(AffineLayer):
    r"""$x_i - \frac1d\sum_r x_{ir}$: the part of LayerNorm that is a projection, hence 1-Lipschitz
    [qi23].
    """

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def norm(self) -> Float[Tensor, ""]:
        return torch.ones((), dtype=torch.float64)


@final
class LayerNorm(Unbounded):
    r"""$g \circ (x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + b$."""

    why = (
        "no useful l2 bound is proved for LayerNorm: its slope is one over the deviation of a"
        ' token, which a small input can make huge. Use norm="centre" or norm="none" in a network'
        " meant to be certified."
    )

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@final
class RMSNorm(Unbounded):
    r"""$g \circ x/\sqrt{\frac1d|x|^2 + \epsilon}$ [zhang19]."""

    why = (
        "no useful l2 bound is proved for RMSNorm: its slope is one over the size of a token, which"
        ' a small input can make huge. Use norm="centre" or norm="none" in a network meant to be'
        " certified."
    )

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


Norm = Centre | LayerNorm | RMSNorm


def norm_layer(name: str, dim: int) -> Norm | None:
    """The norm layer of this name; None for "none"."""
    if name == "none":
        return None
    if name == "centre":
        return Centre()
    return LayerNorm(dim) if name == "layer" else RMSNorm(dim)


def refuse_unbounded(norm: Norm | None) -> None:
    """Refuse a bound for a block that reads its tokens through LayerNorm or RMSNorm."""
    if isinstance(norm, Unbounded):
        raise NoBound(norm.why)
