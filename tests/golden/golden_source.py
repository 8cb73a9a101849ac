"""Random numbers that are the same on every machine, and attention of every shape."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import torch
from torch import Tensor

import attnscope as asc

Kind = Literal["bound", "lower", "certificate", "constant"]
Value = float | list[float]
Pinned = tuple[str, Kind, Value]
"""A key, what kind of number it is, and the number or numbers."""
Group = Iterator[Pinned]

VARIANTS: dict[str, type[asc.Attention]] = {
    "softmax": asc.Softmax,
    "l2": asc.L2,
    "sigmoid": asc.Sigmoid,
    "sinkhorn": asc.Sinkhorn,
    "linear": asc.Linear,
    "exponential": asc.Exponential,
}


class Source:
    """Draws by a name from Python's own generator: the same on every machine."""

    def __init__(self, name: str) -> None:
        self._random = random.Random(name)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers strictly between 0 and 1."""
        drawn = [max(self._random.random(), 1e-12) for _ in range(math.prod(shape))]
        return torch.tensor(drawn, dtype=torch.float64).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        gauss = NormalDist()
        drawn = [gauss.inv_cdf(one) for one in self.uniform(math.prod(shape)).tolist()]
        return torch.tensor(drawn, dtype=torch.float64).reshape(shape)

    def ids(self, count: int, below: int) -> Tensor:
        """Whole numbers from 2 on."""
        return torch.tensor([self._random.randrange(2, below) for _ in range(count)])

    def in_ball(self, n: int, d: int, radius: float) -> Tensor:
        """Tokens of which the longest has this norm."""
        x = self.normal(n, d)
        return x * (radius / torch.linalg.vector_norm(x, dim=-1).max())

    def weights(self, n: int, zero: bool = False) -> Tensor:
        """Masses that sum to one, one of them zero if asked."""
        drawn = self.uniform(n) + 0.05
        if zero:
            drawn[1] = 0
        return drawn / drawn.sum()

    def covariance(self, d: int, rank: int | None = None) -> Tensor:
        """A covariance, singular when the rank is below d."""
        factor = self.normal(d, rank or d)
        return factor @ factor.mT / d


def number(value: Tensor | float | Sequence[float]) -> Value:
    """One number or a list of them, as they go into the file."""
    if isinstance(value, Tensor):
        found = value.detach().double()
        return float(found) if found.ndim == 0 else found.flatten().tolist()
    return [float(one) for one in value] if isinstance(value, Sequence) else float(value)


def overwrite(module: torch.nn.Module, source: Source, gain: float = 1.0) -> None:
    """Fresh parameters: matrices of norm about `gain`, gains of norms near 1, biases near 0."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = source.normal(*parameter.shape).to(parameter.dtype)
            if parameter.ndim > 1:
                parameter.copy_(gain / math.prod(parameter.shape[1:]) ** 0.5 * drawn)
            else:
                parameter.copy_(float(name.endswith("weight")) + 0.1 * drawn)


