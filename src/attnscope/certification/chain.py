"""A network as a chain of layers that keep the contract: those that declare bounds, and torch's
own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.bounds.near.place import Kept
from attnscope.certification.containers import contained, held
from attnscope.layers import Guided, Layer, OverBall, Recalling, Remainder, torch_layer
from attnscope.norms import SLACK

FARTHEST = 1e6
"""A radius beyond this certifies nothing, and layers are not asked about it."""
NEAREST = 1e-30
"""What layers are asked about where the input provably cannot move, behind a ReLU that is off."""


@final
@dataclass(frozen=True, eq=False)
class Link:
    r"""One layer of the chain, its place in the network and the module that stands there."""

    place: str
    layer: Layer
    module: nn.Module

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
        before: OverBall | None = None,
        known: Kept | None = None,
    ) -> OverBall:
        """What the layer says, checked, with the slack for rounding. `before` is what the layer in
        front of it said, which may hold it to some directions; `known` is what was found at other
        radii around these inputs.
        """
        span = None if before is None else before.span
        with self._named():
            if known is not None and isinstance(self.layer, Recalling):
                found = self.layer.over_known(x, eps, each, span, known)
            elif span is not None and isinstance(self.layer, Guided):
                found = self.layer.over_span(x, eps, each, span)
            else:
                found = self.layer.over(x, eps, each)
        if not isinstance(found, OverBall):
            raise TypeError(
                f"over(x, eps, each) of {self.place} must return an attnscope.layers.OverBall, got"
                f" {type(found).__name__}."
            )
        radius = self._checked(found.radius, tuple(eps.shape), "the radius")
        budget = found.budget
        if budget is not None:
            shape = (len(eps), budget.shape[-1], budget.shape[-1])
            budget = self._checked(budget, shape, "the budget") * (1 + SLACK)
        return dataclasses.replace(found, radius=radius * (1 + SLACK), budget=budget)

    def remainder(self, found: OverBall, gradients: Float[Tensor, "c k ..."]) -> Remainder:
        """The remainder that goes with what `over` found, checked."""
        assert found.remainder is not None
        left, shape = found.remainder(gradients), tuple(gradients.shape[:2])
        if left.form is not None and left.form.shape[:3] != (*shape, left.form.shape[-1]):
            raise ValueError(
                f"the form of the remainder of {self.place} must have shape {(*shape, 'n', 'n')},"
                f" got {tuple(left.form.shape)}."
            )
        if left.whole is None:
            return left
        whole = self._checked(left.whole, shape, "the remainder").clamp(min=0) * (1 + SLACK)
        return dataclasses.replace(left, whole=whole)

    @contextmanager
    def _named(self) -> Iterator[None]:
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
    """Radii that bounds of layers can be asked for, no smaller, and which were too large for that:
    those must not be certified.
    """
    lost = ~(radius < FARTHEST)
    return radius.masked_fill(lost, FARTHEST).clamp(min=NEAREST), lost


def chain(network: nn.Module) -> list[Link]:
    """The layers of a network in order, or a refusal that names the first one without a bound."""
    return [link_of(place, module) for place, module in _parts("", network)]


def _declares(module: nn.Module) -> bool:
    return callable(getattr(module, "over", None))


def _parts(place: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    inner = None if _declares(module) else contained(module)
    if inner is None:
        yield place or "the network", module
        return
    start = place if inner is module else f"{place}.layers".lstrip(".")
    for number, (_, part) in enumerate(held(inner)):
        yield from _parts(f"{start}.{number}".lstrip("."), part)


def link_of(place: str, module: nn.Module) -> Link:
    where = f"layer {place} ({type(module).__name__})"
    layer = module if isinstance(module, Layer) and _declares(module) else torch_layer(module)
    if layer is None:
        raise NoBound(
            f"there is no certificate, because {where} has no bound. Give it a method over(x, eps,"
            " each=None) as attnscope.layers.Layer has it, or use a layer that has one: those of"
            " attnscope.layers, and exactly (no subclass) Linear, Conv2d with zero padding,"
            " AvgPool2d and MaxPool2d without padding, BatchNorm, LayerNorm, RMSNorm, Flatten,"
            " Dropout, ReLU, LeakyReLU, GELU, SiLU, Tanh and Sigmoid of torch, its"
            " TransformerEncoder, and Hugging Face's ViT and DeiT. A network is an nn.Sequential of"
            " such layers, or has them in order in .layers."
        )
    return Link(where, layer, module)
