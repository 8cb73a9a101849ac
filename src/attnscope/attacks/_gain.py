r"""The local constant $\sigma_{max}$ of attention at a stack of measures, its singular vectors, and
its gradient in tokens and masses.

In coordinates where the metric of $L^2(\mu)$ is Euclidean, $\sigma = \langle u, D^{1/2}J(X,
w)D^{-1/2}v\rangle$ at the top pair $(u, v)$. The pair is a maximiser over unit vectors, so that the
derivative of $\sigma$ is that of the formula with $u$ and $v$ fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.operators import jacobian
from attnscope.operators.lanczos import Lanczos, Ritz


class TopPairs(NamedTuple):
    """One measure each: a lower bound of its local constant and the unit vectors, in Euclidean
    coordinates, that show it.
    """

    value: Float[Tensor, " b"]
    left: Float[Tensor, "b n d"]
    right: Float[Tensor, "b n d"]


def masses(log_weights: Float[Tensor, "b n"] | None) -> Float[Tensor, "b n"] | None:
    """Weights that sum to one."""
    return None if log_weights is None else torch.softmax(log_weights, dim=-1)


def top_pairs(
    attention: Attention, mu: Particles, start: Float[Tensor, "b n d"], pairs: int
) -> TopPairs:
    r"""`pairs` steps of Lanczos from `start`. The value is $\|Jv\|$ of one unit vector: a lower
    bound however few the steps.
    """
    op = jacobian(attention, mu).flat()
    first = start.flatten(1)
    lanczos = Lanczos(op, first / torch.linalg.vector_norm(first, dim=1, keepdim=True))
    for _ in range(pairs):
        lanczos.step()
        lanczos.freeze(lanczos.process.finished)
        if not lanczos.active.any():
            break
    top = Ritz.of(lanczos.process).right[:, :1]
    right = lanczos.vectors(top, np.arange(len(top)))[:, 0]
    right = right / torch.linalg.vector_norm(right, dim=1, keepdim=True)
    left = op.mv(right)
    value = torch.linalg.vector_norm(left, dim=1)
    left = left / value.clamp(min=torch.finfo(value.dtype).tiny)[:, None]
    return TopPairs(value, left.reshape(mu.x.shape), right.reshape(mu.x.shape))


def slopes(
    attention: Attention,
    x: Float[Tensor, "b n d"],
    log_weights: Float[Tensor, "b n"] | None,
    pair: TopPairs,
) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b n"] | None]:
    r"""The gradient of $\sigma$ in the tokens and in the log-weights: two backward passes through
    $\langle u, D^{1/2}f\rangle$.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        if log_weights is not None:
            log_weights = log_weights.detach().requires_grad_()
        weights = masses(log_weights)
        root = torch.ones_like(x[..., :1]) if weights is None else weights.sqrt()[..., None]
        written = (pair.left * root * attention.dense(x, Particles(x, weights))).sum()
        (pulled,) = torch.autograd.grad(written, x, create_graph=True)
        sigma = (pulled * pair.right / root).sum()
        if log_weights is None:
            return torch.autograd.grad(sigma, x)[0], None
        tokens, mass = torch.autograd.grad(sigma, (x, log_weights))
    return tokens, mass
