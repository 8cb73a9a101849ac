r"""Norm layers on the features of each token, over a ball around it.

$N(x) = \gamma\circ\sqrt d\,f(Cx) + b$ with $f(u) = u\,(|u|^2 + c)^{-1/2}$ and $c = d\epsilon$; $C$
takes the mean away (LayerNorm) or nothing (RMSNorm). Everywhere $\|Df\| \le (|u|^2 + c)^{-1/2}$ and
$|D^2f[h, h]| \le \frac2{\sqrt3}|h|^2/(|u|^2 + c)$, so that a token pays by its distance from the
point where the layer is steep. Mean-centring alone is a projection.
"""

from __future__ import annotations

import math
from abc import ABC
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.layers.along import Along, Tangent
from attnscope.layers.contract import AffineLayer, OverBall, Remainder
from attnscope.norms import SLACK

NORMS = ("none", "centre", "layer", "rms")
CURVATURE = 2 / math.sqrt(3)
"""The largest second derivative of $u/|u|$ at $|u| = 1$, over all smoothings of it at 0."""
THIRD = 3.0
"""The same for the third derivative."""
ROUNDING = 1e-12
"""What rounding can take from the length of a token, relative to its largest entry times root d."""


@final
class Centre(AffineLayer):
    r"""$x_i - \frac1d\sum_r x_{ir}$: the part of LayerNorm that is a projection, hence 1-Lipschitz
    [qi23].
    """

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def norm(self) -> Float[Tensor, ""]:
        return torch.ones((), dtype=torch.float64)


