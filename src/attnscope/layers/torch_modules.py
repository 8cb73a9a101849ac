r"""Rules for torch's own modules: each becomes a layer that keeps the contract.

Affine maps by a norm that is never too small, activations by their slope and curvature. A rule
holds for its exact type only: a subclass may compute anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers.activations import LeakyReLU, ReLU
from attnscope.layers.contract import Layer, OverBall, affine, same
from attnscope.layers.norms import LayerNorm, RMSNorm
from attnscope.layers.pooling import MaxPool
from attnscope.layers.smooth import GELU, Sigmoid, SiLU, Tanh, TanhGELU
from attnscope.norms import SLACK, spectral

MOST_FREQUENCIES = 2**24
"""Entries of the Fourier transform of a convolution above which the coarser bound serves alone."""


@final
class Affine:
    """One of torch's affine modules. Its norm may depend on the shape of the input; `tokenwise`
    ones take each token of (k, n, d) by itself.
    """

    def __init__(
        self, module: nn.Module, norm: Callable[[Tensor], float], tokenwise: bool = False
    ) -> None:
        self.module, self.norm, self.tokenwise = module, norm, tokenwise

    def __call__(self, x: Tensor) -> Tensor:
        made: Tensor = self.module(x)
        return made

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        norm = self.norm(x)
        budget = norm * same(x) if self.tokenwise and x.ndim == 3 else None
        return OverBall(norm * eps, budget, affine, "spectral norm")


def torch_layer(module: nn.Module) -> Layer | None:
    """One of torch's own modules, in float64, as a layer; None when there is no rule for it.

    >>> torch_layer(nn.Tanh()).over(torch.zeros(1, 3), torch.tensor([0.1])).radius
    tensor([0.1000])
    """
    kind = type(module)
    if kind in (nn.Flatten, nn.Unflatten):
        return Affine(module, lambda x: 1.0)
    if kind in (nn.Identity, nn.Dropout, nn.Dropout2d):
        return Affine(module, lambda x: 1.0, tokenwise=True)
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        norm = float(spectral(module.weight.detach()))
        return Affine(module, lambda x: norm, tokenwise=True)
    if isinstance(module, nn.Conv2d) and kind is nn.Conv2d and module.padding_mode == "zeros":
        return Affine(module, _ConvolutionNorm(module))
    if (
        isinstance(module, nn.AvgPool2d)
        and kind is nn.AvgPool2d
        and not module.ceil_mode
        and module.padding in (0, (0, 0))
        and module.divisor_override is None
    ):
        pooled = _pooling_norm(module)
        return Affine(module, lambda x: pooled)
    if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) and kind in (
        nn.BatchNorm1d,
        nn.BatchNorm2d,
    ):
        return _batch_norm(module)
    if isinstance(module, nn.MaxPool2d) and kind is nn.MaxPool2d:
        return _max_pool(module)
    if isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm:
        return LayerNorm(module)
    if isinstance(module, nn.RMSNorm) and kind is nn.RMSNorm:
        return RMSNorm(module)
    return _activation(module)


def _activation(module: nn.Module) -> Layer | None:
    kind = type(module)
    if isinstance(module, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return LeakyReLU(module.negative_slope)
    if isinstance(module, nn.GELU) and kind is nn.GELU:
        return GELU() if module.approximate == "none" else TanhGELU()
    plain: dict[type, Callable[[], Layer]] = {
        nn.ReLU: ReLU,
        nn.Tanh: Tanh,
        nn.Sigmoid: Sigmoid,
        nn.SiLU: SiLU,
    }
    return plain[kind]() if kind in plain else None


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> Layer | None:
    """In evaluation mode a factor for each channel; without kept statistics it mixes images."""
    if module.running_var is None or module.training:
        return None
    factor = (module.running_var.double() + module.eps).rsqrt()
    factor = factor if module.weight is None else factor * module.weight.detach().double()
    norm = float(factor.abs().amax()) * (1 + SLACK)
    return Affine(module, lambda x: norm)


def _max_pool(module: nn.MaxPool2d) -> Layer | None:
    plain = not module.ceil_mode and module.padding in (0, (0, 0))
    if not plain or module.dilation not in (1, (1, 1)) or module.return_indices:
        return None
    size, stride = _pair(module.kernel_size), _pair(module.stride)
    return MaxPool(size, stride)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


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
