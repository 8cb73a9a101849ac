"""A network as a chain of layers with bounds: those that declare them, and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.certification.rules import Affine, rule
from attnscope.nets import LinearLayer
from attnscope.norms import SLACK

FARTHEST = 1e6
"""A radius beyond this certifies nothing, and layers are not asked about it."""


@final
@dataclass(frozen=True, eq=False)
class Layer:
    r"""One map of the chain with its place in the network.

    `sensitivity(x, eps)` bounds $\|F(x') - F(x)\|$ over $\|x' - x\| \le$ eps. `remainder(x, eps,
    g)`, where there is one, bounds $-\langle g, F(x') - F(x) - DF(x)(x' - x)\rangle$ for several g
    at once. Norms are Frobenius norms of one image's tensor.
    """

    place: str
    apply: Callable[[Tensor], Tensor]
    bounds: Any
    affine: bool

    def sensitivity(
        self, x: Float[Tensor, "k ..."], eps: Float[Tensor, " k"]
    ) -> Float[Tensor, " k"]:
        with self.named():
            found = self.bounds.sensitivity(x, eps)
        return self._checked(found, tuple(eps.shape), "sensitivity") * (1 + SLACK)

    def remainder(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        gradient: Float[Tensor, "c k ..."],
    ) -> Float[Tensor, "c k"] | None:
        """None when the layer has none."""
        if not hasattr(self.bounds, "remainder"):
            return None
        try:
            found = self.bounds.remainder(x, eps, gradient)
        except NoBound:
            return None
        return self._checked(found, tuple(gradient.shape[:2]), "remainder").clamp(min=0) * (
            1 + SLACK
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """A refusal from inside says which layer it is about."""
        try:
            yield
        except NoBound as missing:
            raise NoBound(
                f"there is no certificate, because {self.place} has no bound: {missing}"
            ) from missing

    def _checked(self, found: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
        if tuple(found.shape) != shape or (found != found).any():
            raise ValueError(
                f"{what} of {self.place} must be {shape} numbers, got shape {tuple(found.shape)} or"
                " NaN."
            )
        return found


def within_reach(radius: Float[Tensor, " k"]) -> tuple[Float[Tensor, " k"], Bool[Tensor, " k"]]:
    """Radii that bounds of layers can be asked for, and which were too large for that: those must
    not be certified.
    """
    lost = ~(radius < FARTHEST)
    return radius.masked_fill(lost, FARTHEST), lost


def chain(network: nn.Module) -> list[Layer]:
    """The layers of a network in order, or a refusal that names the first one without a bound."""
    return [_layer(place, module) for place, module in _parts("", network)]


def _parts(place: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    inner = getattr(module, "layers", None)
    if not hasattr(module, "sensitivity") and isinstance(inner, nn.Sequential | nn.ModuleList):
        yield from _parts(f"{place}.layers" if place else "layers", nn.Sequential(*inner))
    elif isinstance(module, nn.Sequential) and not hasattr(module, "sensitivity"):
        for number, part in enumerate(module):
            yield from _parts(f"{place}.{number}" if place else str(number), part)
    else:
        yield place or "the network", module


def _layer(place: str, module: nn.Module) -> Layer:
    where = f"layer {place} ({type(module).__name__})"
    if callable(getattr(module, "sensitivity", None)):
        return Layer(where, module, module, isinstance(module, LinearLayer))
    found = rule(module)
    if found is None:
        raise NoBound(
            f"there is no certificate, because {where} has no bound. Give it a method"
            " sensitivity(x, eps), or use a layer that has one: those of attnscope.nets, and"
            " Linear, Conv2d with zero padding, AvgPool2d without padding, Flatten, Dropout, ReLU,"
            " LeakyReLU, Tanh and Sigmoid of torch. A network is an nn.Sequential of such layers,"
            " or has them in order in .layers."
        )
    return Layer(where, module, found, isinstance(found, Affine))
