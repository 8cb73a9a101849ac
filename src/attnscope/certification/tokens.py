r"""Layers over a ball, token by token: how far each token can move, and how curved the layer is
against a direction.

For a perturbation $D$ of the input of a layer let $v_i = |d_i|$ be the lengths of its tokens. Over
$\|D\|_F \le e$ a layer has a *budget*, a non-negative matrix $N$ with $|D^{out}|_i \le (Nv)_i$, and
against a direction $g$ a *form* $M$ and *corners* $c$, non-negative, with $-\langle g, R\rangle \le
\langle c, v\rangle + \frac12 v^TMv$ for its Taylor remainder $R$.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import tokens_over_ball
from attnscope.nets import MLP, Centre, Head, PatchEmbedding, ResidualAttention
from attnscope.nets.mlp import OneLipschitz
from attnscope.nets.norms import refuse_unbounded
from attnscope.norms import positive_norm, spectral


@final
@dataclass(frozen=True, eq=False)
class OverBall:
    """What a layer can do over a ball; `curved` gives corners (or None) and form of several
    directions, and is None for an affine layer.
    """

    radius: Float[Tensor, " k"]
    budget: Float[Tensor, "k n n"]
    curved: Callable[[Tensor], tuple[Tensor | None, Tensor]] | None


def in_tokens(layers: Sequence[object]) -> bool:
    """Whether a chain of layers has tokens from patches to head, with bounds for all of them
    here.
    """
    return (
        len(layers) > 1
        and isinstance(layers[0], PatchEmbedding)
        and isinstance(layers[-1], Head)
        and all(isinstance(layer, ResidualAttention | MLP | Centre) for layer in layers[1:-1])
    )


def over_ball(
    layer: nn.Module,
    x: Float[Tensor, "k n d"],
    eps: Float[Tensor, " k"],
    each: Float[Tensor, "k n"],
) -> OverBall:
    """One layer over the ball of radius eps, in which token i moves by at most `each[i]`."""
    if isinstance(layer, ResidualAttention):
        return _attention(layer, x, eps)
    if isinstance(layer, MLP):
        return _mlp(layer, x, eps, each)
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    return OverBall(eps, identity, None)


def _attention(
    layer: ResidualAttention, x: Float[Tensor, "k n d"], eps: Float[Tensor, " k"]
) -> OverBall:
    refuse_unbounded(layer.norm)
    step = layer.step
    found = tokens_over_ball(layer.attention(), x, eps, 1 / step)
    budget = step * found.budget
    radius = torch.minimum(step * found.radius, positive_norm(budget) * eps)
    return OverBall(radius, budget, lambda gradient: (None, found.form(step * gradient)))


def _mlp(
    layer: MLP, x: Float[Tensor, "k n d"], eps: Float[Tensor, " k"], each: Float[Tensor, "k n"]
) -> OverBall:
    r"""Tokens do not mix, so $M$ is diagonal: $\lambda_{\max}(\sum_k\beta_{ik}w_kw_k^T)$ with the
    $\beta$ of `MLP.remainder`.
    """
    refuse_unbounded(layer.norm)
    weight = layer.rows().double()
    written, size, length = (
        layer.written(weight),
        spectral(weight),
        torch.linalg.vector_norm(weight, dim=-1),
    )
    u = x @ weight.mT + layer.bias.double()
    theta = each[..., None] * length
    kappa, kinked = layer.activation.curvature(u, theta), layer.activation.kinked(u, theta)
    slope = 1.0 if isinstance(layer, OneLipschitz) else float(1 + size * spectral(written))
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    gram = weight @ weight.mT

    def curved(gradient: Float[Tensor, "c k n d"]) -> tuple[Tensor | None, Tensor]:
        lowered = (-(gradient @ written.mT)).clamp(min=0)
        form = torch.diag_embed(_largest(lowered * kappa, gram, size))
        if kinked is None:
            return None, form
        corner = lowered * kinked
        return torch.minimum(corner @ length, torch.linalg.vector_norm(corner, dim=-1) * size), form

    return OverBall(slope * eps, slope * identity, curved)


def _largest(
    beta: Float[Tensor, "c k n m"], gram: Float[Tensor, "m m"], size: Float[Tensor, ""]
) -> Float[Tensor, "c k n"]:
    r"""At least $\lambda_{\max}(W^T\mathrm{diag}(\beta_i)W)$: by absolute row sums, by the
    Frobenius norm, by $\|W\|^2$.
    """
    frobenius = ((beta @ gram.square()) * beta).sum(-1).clamp(min=0).sqrt()
    return torch.minimum(
        torch.minimum((beta @ gram.abs()).amax(-1), frobenius), beta.amax(-1) * size.square()
    )
