r"""Attention as a branch: $\Gamma_x(x)$ without residual, for any variant with theorems over a
ball.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope import bounds
from attnscope.attention import Attention, Heads
from attnscope.attention.softmax import Softmax
from attnscope.layers.along import Along, Tangent
from attnscope.layers.contract import OverBall, Remainder
from attnscope.measures import Particles
from attnscope.norms import SLACK, positive_norm, spectral_of_product

PARTS = (
    "query", "key", "value", "output",
    "query_bias", "key_bias", "value_bias", "output_bias", "position_bias",
)  # fmt: skip


@final
class SelfAttention(nn.Module):
    r"""$\sum_h C_h \Gamma_h(x)$: softmax attention with these heads, or what `variant` makes of
    them.
    """

    query: nn.Parameter
    key: nn.Parameter
    query_bias: nn.Parameter | None
    variant: type[Attention]

    def __init__(
        self,
        heads: Heads,
        variant: type[Attention] = Softmax,
        causal: bool = False,
        **options: float,
    ) -> None:
        super().__init__()
        if heads.rotary is not None:
            raise ValueError("attention with rotary heads has no bound over a ball.")
        self.variant, self.causal, self.options, self.scale = variant, causal, options, heads.scale
        for name in PARTS:
            part = getattr(heads, name)
            self.register_parameter(name, None if part is None else nn.Parameter(part))

    def attention(self) -> Attention:
        parts = {name: getattr(self, name) for name in PARTS}
        heads = Heads(**parts, scale=self.scale)
        return self.variant(heads, causal=self.causal, **self.options)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention()(x, Particles(x))

    def content_norms(self) -> Float[Tensor, " h"]:
        r"""$\|A_h\|$, as `ResidualAttention.content_norms`."""
        key, query = self.key.detach().double(), self.query.detach().double()
        return self.scale * spectral_of_product(key.mT, query)

    def without_content(self) -> None:
        """Set A to 0."""
        with torch.no_grad():
            for part in (self.query, self.key, self.query_bias):
                if part is not None:
                    part.zero_()

    def over(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        """By tokens one reading of the scores; without them the smallest of all theorems."""
        attention, tokens = self.attention().to(torch.float64), x.double()

        def rest() -> Tensor:
            return bounds.bend(attention, tokens, eps) * (1 + SLACK)

        if each is None:
            moved = bounds.sensitivity(attention, tokens, eps)
            won = " or ".join(dict.fromkeys(moved.name))

            def whole(gradients: Float[Tensor, "c k n d"]) -> Remainder:
                left = bounds.remainder(attention, tokens, eps, gradients.double())
                return Remainder(whole=left * (1 + SLACK))

            return OverBall(moved.value * (1 + SLACK), None, whole, won, rest=rest)
        found = bounds.tokens_over_ball(attention, tokens, eps, 0.0)
        radius = torch.minimum(found.radius, positive_norm(found.budget) * eps)

        def remainder(gradients: Float[Tensor, "c k n d"]) -> Remainder:
            return Remainder(form=found.form(gradients.double()))

        return OverBall(radius, found.budget, remainder, "Token budgets", rest=rest)

    def along(self, x: Float[Tensor, "1 n d"], tangent: Tangent) -> Along:
        return attention_along(self.attention(), x, tangent)


def attention_along(
    attention: Attention, x: Float[Tensor, "1 n d"], tangent: Tangent, step: float = 1.0
) -> Along:
    r"""What `step` times attention leaves beyond second order."""
    here = tangent.tokens(x.shape)
    found = bounds.followed(
        attention.to(torch.float64), x[0].double(), here.jacobian, here.eps, here.rest, here.beside
    )
    return Along(
        abs(step) * found.tokens,
        lambda g: found.third(step * g.double()),
        lambda g: found.forms(step * g.double()),
    )