class TokenNorm(nn.Module, ABC):
    r"""$\gamma\circ\sqrt d\,f(Cx) + b$, written out: torch's own derivative of a derivative of
    `layer_norm` is wrong in forward mode.
    """

    centred: ClassVar[bool]
    inner: nn.LayerNorm | nn.RMSNorm
    """torch's module, which holds gain and bias."""

    def __init__(self, inner: nn.LayerNorm | nn.RMSNorm) -> None:
        super().__init__()
        if len(inner.normalized_shape) != 1 or inner.eps is None:
            raise NoBound(
                "a norm layer has bounds when it normalises the last axis alone and has an eps of"
                f" its own, got {inner}."
            )
        self.inner, self.eps = inner, float(inner.eps)

    @property
    def gain(self) -> Float[Tensor, " d"]:
        if self.inner.weight is None:
            return torch.ones(self.inner.normalized_shape)
        return self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        u = x - x.mean(-1, keepdim=True) if self.centred else x
        made = self.gain.to(u) * u / (u.square().mean(-1, keepdim=True) + self.eps).sqrt()
        bias = getattr(self.inner, "bias", None)
        return made if bias is None else made + bias

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        r"""With $r_i^2 = (|Cx_i| - e_i)_+^2 + c$ token i has slope $\sqrt d\max|\gamma|/r_i$ and
        against $g$ the curvature $\frac2{\sqrt3}\sqrt d\,|C(\gamma\circ g_i)|/r_i^2$. The last axis
        is that of the features; vectors (k, d) are one token each.
        """
        tokens = x.double().reshape(len(x), -1, x.shape[-1])
        reach = eps[:, None] if each is None or each.shape != tokens.shape[:2] else each
        root, gain = math.sqrt(x.shape[-1]), self.gain.to(tokens)
        distance = self._distance(tokens, reach)
        slope = root * gain.abs().amax() / distance * (1 + SLACK)
        bend = CURVATURE * root / distance.square() * (1 + SLACK)

        def remainder(gradients: Float[Tensor, "c k ..."]) -> Remainder:
            g = gradients.double().reshape(*gradients.shape[:2], *tokens.shape[1:]) * gain
            g = g - g.mean(-1, keepdim=True) if self.centred else g
            curved = bend * torch.linalg.vector_norm(g, dim=-1) * (1 + SLACK)
            if each is not None and x.ndim == 3:
                return Remainder(form=torch.diag_embed(curved))
            return Remainder(whole=curved.amax(-1) * eps.square() / 2)

        def rest() -> Tensor:
            return bend.amax(-1) * gain.abs().amax() * eps.square() / 2 * (1 + SLACK)

        budget = torch.diag_embed(slope) if x.ndim == 3 else None
        return OverBall(slope.amax(-1) * eps, budget, remainder, "norm layer", rest=rest)

    def along(self, x: Float[Tensor, "1 ..."], tangent: Tangent) -> Along:
        r"""With $e = \|J_i\|\varepsilon + \eta_i$, token i has $|\langle g, T\rangle| \le \sqrt
        d\,|C(\gamma\circ g)|\,(\frac2{\sqrt3}\eta(e + \frac12\eta)/r_0^2 + \frac12e^3/r^3)$, $r_0$
        at the token itself.
        """
        moved = tangent.tokens(x.shape)
        tokens, gain = x.double().reshape(len(moved.rest), -1), self.gain.to(x.device).double()
        reach, spare = moved.first() + moved.rest, moved.rest
        here = self._distance(tokens[None], torch.zeros_like(reach)[None])[0]
        near = self._distance(tokens[None], reach[None])[0]
        slip = CURVATURE * spare * (reach + spare / 2) / here.square()
        beyond = (slip + THIRD / 6 * (reach / near) ** 3) * math.sqrt(tokens.shape[-1])

        def third(gradients: Float[Tensor, "c ..."]) -> Float[Tensor, " c"]:
            g = gradients.double().reshape(len(gradients), *tokens.shape) * gain
            g = g - g.mean(-1, keepdim=True) if self.centred else g
            return (torch.linalg.vector_norm(g, dim=-1) * beyond).sum(-1) * (1 + SLACK)

        return Along(beyond * gain.abs().amax() * (1 + SLACK), third)

    def _distance(
        self, x: Float[Tensor, "k n d"], reach: Float[Tensor, "k m"]
    ) -> Float[Tensor, "k n"]:
        """$r_i$, rounded down."""
        dim = x.shape[-1]
        u = x - x.mean(-1, keepdim=True) if self.centred else x
        lost = reach * (1 + SLACK) + ROUNDING * math.sqrt(dim) * x.abs().amax(-1)
        left = (torch.linalg.vector_norm(u, dim=-1) - lost).clamp(min=0)
        return (left.square() + dim * self.eps).sqrt() * (1 - SLACK)


@final
class LayerNorm(TokenNorm):
    r"""$\gamma\circ(x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + b$ [ba16]."""

    centred = True

    def __init__(self, inner: nn.LayerNorm | int) -> None:
        super().__init__(nn.LayerNorm(inner) if isinstance(inner, int) else inner)


@final
class RMSNorm(TokenNorm):
    r"""$\gamma\circ x/\sqrt{\frac1d|x|^2 + \epsilon}$ [zhang19]."""

    centred = False

    def __init__(self, inner: nn.RMSNorm | int) -> None:
        super().__init__(nn.RMSNorm(inner, eps=1e-6) if isinstance(inner, int) else inner)


Norm = Centre | LayerNorm | RMSNorm


def norm_layer(name: str, dim: int) -> Norm | None:
    """The norm layer of this name; None for "none"."""
    if name == "none":
        return None
    if name == "centre":
        return Centre()
    return LayerNorm(dim) if name == "layer" else RMSNorm(dim)


def refuse_inner(norm: Norm | None) -> None:
    """Refuse a bound for a block as one layer that reads tokens through LayerNorm or RMSNorm."""
    if isinstance(norm, TokenNorm):
        raise NoBound(
            "a block that reads its tokens through LayerNorm or RMSNorm has no bound as one layer."
            ' `certify` takes it apart (parts()); norm="centre" and norm="none" have bounds whole.'
        )
