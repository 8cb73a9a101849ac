r"""The MLP of a Transformer as a branch, $U^T\sigma(Wx + b) + c$, with slopes and curvatures of the
intervals that its units reach.
"""

from __future__ import annotations

import dataclasses
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers.activations import Entrywise
from attnscope.layers.along import Along, Tangent
from attnscope.layers.contract import OverBall
from attnscope.layers.mlp import MLP
from attnscope.layers.units import units_along
from attnscope.norms import SLACK, spectral


@final
class FeedForward(MLP):
    r"""$U^T\sigma(Wx + b) + c$ on each token, without a residual: the branch of a Transformer. Its
    slope is that of the activation over the intervals reached.
    """

    theorem = "local slope"
    residual = False

    def __init__(
        self,
        weight: Float[Tensor, "m d"],
        bias: Float[Tensor, " m"] | None,
        activation: Entrywise,
        output: Float[Tensor, "m e"],
        output_bias: Float[Tensor, " e"] | None,
    ) -> None:
        nn.Module.__init__(self)
        self.weight, self.output = nn.Parameter(weight), nn.Parameter(output)
        zero = weight.new_zeros(weight.shape[0])
        self.bias = nn.Parameter(zero if bias is None else bias)
        zero = output.new_zeros(output.shape[1])
        self.output_bias = nn.Parameter(zero if output_bias is None else output_bias)
        self.activation, self.norm = activation, None

    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m e"]:
        return self.output.to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.output_bias

    def slope(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, ""]:
        return self.activation.slope * spectral(weight) * spectral(self.written(weight))

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        """Vectors (k, d) count as one token each, as do all features of a larger array."""
        alone = x.ndim != 3
        tokens = x.reshape(len(x), -1, x.shape[-1])
        found = super().over(tokens, eps, None if alone else each)
        weight = self.weight.double()
        reach = (eps[:, None] if each is None or alone else each)[..., None]
        theta = reach * torch.linalg.vector_norm(weight, dim=-1) * (1 + SLACK)
        u = tokens.double() @ weight.mT + self.bias.double()
        steep = self.activation.steepest(u, theta).amax(-1) * (1 + SLACK)
        slopes = steep * spectral(weight) * spectral(self.output.double()) * (1 + SLACK)
        given = found.remainder
        assert given is not None
        return dataclasses.replace(
            found,
            radius=slopes.amax(-1) * eps,
            budget=None if alone else torch.diag_embed(slopes),
            remainder=(lambda g: given(g.reshape(*g.shape[:2], -1, g.shape[-1])))
            if alone
            else given,
        )

    def along(self, x: Float[Tensor, "1 ..."], tangent: Tangent) -> Along:
        here, output = tangent.tokens(x.shape), self.output.double()
        weight, bias = self.weight.double(), self.bias.double()
        return units_along(self.activation, x, here, weight, bias, output)
