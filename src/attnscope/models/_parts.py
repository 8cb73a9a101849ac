"""A part of a layer, run by the layer itself from one point to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from attnscope.models._anatomy import Anatomy
from attnscope.models._points import Inject, Point, between

Part = Literal["attention", "norm+attention", "residual", "mlp", "block"]
PARTS: tuple[Part, ...] = get_args(Part)


def check_part(part: object) -> None:
    """Refuse a part that does not exist."""
    if part not in PARTS:
        raise ValueError(
            f"part must be one of {', '.join(repr(name) for name in PARTS)}, got {part!r}."
        )


@dataclass(frozen=True, eq=False)
class Running:
    """One layer as it runs on n tokens: `run` calls it with its mask and angles."""

    name: str
    block: nn.Module
    run: Callable[[Tensor], Tensor]
    anatomy: Anatomy

    def apply(self, part: Part, x: Tensor) -> Tensor:
        """The part at its own input point x."""
        if part == "block":
            return self.run(x)
        self.check(part)
        seen = self.anatomy
        if part == "attention":
            return self._one(x, seen.reads, seen.attended)
        if part == "mlp":
            return self._mlp(x)
        if part == "residual":
            return self._residual(x)
        if seen.post_norm and seen.middle is not None:
            return self._one(x, None, replace(seen.middle, end="out"))
        if seen.scaled:
            return self._residual(x) - x
        return self._one(x, None, seen.added)

    def entry(self, part: Part, x: Tensor) -> Tensor:
        """The input point of a part when the layer reads x."""
        if part in ("block", "residual", "norm+attention"):
            return x
        self.check(part)
        seen = self.anatomy
        if part == "attention":
            return x if seen.reads is None else self._one(x, None, seen.reads)
        if seen.parallel or seen.middle is None:
            return x
        return self._one(x, None, self._mlp_start(seen.middle))

    def check(self, part: Part) -> None:
        """Refuse a part that this layer does not have."""
        seen = self.anatomy
        if seen.core is None:
            raise ValueError(
                f'{self.name} has no attention, so it has no part {part!r}: use part="block".'
            )
        if seen.attended is None:
            raise ValueError(
                f'the attention of {self.name} cannot be told apart: use part="block".'
            )
        if part == "attention":
            return
        if part == "mlp" and (seen.mixed or (seen.middle is None and not seen.parallel)):
            raise ValueError(
                f'the MLP of {self.name} cannot be told apart ({seen.mixed}): use part="block".'
            )
        if part in ("residual", "norm+attention") and seen.added is None:
            raise ValueError(
                f"the residual of {self.name} cannot be told apart ({seen.mixed}): use"
                ' part="attention" or part="block".'
            )
        if part == "norm+attention" and seen.reads is None and not (seen.post_norm or seen.normed):
            raise ValueError(f'{self.name} has no norm beside its attention: use part="attention".')

    def _residual(self, x: Tensor) -> Tensor:
        seen = self.anatomy
        if seen.middle is not None:
            return self._one(x, None, seen.middle)
        return x + self._one(x, None, seen.added) if seen.parallel else self.run(x)

    def _mlp(self, x: Tensor) -> Tensor:
        seen = self.anatomy
        if seen.parallel or seen.middle is None:
            assert seen.added is not None
            return between(self.block, self.run, x, Inject(seen.added, 0 * x), (None,))[0] - x
        start, away = self._mlp_start(seen.middle), elsewhere(x)
        if seen.post_norm:
            (end,) = between(self.block, self.run, away, Inject(start, x), (seen.last,))
            return end - x
        came, end = between(self.block, self.run, away, Inject(start, x), (start, None))
        return end - came

    def _mlp_start(self, middle: Point) -> Point:
        return replace(middle, end="out") if self.anatomy.post_norm else middle

    def _one(self, x: Tensor, start: Point | None, end: Point | None) -> Tensor:
        if start is None:
            return between(self.block, self.run, x, None, (end,))[0]
        return between(self.block, self.run, elsewhere(x), Inject(start, x), (end,))[0]


def elsewhere(x: Tensor) -> Tensor:
    """Tokens for the layer to read where the part begins further inside; they change nothing."""
    ramp = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    return ramp.expand(x.shape).contiguous()
