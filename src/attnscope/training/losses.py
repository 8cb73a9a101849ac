r"""Three losses, each a cross entropy in which the true logit is lowered by what the one before
left out.

With the margin $m$ of the label over the strongest other class and its gradient $g$ at the image,
the true logit is lowered by

- "margin": nothing: only the margin at the image itself counts;
- "gradient": $\epsilon\|g\|$, the first-order part of what a perturbation can take from the margin.
  One backward pass through a backward pass. It leaves content attention alive, since nothing in it
  grows with the norm of A;
- "certified": all of the certified decrease, $\epsilon\|g\|$ and the remainders of the layers;
  those are costly, so they are worked out for the first few images of a batch and the rest take the
  gradient's part alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.layers import affine
from attnscope.nets import Transformer

LOSSES = ("margin", "gradient", "certified")
WHOLE = 4
"""Images of a batch whose remainders are worked out by the certified loss."""


class Graded(NamedTuple):
    """A loss to descend and what it saw: margins of the batch, and by how much the first order can
    lower them.
    """

    loss: Float[Tensor, ""]
    margins: Float[Tensor, " b"]
    lowered: Float[Tensor, " b"]


def graded(
    name: str,
    network: Transformer,
    x: Float[Tensor, "b C H W"],
    labels: Int[Tensor, " b"],
    eps: float,
) -> Graded:
    """The loss of this name on a batch."""
    if name == "margin":
        logits = network(x)
        margins = _margins(logits, labels)
        return Graded(
            F.cross_entropy(logits, labels), margins.detach(), torch.zeros_like(margins.detach())
        )
    values = [x.detach().requires_grad_()]
    for layer in network.layers:
        values.append(layer(values[-1]))
    logits = values[-1]
    margins = _margins(logits, labels)
    slopes = torch.autograd.grad(
        margins.sum(), values[:-1] if name == "certified" else values[:1], create_graph=True
    )
    lowered = eps * (slopes[0].flatten(1).square().sum(1) + 1e-12).sqrt()
    total = lowered
    if name == "certified":
        curved = _remainders(
            network.layers,
            [value[:WHOLE] for value in values],
            [slope[:WHOLE] for slope in slopes],
            eps,
        )
        total = lowered + F.pad(curved.to(lowered.dtype), (0, len(lowered) - len(curved)))
    shifted = logits - F.one_hot(labels, logits.shape[-1]) * total[:, None]
    return Graded(F.cross_entropy(shifted, labels), margins.detach(), lowered.detach())


def _margins(logits: Float[Tensor, "b classes"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """The label's logit above the largest other one."""
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return own[:, 0] - others.amax(1)


def _remainders(
    layers: Iterable[Any], values: list[Tensor], slopes: list[Tensor], eps: float
) -> Float[Tensor, " b"]:
    r"""$\sum_l r_l$ of the margin whose gradients are given, in radii that grow layer by layer."""
    radius = torch.full_like(values[0][:, 0, 0, 0], eps, dtype=torch.float64)
    total = torch.zeros_like(radius)
    for layer, x, slope in zip(
        layers, values, slopes[1:], strict=False
    ):  # up to the head, which is linear
        found = layer.over(x, radius)
        if found.remainder is not affine:
            total = total + found.remainder(slope[None]).within(radius)[0]
        radius = found.radius
    return total