@dataclass(frozen=True)
class Recipe:
    """Attention and tokens by a few numbers; `build` makes the tensors."""

    variant: str
    h: int
    n: int
    d: int
    radius: float
    k: int | None = None
    v: int | None = None
    biases: bool = False
    places: Literal["", "rotary", "bias"] = ""
    causal: bool = False
    weights: Literal["equal", "any", "some zero"] = "equal"
    tied: bool = False
    strength: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Everything that tells this recipe from others."""
        sizes = f"{self.variant} h={self.h} n={self.n} d={self.d} R={self.radius:g}"
        heads = f"{f' k={self.k}' if self.k else ''}{f' v={self.v}' if self.v else ''}"
        flags = [
            "biases" * self.biases,
            {"": "", "rotary": "rotary", "bias": "position bias"}[self.places],
            "causal" * self.causal,
            "" if self.weights == "equal" else f"weights {self.weights}",
            "tied" * self.tied,
            "" if self.strength == 1 else f"strength={self.strength:g}",
            *(f"{name}={value:g}" for name, value in self.options.items()),
        ]
        return " ".join([sizes + heads, *(flag for flag in flags if flag)])

    def build(self) -> tuple[asc.Attention, asc.Particles]:
        """The attention and a measure whose farthest token has norm `radius`."""
        source = Source(self.name)
        made = VARIANTS[self.variant](self._heads(source), causal=self.causal, **self.options)
        x = source.in_ball(self.n, self.d, self.radius)
        masses = None if self.weights == "equal" else source.weights(self.n, self.weights != "any")
        return made, asc.Particles(x, masses)

    def _heads(self, source: Source) -> asc.Heads:
        h, d, k, v = self.h, self.d, self.k or self.d, self.v or self.d
        size = self.strength / math.sqrt(d)
        query = size * source.normal(h, k, d)
        parts: dict[str, Tensor] = {
            "query": query,
            "key": query if self.tied else source.normal(h, k, d) / math.sqrt(d),
            "value": source.normal(h, v, k) @ query if self.tied else source.normal(h, v, d),
        }
        if self.v is not None:
            parts["output"] = source.normal(h, d, v) / math.sqrt(h * v)
        if self.biases:
            drawn = source.normal(h, k) / 3
            parts |= {
                "query_bias": drawn,
                "key_bias": drawn if self.tied else source.normal(h, k) / 3,
            }
            parts |= {"value_bias": source.normal(h, v) / 3, "output_bias": source.normal(d) / 3}
        if self.places == "rotary":
            parts["rotary"] = source.uniform(k // 2)
        if self.places == "bias":
            parts["position_bias"] = source.normal(h, self.n, self.n)
        return asc.Heads(**parts)


RECIPES = (
    Recipe("softmax", 1, 1, 1, 1.0),
    Recipe("softmax", 1, 2, 1, 0.1),
    Recipe("softmax", 1, 5, 2, 1.0),
    Recipe("softmax", 1, 3, 2, 20.0),
    Recipe("softmax", 1, 8, 3, 2.0, biases=True),
    Recipe("softmax", 1, 16, 4, 5.0, causal=True),
    Recipe("softmax", 1, 12, 4, 20.0, k=2, v=3, strength=0.1),
    Recipe("softmax", 1, 40, 24, 1.0, causal=True, strength=0.5),
    Recipe("softmax", 2, 6, 4, 2.0, k=2, v=3, biases=True),
    Recipe("softmax", 2, 10, 6, 1.0, k=4, v=4, places="rotary", causal=True),
    Recipe("softmax", 2, 7, 4, 3.0, k=2, v=2, biases=True, places="rotary"),
    Recipe("softmax", 2, 9, 5, 2.0, places="bias"),
    Recipe("softmax", 2, 30, 20, 10.0, k=4, v=4, biases=True, strength=0.3),
    Recipe("softmax", 3, 5, 6, 1.0, k=2, v=2, biases=True, places="bias", causal=True),
    Recipe("softmax", 3, 20, 6, 0.5),
    Recipe("softmax", 8, 12, 8, 2.0, k=2, v=2, biases=True),
    Recipe("softmax", 8, 40, 16, 3.0, k=2, v=2),
    Recipe("softmax", 1, 6, 3, 1.0, weights="any"),
    Recipe(
        "softmax", 2, 8, 4, 2.0, k=2, v=3, biases=True, causal=True, weights="any", strength=0.8
    ),
    Recipe("softmax", 3, 7, 3, 4.0, weights="some zero"),
    Recipe("l2", 1, 4, 2, 1.0),
    Recipe("l2", 2, 1, 3, 1.0, k=2, v=2, tied=True),
    Recipe("l2", 1, 6, 3, 2.0, tied=True),
    Recipe("l2", 1, 5, 3, 20.0, tied=True, weights="any"),
    Recipe("l2", 2, 8, 4, 1.0, k=2, v=3, biases=True, tied=True),
    Recipe("l2", 2, 5, 4, 0.5, k=3, v=2, biases=True),
    Recipe("l2", 3, 10, 6, 5.0, k=2, v=2, causal=True, tied=True),
    Recipe("l2", 8, 20, 8, 0.1, k=2, v=1, tied=True),
    Recipe("sigmoid", 1, 4, 2, 1.0),
    Recipe("sigmoid", 3, 1, 5, 2.0, k=2, v=2, biases=True),
    Recipe("sigmoid", 1, 6, 3, 20.0, weights="any"),
    Recipe("sigmoid", 2, 8, 4, 2.0, k=2, v=3, biases=True, options={"tokens": 8}),
    Recipe("sigmoid", 3, 10, 6, 5.0, k=2, v=2, causal=True, options={"bias": -1.0}),
    Recipe("sigmoid", 8, 20, 8, 0.5, k=2, v=2, options={"tokens": 20}),
)
"""Attention that theorems speak of."""

OTHERS = (
    Recipe("sinkhorn", 1, 6, 3, 1.0, options={"eps": 0.5}),
    Recipe("sinkhorn", 2, 8, 4, 2.0, k=2, v=3, biases=True, weights="any"),
    Recipe("linear", 2, 6, 4, 1.0, biases=True),
    Recipe("linear", 1, 9, 3, 2.0, causal=True),
    Recipe("exponential", 1, 5, 3, 1.0),
    Recipe("exponential", 3, 7, 6, 1.0, k=2, v=2, causal=True, weights="any"),
)
"""Attention with constants and no theorem."""
