"""Ask theorems: every bound that holds at some places, and the smallest one, head by head.

A head may be served best by one theorem and its neighbour by another. Any choice of a theorem for
each head is a bound, so minima are taken over the heads first and put together afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds.head_norms import LayerNorms, PerHead
from attnscope.bounds.registry import Theorem, theorems

APART = "Heads apart"


def bounds_at(attention: Attention, places: Sequence[Any]) -> Bounds:
    """Every theorem that holds at one of these places as a `Bound`, and the heads apart where
    that is smaller than all of them.
    """
    with torch.no_grad():
        norms, found, single = LayerNorms.of(attention.heads), [], []
        for proved, place in holding(attention, places):
            stated, rounding = _value(proved, attention, place), 1 + _allowance(place)
            if isinstance(stated, Tensor) and stated.ndim == 0:
                value = stated * rounding
            else:
                heads = norms.per_head(stated)
                single.append(PerHead(*(_infinite(part * rounding) for part in heads)))
                value = norms.combine(heads) * rounding
            found.append(bound_of(proved, attention, place, float(_infinite(value))))
        if attention.heads.count > 1 and len(single) > 1:
            apart = float(norms.combine(_smallest(single)))
            if apart < min(bound.value for bound in found):
                found.append(_heads_apart(apart, places))
    return Bounds(found)


def bound_of(proved: Theorem, attention: Attention | None, place: Any, value: float) -> Bound:
    """The value of a theorem as a sentence."""
    masked = attention is not None and attention.causal and proved.causal is None
    assumes = proved.assumes.format(place=place)
    return Bound(
        value,
        "upper",
        "proved",
        proved.name,
        proved.source + ", causal mask" * masked,
        f"{place}, {assumes}" if assumes else str(place),
    )


def lipschitz(attention: Attention, *places: Any) -> Float[Tensor, ""] | None:
    """The smallest proved constant at these places, differentiable in weights and radius; None
    where no theorem holds.

    Each head is differentiated through its best theorem alone: one whose exponential overflows for
    a head would turn the gradient of all into NaN.
    """
    proved = list(holding(attention, places))
    if not proved:
        return None
    with torch.no_grad():
        norms = LayerNorms.of(attention.heads)
        found = [norms.per_head(one(attention, place)) for one, place in proved]
        added, beside = norms.ways(_smallest(found))
        way = 0 if bool(added <= beside) else 1
        best = torch.stack([heads[way] for heads in found]).argmin(0).tolist()
    chosen: list[Tensor] = [torch.empty(0)] * attention.heads.count
    for number in sorted(set(best)):
        which = [head for head, winner in enumerate(best) if winner == number]
        part = replace(attention, heads=attention.heads.select(*which))
        one, place = proved[number]
        values = LayerNorms.of(part.heads).per_head(one(part, place.only(which)))[way]
        for head, value in zip(which, values.unbind(-1), strict=True):
            chosen[head] = value
    heads = PerHead(torch.stack(chosen), torch.stack(chosen))
    return LayerNorms.of(attention.heads).ways(heads)[way]


def holding(attention: Attention, places: Sequence[Any]) -> Iterator[tuple[Theorem, Any]]:
    """Every theorem that holds at one of these places, with the place."""
    for place in places:
        for proved in theorems(attention, place):
            yield proved, place


def _value(proved: Theorem, attention: Attention, place: Any) -> Any:
    """What a theorem states; infinity where its arithmetic leaves the range of floating point,
    which bounds everything.
    """
    try:
        return proved(attention, place)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return torch.tensor(torch.inf, dtype=torch.float64, device=attention.heads.query.device)


def _infinite(value: Float[Tensor, "*at"]) -> Float[Tensor, "*at"]:
    """Infinity for what overflowed to NaN."""
    return torch.where(value.isnan(), torch.inf, value)


def _smallest(several: list[PerHead]) -> PerHead:
    return PerHead(*(torch.stack(parts).amin(0) for parts in zip(*several, strict=True)))


def _allowance(place: Any) -> float:
    """What the rounding of the scores adds at a measure."""
    return getattr(place, "allowance", 0.0)


def _heads_apart(value: float, places: Sequence[Any]) -> Bound:
    assumes = "; ".join(dict.fromkeys(str(place) for place in places))
    return Bound(value, "upper", "proved", APART, "the best theorem for each head", assumes)
