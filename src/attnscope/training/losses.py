r"""Three losses, each a cross entropy in which the true logit is lowered by what the one before
left out.

With the margin $m$ of the label over the strongest other class and its gradient $g$ at the image,
the true logit is lowered by

- "margin": nothing: only the margin at the image itself counts;
- "gradient": $\epsilon\|g\|$, the first-order part of what a perturbation can take from the margin.
  One backward pass through a backward pass. It leaves content attention alive, since nothing in it
  grows with the norm of A;
- "certified": all of a proved decrease, $\epsilon\|g\|$ and the remainders of the layers, in radii
  that grow by the budgets of tokens. Those are worked out for the first few images of a batch, and
  the rest take the gradient's part and the mean of the remainders.

`earned` margins take no more from an image than it has, as EMMA does class by class [hu23]: the
radius is $\min(\epsilon, m/\|g\|)$, so that an image that is misread is first read rightly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.layers import OverBall, affine
from attnscope.layers.attention import ResidualAttention
from attnscope.nets import Transformer

LOSSES = ("margin", "gradient", "certified")
MARGINS = ("fixed", "earned")
WHOLE = 16
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
    margins: str = "fixed",
) -> Graded:
    """The loss of this name on a batch; at eps = 0 all three are the first."""
    if name == "margin" or eps == 0:
        logits = network(x)
        found = _margins(logits, labels).detach()
        return Graded(F.cross_entropy(logits, labels), found, torch.zeros_like(found))
    values = [x.detach().requires_grad_()]
    for layer in network.layers:
        values.append(layer(values[-1]))
    logits = values[-1]
    found = _margins(logits, labels)
    slopes = torch.autograd.grad(
        found.sum(), values[:-1] if name == "certified" else values[:1], create_graph=True
    )
    slope = (slopes[0].flatten(1).square().sum(1) + 1e-12).sqrt()
    taken = slope * (eps if margins == "fixed" else _earned(found, slope, eps))
    if name == "certified":
        some = [value[:WHOLE] for value in values], [one[:WHOLE] for one in slopes]
        curved = _remainders(network.layers, *some, eps).to(taken.dtype)
        taken = taken + torch.cat([curved, curved.mean().expand(len(taken) - len(curved))])
    shifted = logits - F.one_hot(labels, logits.shape[-1]) * taken[:, None]
    return Graded(F.cross_entropy(shifted, labels), found.detach(), (eps * slope).detach())


def _margins(logits: Float[Tensor, "b classes"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """The label's logit above the largest other one."""
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return own[:, 0] - others.amax(1)


def _earned(
    margins: Float[Tensor, " b"], slope: Float[Tensor, " b"], eps: float
) -> Float[Tensor, " b"]:
    """The radius that the first order leaves to each image, at most eps; a constant for the
    descent.
    """
    return (margins / slope).detach().clamp(0, eps)


def _remainders(
    layers: Iterable[Any], values: list[Tensor], slopes: list[Tensor], eps: float
) -> Float[Tensor, " b"]:
    r"""$\sum_l r_l$ of the margin whose gradients are given, in radii that grow layer by layer."""
    radius = torch.full_like(values[0][:, 0, 0, 0], eps, dtype=torch.float64)
    total = torch.zeros_like(radius)
    for layer, x, slope in zip(
        layers, values, slopes[1:], strict=False
    ):  # up to the head, which is linear
        found = _over(layer, x, radius)
        assert found.remainder is not None  # every layer of ours has one
        if found.remainder is not affine:
            total = total + found.remainder(slope[None]).within(radius)[0]
        radius = found.radius
    return total


def _over(layer: Any, x: Tensor, radius: Float[Tensor, " b"]) -> OverBall:
    """What the layer does over the ball, by tokens: the sharper answers cost too much for a
    step.
    """
    if isinstance(layer, ResidualAttention):
        return layer.by_budgets(x, radius)
    found: OverBall = layer.over(x, radius, radius[:, None].expand(x.shape[:2]))
    return found
