"""Attention problems to test on: heads with every part, weighted clouds, and hypothesis strategies
over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from attnscope import Attention, Heads, Particles, variants

Variant = type[Attention]
VARIANTS = variants()


def accepts_mask(variant: Variant) -> bool:
    try:
        variant(heads(0), causal=True)
    except ValueError:
        return False
    return True


def normal(*shape: int, seed: int, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def heads(
    seed: int, dim: int = 2, count: int = 2, head: int = 3, biases: bool = True, size: float = 0.5
) -> Heads:
    """Heads with an output and, unless told otherwise, all four biases."""
    shapes = {
        "query": (count, head, dim),
        "key": (count, head, dim),
        "value": (count, head + 1, dim),
        "output": (count, dim, head + 1),
    }
    if biases:
        shapes |= {
            "query_bias": (count, head),
            "key_bias": (count, head),
            "value_bias": (count, head + 1),
            "output_bias": (dim,),
        }
    return Heads(
        **{
            name: normal(*shape, seed=100 * seed + place, size=size)
            for place, (name, shape) in enumerate(shapes.items())
        }
    )


def cloud(
    seed: int,
    n: int = 5,
    dim: int = 2,
    stack: tuple[int, ...] = (),
    positions: torch.Tensor | None = None,
) -> Particles:
    """A weighted cloud."""
    weights = normal(*stack, n, seed=seed + 7).exp()
    return Particles(
        normal(*stack, n, dim, seed=seed), weights / weights.sum(-1, keepdim=True), positions
    )


class Problem(NamedTuple):
    """Heads, a weighted cloud and queries, each built when asked for."""

    seed: int
    dim: int
    n: int
    m: int
    count: int
    head: int
    biases: bool

    @property
    def heads(self) -> Heads:
        return heads(self.seed, self.dim, self.count, self.head, self.biases)

    @property
    def mu(self) -> Particles:
        return cloud(self.seed + 1, self.n, self.dim)

    @property
    def x(self) -> torch.Tensor:
        return normal(self.m, self.dim, seed=self.seed + 2)


def problems() -> st.SearchStrategy[Problem]:
    """Problems of any small size."""
    sizes = [st.integers(1, most) for most in (3, 6, 4, 3, 3)]
    return st.builds(Problem, st.integers(0, 10_000), *sizes, st.booleans())


def near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Equal shapes, and equal numbers up to a tolerance relative to the largest of them."""
    assert actual.shape == expected.shape
    gap = float((actual - expected).detach().abs().max())
    assert gap <= tolerance * max(1.0, float(expected.detach().abs().max())), (
        f"differs by {gap:.3g}"
    )


def central_difference(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, direction: torch.Tensor
) -> torch.Tensor:
    """The directional derivative to fourth order in a step that drowns the residual of an iterative
    solver.
    """
    step = 1e-3

    def slope(h: float) -> torch.Tensor:
        return (function(x + h * direction) - function(x - h * direction)) / (2 * h)

    return (4 * slope(step / 2) - slope(step)) / 3


def by_hand(
    score_to_row: Callable[[np.ndarray, np.ndarray], np.ndarray],
    parts: Heads,
    mu: Particles,
    x: torch.Tensor,
) -> torch.Tensor:
    """An attention written as plain loops: `score_to_row` turns the scores and masses of one query
    into its row of the coupling.
    """

    def array(tensor: torch.Tensor | None, like: np.ndarray) -> np.ndarray:
        return np.zeros_like(like) if tensor is None else tensor.numpy()

    out = np.zeros(x.shape) + (0.0 if parts.output_bias is None else parts.output_bias.numpy())
    for h in range(parts.count):
        query, key, value = (tensor[h].numpy() for tensor in (parts.query, parts.key, parts.value))
        query_bias = array(None if parts.query_bias is None else parts.query_bias[h], query[:, 0])
        key_bias = array(None if parts.key_bias is None else parts.key_bias[h], key[:, 0])
        value_bias = array(None if parts.value_bias is None else parts.value_bias[h], value[:, 0])
        for i in range(len(x)):
            q = query @ x[i].numpy() + query_bias
            keys = np.array([key @ y.numpy() + key_bias for y in mu.x])
            row = score_to_row(np.array([q, *keys]), mu.weights.numpy())
            read = sum(c * (value @ y.numpy() + value_bias) for c, y in zip(row, mu.x, strict=True))
            out[i] += read if parts.output is None else parts.output[h].numpy() @ read
    return torch.from_numpy(out)


def split(mu: Particles, which: int, share: float) -> Particles:
    """The same measure, one particle written as two at the same place."""
    x = torch.cat([mu.x, mu.x[which : which + 1]])
    weights = torch.cat([mu.weights, mu.weights[which : which + 1] * (1 - share)])
    weights[which] *= share
    positions = (
        None if mu.positions is None else torch.cat([mu.positions, mu.positions[which : which + 1]])
    )
    return Particles(x, weights, positions)


def reordered(mu: Particles, order: list[int]) -> Particles:
    return Particles(
        mu.x[order], mu.weights[order], None if mu.positions is None else mu.positions[order]
    )
