r"""Bounds of torch's own layers: affine maps by a norm that is never too small, activations by
their slope and curvature.

An affine map has no Taylor remainder. For an activation $a$ applied to each entry, $-\langle g,
R\rangle = -\sum_i g_i\rho_i(t_i)$ with $\rho_i(t) = a(u_i + t) - a(u_i) - a'(u_i)t$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.norms import SLACK, spectral

MOST_FREQUENCIES = 2**24
"""Entries of the Fourier transform of a convolution above which the coarser bound serves alone."""


@final
@dataclass(frozen=True, eq=False)
class Affine:
    """A map with $\\|F(x') - F(x)\\| \\le$ norm(x) $\\|x' - x\\|$ and no remainder; the norm may
    depend on the shape of x.
    """

    norm: Callable[[Tensor], float]

    def sensitivity(
        self, x: Float[Tensor, "k ..."], eps: Float[Tensor, " k"]
    ) -> Float[Tensor, " k"]:
        return self.norm(x) * eps

    def remainder(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        gradient: Float[Tensor, "c k ..."],
    ) -> Float[Tensor, "c k"]:
        return eps.new_zeros(gradient.shape[:2])


@final
@dataclass(frozen=True)
class Kinked:
    r"""$a(u) = u$ above 0 and slope times u below: ReLU and its leaky form."""

    slope: float

    def sensitivity(
        self, x: Float[Tensor, "k ..."], eps: Float[Tensor, " k"]
    ) -> Float[Tensor, " k"]:
        return max(1.0, abs(self.slope)) * eps

    def remainder(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        gradient: Float[Tensor, "c k ..."],
    ) -> Float[Tensor, "c k"]:
        r"""$\rho = (1 - s)(|t| - |u|)_+$ at most. With $c_i = \max(0, -(1 - s)g_i)$ and any $\tau$:

        $\varepsilon (\sum_{|u_i| < \tau} c_i^2)^{1/2} + \frac{\varepsilon^2}{2} \max_{|u_i| \ge
        \tau} c_i\kappa_i$, where $2(|t| - |u|)/t^2 \le \kappa$ for $|t| \le \varepsilon$: $\kappa =
        1/(2|u|)$ up to $|u| = \varepsilon/2$, then $2(\varepsilon - |u|)_+/\varepsilon^2$.
        """
        reach, size = eps[:, None], x.flatten(1).abs()
        weight = ((self.slope - 1) * gradient.flatten(2)).clamp(min=0)
        kappa = torch.where(
            size < reach / 2, 0.5 / size, 2 * (reach - size).clamp(min=0) / reach.square()
        )
        found = torch.full_like(weight[..., 0], float("inf"))
        for part in (0.0, 0.0625, 0.25, 0.5, 1.0):
            near = size < part * reach
            linear = torch.where(near, weight, 0.0).square().sum(-1).sqrt()
            curved = torch.where(near | (weight == 0), 0.0, weight * kappa).amax(-1)
            found = torch.minimum(found, eps * linear + eps.square() / 2 * curved)
        return found


@final
@dataclass(frozen=True)
class Smooth:
    r"""$|a'| \le$ slope and $|a''| \le$ curvature everywhere, so $|\rho| \le \frac12$ curvature
    $t^2$.
    """

    slope: float
    curvature: float

    def sensitivity(
        self, x: Float[Tensor, "k ..."], eps: Float[Tensor, " k"]
    ) -> Float[Tensor, " k"]:
        return self.slope * eps

    def remainder(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        gradient: Float[Tensor, "c k ..."],
    ) -> Float[Tensor, "c k"]:
        return self.curvature / 2 * eps.square() * gradient.flatten(2).abs().amax(-1)


Rule = Affine | Kinked | Smooth


def rule(module: nn.Module) -> Rule | None:
    """The bounds of one of torch's own layers in float64, or None when there are none here."""
    kind = type(module)
    if kind in (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout2d):
        return Affine(lambda x: 1.0)
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        norm = float(spectral(module.weight.detach()))
        return Affine(lambda x: norm)
    if isinstance(module, nn.Conv2d) and kind is nn.Conv2d and module.padding_mode == "zeros":
        return Affine(_ConvolutionNorm(module))
    if (
        isinstance(module, nn.AvgPool2d)
        and kind is nn.AvgPool2d
        and not module.ceil_mode
        and module.padding in (0, (0, 0))
        and module.divisor_override is None
    ):
        pooled = _pooling_norm(module)
        return Affine(lambda x: pooled)
    if kind is nn.ReLU:
        return Kinked(0.0)
    if isinstance(module, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return Kinked(module.negative_slope)
    if kind is nn.Tanh:
        return Smooth(1.0, 4 / (3 * math.sqrt(3)) * (1 + SLACK))
    if kind is nn.Sigmoid:
        return Smooth(0.25, 1 / (6 * math.sqrt(3)) * (1 + SLACK))
    return None


class _ConvolutionNorm:
    """A norm of a zero-padded convolution that is never too small, remembered for each size of
    image.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer
        self.known: dict[tuple[int, int], float] = {}
        grouped = layer.weight.detach()
        self.kernel = grouped.reshape(layer.groups, -1, *grouped.shape[1:])

    def __call__(self, x: Float[Tensor, "k c height width"]) -> float:
        size = (x.shape[-2], x.shape[-1])
        if size not in self.known:
            self.known[size] = min(self._by_windows(), self._by_frequencies(size))
        return self.known[size]

    def _by_windows(self) -> float:
        """The norm of the kernel as a matrix times the root of the number of windows that read one
        pixel; exact when it is 1.
        """
        windows = 1
        for size, stride, dilation in zip(
            self.layer.kernel_size, self.layer.stride, self.layer.dilation, strict=True
        ):
            windows *= -(-size // (stride // math.gcd(stride, dilation)))
        return float(spectral(self.kernel.flatten(2)).max()) * math.sqrt(windows) * (1 + SLACK)

    def _by_frequencies(self, size: tuple[int, int]) -> float:
        """On a torus too large for the kernel to wrap around, the convolution is a part of a
        circular one, which Fourier decouples.
        """
        spread = [
            s * (k - 1) for s, k in zip(self.layer.dilation, self.layer.kernel_size, strict=True)
        ]
        torus = [length + extra for length, extra in zip(size, spread, strict=True)]
        if self.kernel[:, :, :, 0, 0].numel() * torus[0] * torus[1] > MOST_FREQUENCIES:
            return math.inf
        spaced = self.kernel.new_zeros(*self.kernel.shape[:3], spread[0] + 1, spread[1] + 1)
        spaced[..., :: self.layer.dilation[0], :: self.layer.dilation[1]] = self.kernel
        blocks = torch.fft.rfft2(spaced, s=torus).permute(0, 3, 4, 1, 2)
        return float(torch.linalg.matrix_norm(blocks, 2).max()) * (1 + SLACK)


def _pooling_norm(module: nn.AvgPool2d) -> float:
    """Rows of an average sum to 1, columns to the number of windows over the size of one: Schur's
    test.
    """
    size, stride = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (module.kernel_size, module.stride)
    )
    windows = math.prod(-(-k // s) for k, s in zip(size, stride, strict=True))
    return math.sqrt(windows / math.prod(size)) * (1 + SLACK)
