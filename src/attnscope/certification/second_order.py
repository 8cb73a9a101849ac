r"""The second order of the margins of a network, exactly: Hessians in the pixels of one image, and
the most that a quadratic function falls on a ball.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.norms import SLACK, TINY

TRIES = 40
"""Multipliers tried: each gives a bound, the smallest counts."""


def hessians_of(
    logits: Callable[[Tensor], Tensor], image: Float[Tensor, "1 ..."], label: int
) -> Float[Tensor, "c p p"]:
    """The Hessian of each margin of this class in the pixels, by two backward passes on as many
    copies of the image as it has pixels.
    """
    pixels = image[0].numel()
    copies = image.detach().expand(pixels, *image.shape[1:]).clone().requires_grad_()
    with torch.enable_grad():
        made = logits(copies)
        found = []
        for other in range(made.shape[1]):
            if other == label:
                continue
            margin = (made[:, label] - made[:, other]).sum()
            (slope,) = torch.autograd.grad(margin, copies, create_graph=True)
            own = slope.flatten(1).diagonal().sum()
            rows = None
            if own.requires_grad:  # an affine network has no second derivative at all
                (rows,) = torch.autograd.grad(own, copies, retain_graph=True, allow_unused=True)
            found.append((torch.zeros_like(copies) if rows is None else rows).flatten(1))
    hessians = torch.stack(found).detach()
    return (hessians + hessians.mT) / 2


def largest_fall(
    slopes: Float[Tensor, "c p"], hessians: Float[Tensor, "c p p"], eps: float
) -> Float[Tensor, " c"]:
    r"""At least $-\langle g, \delta\rangle - \frac12\delta^TH\delta$ over $|\delta| \le
    \varepsilon$.

    For every $\mu \ge 0$ above $\lambda_{\max}(-H)$ it is at most $\frac12(g^T(\mu I + H)^{-1}g +
    \mu\varepsilon^2)$: convex in $\mu$, so a search by golden parts of an interval that holds the
    best one serves; what it finds is a bound wherever it stops.
    """
    values, vectors = torch.linalg.eigh(-hessians)
    top = values[:, -1].clamp(min=0) + SLACK * torch.linalg.matrix_norm(hessians) + TINY
    weight = (vectors.mT @ slopes[..., None])[..., 0].square()
    size = torch.linalg.vector_norm(slopes, dim=-1)

    def bound(mu: Tensor) -> Tensor:
        return ((weight / (mu[:, None] - values).clamp(min=TINY)).sum(-1) + mu * eps**2) / 2

    low, high = top, top + size / eps
    best = bound(high)
    for _ in range(TRIES):
        one, other = low + 0.382 * (high - low), low + 0.618 * (high - low)
        left, right = bound(one), bound(other)
        best = torch.minimum(best, torch.minimum(left, right))
        low, high = torch.where(left < right, low, one), torch.where(left < right, other, high)
    return best * (1 + SLACK)
