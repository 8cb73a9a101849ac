r"""The attention layer of a network: $x + s\,\Gamma_{x}(N x)$ for any variant of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope import bounds
from attnscope.attention import Attention, Heads
from attnscope.bounds.near.place import Kept
from attnscope.layers.along import Along, Tangent
from attnscope.layers.contract import OverBall, Remainder
from attnscope.layers.norms import Centre, Norm, TokenNorm, refuse_inner
from attnscope.layers.residual import Residual
from attnscope.layers.self_attention import SelfAttention, attention_along
from attnscope.measures import Particles
from attnscope.norms import SLACK, positive_norm, spectral_of_product


@final
class ResidualAttention(nn.Module):
    r"""$x + s\,\Gamma(Nx)$ with N a norm layer or nothing; the heads are parameters, the variant is
    a class of `attnscope.attention`.
    """

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter
    output: nn.Parameter
    query_bias: nn.Parameter
    output_bias: nn.Parameter
    position_bias: nn.Parameter | None

    def __init__(
        self,
        variant: type[Attention],
        options: Mapping[str, float],
        heads: Heads,
        causal: bool,
        norm: Norm | None,
        step: float,
    ) -> None:
        super().__init__()
        self.variant, self.options, self.causal, self.step = variant, dict(options), causal, step
        self.norm = norm
        for name in (
            "query",
            "key",
            "value",
            "output",
            "query_bias",
            "output_bias",
            "position_bias",
        ):
            part = getattr(heads, name)
            self.register_parameter(name, None if part is None else nn.Parameter(part))
        self.scale = heads.scale

    def heads(self) -> Heads:
        """The heads as the variants read them, a mean-centring before them included."""
        query, key, value = (self.query, self.key, self.value)
        if isinstance(self.norm, Centre):
            query, key, value = self.norm(query), self.norm(key), self.norm(value)
        return Heads(
            query,
            key,
            value,
            self.output,
            query_bias=self.query_bias,
            output_bias=self.output_bias,
            position_bias=self.position_bias,
            scale=self.scale,
        )

    def attention(self) -> Attention:
        """The map between measures that this layer adds to its input, times the step."""
        return self.variant(self.heads(), causal=self.causal, **self.options)

    def forward(self, x: Tensor) -> Tensor:
        read = x if self.norm is None or isinstance(self.norm, Centre) else self.norm(x)
        return x + self.step * self.attention()(read, Particles(read))

    def content_norms(self) -> Float[Tensor, " h"]:
        r"""$\|A_h\|$, the part of the scores that depends on what tokens say and not on where they
        stand.
        """
        heads = self.heads()
        return heads.scale * spectral_of_product(
            heads.key.detach().double().mT, heads.query.detach().double()
        )

    def without_content(self) -> None:
        """Set A to 0 for good: the coupling then depends on the places of tokens alone."""
        with torch.no_grad():
            for part in (self.query, self.key, self.query_bias):
                part.zero_().requires_grad_(False)

    def hold(self, floor: float, cap: float, value_cap: float) -> None:
        r"""Scale every head so that floor $\le \|A_h\| \le$ cap and $s\|W_hV_h\| \le$ value_cap.

        The floor keeps content attention alive while it trains, the caps keep it certifiable: the
        radius of a layer grows with $\|A_h\|\|W_hV_h\|$, and a loss that only sees the slope would
        let both grow.
        """
        with torch.no_grad():
            norms = self.content_norms()
            held = (norms.clamp(floor, cap) / norms).sqrt()
            factor = torch.where(norms > 0, held, 1.0).to(self.query)[:, None, None]
            self.query.mul_(factor)  # 0 stays 0: a control without content has no floor
            self.key.mul_(factor)
            written = self.step * spectral_of_product(
                self.output.double(), self.value.double()
            ).clamp(min=torch.finfo(torch.float64).tiny)
            self.output.mul_((value_cap / written).clamp(max=1).to(self.output)[:, None, None])

    def parts(self) -> nn.Module | None:
        """What a block is made of whose norm layer curves: norm, attention, and the residual."""
        if not isinstance(self.norm, TokenNorm):
            return None
        heads = Heads(
            self.query,
            self.key,
            self.value,
            self.step * self.output,
            query_bias=self.query_bias,
            output_bias=self.step * self.output_bias,
            position_bias=self.position_bias,
            scale=self.scale,
        )
        branch = SelfAttention(heads, self.variant, self.causal, **self.options)
        return Residual(self.norm, branch)

    def over(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        return self.over_span(x, eps, each, None)

    def over_span(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None,
        span: Float[Tensor, "d m"] | None,
    ) -> OverBall:
        return self.over_known(x, eps, each, span, None)

    def over_known(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None,
        span: Float[Tensor, "d m"] | None,
        known: Kept | None,
    ) -> OverBall:
        """The smallest of all theorems without tokens; one reading of the scores with them, which
        is coarser and much cheaper.
        """
        refuse_inner(self.norm)
        attention, tokens = self.attention().to(torch.float64), x.double()
        if each is not None:
            return self._by_tokens(attention, tokens, eps, span, known)
        r = 1 / self.step
        found = bounds.sensitivity(attention, tokens, eps, residual=r, span=span, known=known)

        def remainder(gradients: Float[Tensor, "c k n d"]) -> Remainder:
            against = self.step * gradients.double()
            left = bounds.remainder(attention, tokens, eps, against, span=span)
            return Remainder(whole=left * (1 + SLACK))

        won = " or ".join(dict.fromkeys(found.name))
        return OverBall(self.step * found.value * (1 + SLACK), None, remainder, won)

    def along(self, x: Float[Tensor, "1 n d"], tangent: Tangent) -> Along:
        """The tokens themselves are linear."""
        refuse_inner(self.norm)
        return attention_along(self.attention(), x, tangent, self.step)

    def by_budgets(self, x: Float[Tensor, "k n d"], eps: Float[Tensor, " k"]) -> OverBall:
        """`over` with tokens, its radius from their budgets alone: what a step of training can
        afford.
        """
        refuse_inner(self.norm)
        attention = self.attention().to(torch.float64)
        return self._by_tokens(attention, x.double(), eps, budgets_alone=True)

    def _by_tokens(
        self,
        attention: Attention,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        span: Float[Tensor, "d m"] | None = None,
        known: Kept | None = None,
        budgets_alone: bool = False,
    ) -> OverBall:
        found = bounds.tokens_over_ball(
            attention, x, eps, 1 / self.step, span, known, budgets_alone=budgets_alone
        )
        budget = self.step * found.budget
        radius = torch.minimum(self.step * found.radius, positive_norm(budget) * eps)

        def remainder(gradients: Float[Tensor, "c k n d"]) -> Remainder:
            return Remainder(form=found.form(self.step * gradients.double()))

        return OverBall(radius, budget, remainder, "Token budgets")
