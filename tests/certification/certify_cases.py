"""Layers with known bounds, some of them wrong on purpose, and the check that every certificate
must pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.attacks.projected import pgd
from attnscope.layers import OverBall, Remainder


class Bowl(nn.Module):
    r"""$x \mapsto (x, -\frac{k}{2}|x|^2)$ on vectors: against $g$ its remainder is exactly
    $\frac{k}{2}\max(0, g_{last})|D|^2$.

    `shrink` scales both declared bounds: below 1 they are wrong.
    """

    def __init__(self, curvature: float, shrink: float = 1.0) -> None:
        super().__init__()
        self.curvature, self.shrink = curvature, shrink

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, -self.curvature / 2 * x.square().sum(-1, keepdim=True)], dim=-1)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        """The last entry moves by at most k(|x| eps + eps^2/2)."""
        size = torch.linalg.vector_norm(x, dim=-1)
        radius = self.shrink * torch.hypot(eps, self.curvature * (size * eps + eps**2 / 2))
        bend = self.shrink * self.curvature / 2

        def remainder(gradients: Tensor) -> Remainder:
            return Remainder(bend * gradients[..., -1].clamp(min=0) * eps**2)

        return OverBall(radius, remainder=remainder)


class Sine(nn.Module):
    """Entrywise sine: 1-Lipschitz. It declares no remainder."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        return OverBall(eps)


def small_network(seed: int, scale: float = 1.5) -> nn.Sequential:
    """Convolution, pooling and linear layers with two kinds of activation, on images of 1 x 6 x 6
    and 4 classes.
    """
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 12),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(12, 4),
    ).double()
    with torch.no_grad():
        for part in network.parameters():
            part.mul_(scale)
    return network.eval()


def broken(
    network: nn.Module, images: Tensor, labels: Tensor, radius: Tensor, steps: int = 60
) -> int:
    """How many images with a positive certified radius an attack within that radius takes from
    their class.
    """
    found = pgd(network, images, labels, radius.clamp(min=1e-9), steps=steps, restarts=3)
    return int((found.succeeded & (radius > 0)).sum())
