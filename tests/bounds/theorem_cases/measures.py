"""At a measure: the local constant there, by a dense Jacobian."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from bound_cases import local_constant
from torch import Tensor

from attnscope import Attention, Particles
from attnscope.bounds import At, BlockNorms, Blocks, LayerNorms, Theorem
from theorem_cases import Case
from theorem_cases.attentions import every, scaled, worst

WHERE = (At, Blocks)


def cases(theorem: Theorem) -> Iterator[Case]:
    for attention in every(theorem):
        for n, radius, rare in ((4, 0.7, False), (3, 1.0, True)):
            mu = worst(attention, n, radius, rare)
            for place in places(theorem, attention, mu):
                yield Case(
                    f"{theorem.name} at {n} tokens, {attention}",
                    float(value(theorem, attention, place)) * (1 + place.allowance),
                    float(local_constant(attention, mu)),
                    along(theorem, attention, mu) if theorem.differentiable else None,
                )


def places(theorem: Theorem, attention: Attention, mu: Particles) -> Iterator[At | Blocks]:
    """The places at this measure where the theorem speaks."""
    at = At.of(attention, mu)
    if theorem.where is At:
        yield from [at] if theorem.holds(attention, at) else []
        return
    for effort in ("exact", "factors", "triangle"):
        place = Blocks(at, effort)  # type: ignore[arg-type]
        if theorem.holds(attention, place):
            layer = BlockNorms(attention, [mu]) if effort == "factors" else None  # type: ignore[arg-type]
            yield Blocks(at, effort, layer)  # type: ignore[arg-type]


def value(theorem: Theorem, attention: Attention, place: At | Blocks) -> Tensor:
    stated = theorem(attention, place)
    if isinstance(stated, Tensor) and stated.ndim == 0:
        return stated
    return LayerNorms.of(attention.heads).combine(stated)


def along(theorem: Theorem, attention: Attention, mu: Particles):  # type: ignore[no-untyped-def]
    def slope(s: Tensor) -> Tensor:
        moved = scaled(attention, s)
        (place,) = places(theorem, moved, mu.at(s * mu.x))
        return value(theorem, moved, place)

    assert torch.is_grad_enabled()
    return slope
