r"""Ascent on $\sigma_{max}$ over tokens in a ball and over their masses, many starts at once, each
with a step size of its own.

A step that does not increase the value is taken back and halved, so that values never decrease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attacks._gain import TopPairs, masses, slopes, top_pairs
from attnscope.attention import Attention
from attnscope.measures import Particles

FIRST_PAIRS, LATER_PAIRS = 12, 4
"""Lanczos steps from a random vector, and from the singular vector of the step before."""
FRESH = 0.3
"""How much of a random vector is mixed into a singular vector: a new largest direction must be able
to show itself.
"""
MOMENTUM = 0.8
GROW, SHRINK = 1.4, 0.5
FIRST_STEP = {"tokens": 0.3, "masses": 1.0}
"""In units of the radius, and of the logarithm of a mass."""
STALL_STEPS, STALL_GAIN = 40, 1e-6
"""The ascent ends when no start has gained this much, relatively, over so many steps."""
LEAST_LOG_WEIGHT = -600.0
INSIDE = 1 - 1e-14
"""Rounding must not leave the ball."""


def inside(x: Float[Tensor, "*stack d"], radius: float) -> Float[Tensor, "*stack d"]:
    """The nearest tokens in the ball."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return x * (INSIDE * radius / length).clamp(max=1)


@dataclass
class Ascent:
    """The running state. Two of three starts normalise the gradient token by token, the third over
    all its tokens.
    """

    attention: Attention
    radius: float
    x: Float[Tensor, "b n d"]
    log_weights: Float[Tensor, "b n"] | None
    generator: torch.Generator
    pair: TopPairs = field(init=False)
    history: list[Float[Tensor, " b"]] = field(init=False)

    def __post_init__(self) -> None:
        self.pair = top_pairs(
            self.attention, self._measure(self.x, self.log_weights), self._noise(), FIRST_PAIRS
        )
        self.history = [self.pair.value]
        count = torch.arange(len(self.x), device=self.x.device)
        self._by_token = (count % 3 != 2)[:, None, None]
        self._step = {
            kind: torch.full_like(self.pair.value, size) for kind, size in FIRST_STEP.items()
        }
        self._way = {"tokens": torch.zeros_like(self.x)}
        if self.log_weights is not None:
            self._way["masses"] = torch.zeros_like(self.log_weights)

    def run(self, steps: int, progress: Callable[[int, float], bool]) -> bool:
        """Alternate between tokens and masses; False when `progress` asked to stop."""
        kinds = list(self._way)
        for number in range(steps):
            self._advance(kinds[number % len(kinds)])
            self.history.append(self.pair.value)
            if not progress(number + 1, float(self.pair.value.max())):
                return False
            if self._stalled():
                break
        return True

    def _stalled(self) -> bool:
        if len(self.history) <= STALL_STEPS:
            return False
        now, before = self.history[-1], self.history[-1 - STALL_STEPS]
        return bool((now <= (1 + STALL_GAIN) * before).all())

    def _advance(self, kind: str) -> None:
        tokens, mass = slopes(self.attention, self.x, self.log_weights, self.pair)
        x, log_weights, step = self.x, self.log_weights, self._step[kind]
        if kind == "tokens":
            way = self._token_direction(tokens) + MOMENTUM * self._way[kind]
            x = inside(x + self.radius * step[:, None, None] * way, self.radius)
        else:
            assert log_weights is not None
            assert mass is not None
            way = _normalised(mass, mass.abs().amax(1, keepdim=True)) + MOMENTUM * self._way[kind]
            log_weights = torch.log_softmax(log_weights + step[:, None] * way, dim=-1).clamp(
                min=LEAST_LOG_WEIGHT
            )
        start = self.pair.right + FRESH * self._noise()
        pair = top_pairs(self.attention, self._measure(x, log_weights), start, LATER_PAIRS)
        better = pair.value > self.pair.value
        self.x = _where(better, x, self.x)
        self.log_weights = (
            None
            if log_weights is None or self.log_weights is None
            else _where(better, log_weights, self.log_weights)
        )
        self.pair = TopPairs(
            *(_where(better, new, old) for new, old in zip(pair, self.pair, strict=True))
        )
        self._step[kind] = torch.where(better, GROW * step, SHRINK * step)
        self._way[kind] = _where(better, way, torch.zeros_like(way))

    def _token_direction(self, slope: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        size = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
        largest = size.amax(1, keepdim=True)
        return _normalised(
            slope, torch.where(self._by_token, size.clamp(min=1e-6 * largest), largest)
        )

    def _measure(self, x: Tensor, log_weights: Tensor | None) -> Particles:
        return Particles(x, masses(log_weights))

    def _noise(self) -> Float[Tensor, "b n d"]:
        drawn = torch.randn(
            self.x.shape, generator=self.generator, dtype=self.x.dtype, device=self.x.device
        )
        return drawn / torch.linalg.vector_norm(drawn, dim=(1, 2), keepdim=True)


def _normalised(slope: Tensor, size: Tensor) -> Tensor:
    return slope / size.clamp(min=torch.finfo(slope.dtype).tiny)


def _where(chosen: Bool[Tensor, " b"], new: Tensor, old: Tensor) -> Tensor:
    return torch.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
