"""Stacks of every attention for which a contraction is proved, and tokens that they move far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope import L2, Attention, Heads, Sigmoid, Sinkhorn, Softmax
from attnscope.nets.invertible import Invertible

DIM = 4


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _heads(g: torch.Generator, h: int = 2, **more: Any) -> Heads:
    parts = (
        _normal(g, h, 2, DIM) / 2,
        _normal(g, h, 2, DIM) / 2,
        _normal(g, h, 3, DIM),
        _normal(g, h, DIM, 3),
    )
    biases = _normal(g, h, 2) / 4, _normal(g, h, 2) / 4, _normal(g, h, 3) / 4, _normal(g, DIM) / 4
    return Heads(*parts, *biases, **more)


def _single(g: torch.Generator) -> Heads:
    return Heads.from_matrices(_normal(g, DIM, DIM) / 4, _normal(g, DIM, DIM))


def _tied(g: torch.Generator, h: int = 2, k: int = 3) -> Heads:
    query = _normal(g, h, k, DIM) / 2
    return Heads(query, query, _normal(g, h, DIM, k) @ query, value_bias=_normal(g, h, DIM) / 4)


MAKERS: dict[str, Callable[[torch.Generator], Attention]] = {
    "softmax": lambda g: Softmax(_heads(g)),
    "softmax, one head": lambda g: Softmax(_single(g)),
    "causal softmax": lambda g: Softmax(_heads(g), causal=True),
    "causal softmax, one head": lambda g: Softmax(_single(g), causal=True),
    "rotary softmax": lambda g: Softmax(
        _heads(g, rotary=torch.tensor([0.7], dtype=torch.float64)), causal=True
    ),
    "softmax with position bias": lambda g: Softmax(_heads(g, position_bias=_normal(g, 2, 9, 9))),
    "sigmoid": lambda g: Sigmoid(_heads(g), bias=-0.5),
    "causal sigmoid": lambda g: Sigmoid(_heads(g), causal=True),
    "sigmoid sum": lambda g: Sigmoid(_heads(g), tokens=8),
    "tied l2": lambda g: L2(_tied(g)),
    "causal tied l2": lambda g: L2(_tied(g), causal=True),
    "l2": lambda g: L2(_heads(g, scale=0.1)),
    "causal l2": lambda g: L2(_heads(g, scale=0.1), causal=True),
    "sinkhorn": lambda g: Sinkhorn(_heads(g), tolerance=1e-14),
}


def stack(
    name: str,
    depth: int = 3,
    seed: int = 0,
    radius: float | None = 1.0,
    contraction: float = 0.9,
    **more: Any,
) -> Invertible:
    """Random layers for up to 8 tokens; tied L2 attention on the whole space unless it is
    squashed.
    """
    generator = torch.Generator().manual_seed(seed)
    radius = None if "tied" in name and not more.get("squash") else radius
    return Invertible(
        [MAKERS[name](generator) for _ in range(depth)], 8, radius, contraction, **more
    )


def tokens(*shape: int, seed: int = 1, radius: float = 1.0) -> Tensor:
    """In the ball and on one side of it, some on its surface: their mean is not near zero, so
    attention moves them.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.normalize(_normal(generator, *shape, DIM) + 1.0, dim=-1)
    length = torch.rand(*shape, 1, dtype=torch.float64, generator=generator)
    return radius * x * torch.where(length > 0.7, 1.0, length)
