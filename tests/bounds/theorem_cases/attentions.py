"""Attentions of every kind that a theorem may speak of, and what they do when they are scaled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch
from bound_cases import ascend, local_constant
from torch import Tensor

from attnscope import Attention, Heads, Particles, Sigmoid
from attnscope.attention import variants
from attnscope.bounds import Theorem

WHERE: tuple[type, ...] = ()
D = 2
KINDS = ("one head", "two heads", "biased", "tied", "rotary", "placed")
MOST = 6


def every(theorem: Theorem) -> Iterator[Attention]:
    """Attention of each kind that the theorem allows, masked and not."""
    for variant in variants().values():
        if not issubclass(variant, theorem.variants):
            continue
        for kind in KINDS:
            for causal in (False, True):
                made = _made(variant, kind, causal)
                if made is not None and theorem.covers(made):
                    yield made
        if issubclass(variant, Sigmoid):
            yield _summed()


@functools.cache
def _made(variant: type[Attention], kind: str, causal: bool) -> Attention | None:
    try:
        made = variant(_heads(kind, 17 * KINDS.index(kind) + causal), causal=causal)
        made.push(Particles(torch.zeros(2, D, dtype=torch.float64)))
    except ValueError:  # Sinkhorn attention has no mask and takes no position bias
        return None
    return made


@functools.cache
def _summed() -> Attention:
    return Sigmoid(_heads("biased", 99), bias=-1.0, tokens=4)


def _heads(kind: str, seed: int) -> Heads:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return 0.6 * torch.randn(*shape, generator=g, dtype=torch.float64)

    h = 1 if kind == "one head" else 2
    parts = {"query": normal(h, 2, D), "key": normal(h, 2, D), "value": normal(h, 3, D)}
    parts["output"] = normal(h, D, 3)
    if kind in ("biased", "tied", "rotary"):
        parts |= {"query_bias": normal(h, 2), "key_bias": normal(h, 2), "value_bias": normal(h, 3)}
        parts["output_bias"] = normal(D)
    if kind == "tied":
        parts |= {"key": parts["query"], "key_bias": parts["query_bias"]}
        parts["value"] = normal(h, 3, 2) @ parts["query"]
    if kind == "rotary":
        parts["rotary"] = normal(1)
    if kind == "placed":
        parts["position_bias"] = normal(h, MOST, MOST)
    return Heads(**parts)


def scaled(attention: Attention, s: Tensor) -> Attention:
    """The same with other weights, moved by the number s near 1 as all theorems allow."""
    heads = attention.heads
    parts = {field.name: getattr(heads, field.name) for field in dataclasses.fields(heads)}
    parts |= {"query": s * heads.query, "value": s**2 * heads.value}
    parts["key"] = s * heads.key if torch.equal(heads.query, heads.key) else heads.key
    return dataclasses.replace(attention, heads=Heads(**parts))


@functools.cache
def worst(attention: Attention, n: int, radius: float | None, rare: bool) -> Particles:
    """The input with the largest local constant that random draws and ascent find."""
    weights = lopsided(n) if rare else None
    g = torch.Generator().manual_seed(n)
    size = radius or 3.0
    starts = [
        Particles(inside(size * torch.randn(n, D, generator=g, dtype=torch.float64), size), weights)
        for _ in range(2)
    ]
    best = max(starts, key=lambda mu: float(local_constant(attention, mu)))
    climbed = ascend(lambda x: local_constant(attention, best.at(x)), best.x, radius, steps=6)
    return best.at(climbed)


def inside(x: Tensor, radius: float) -> Tensor:
    return x * (radius / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).clamp(max=1)


def lopsided(n: int) -> Tensor:
    """Weights of which one is rare."""
    weights = torch.ones(n, dtype=torch.float64)
    weights[0] = 0.05
    return weights / weights.sum()
