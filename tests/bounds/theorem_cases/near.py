"""Cases for theorems over an eps-ball: random layers, attacked, and gradients by differences.

An attack knows nothing of the theorem: what it reaches is found once for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.bounds.near.sensitivity_cases import Case as Layer
from tests.bounds.near.sensitivity_cases import climb, largest_move, random_case
from torch import Tensor

from attnscope import Particles
from attnscope.bounds.near.place import Budget, Near, NearBend, NearCurvature, NearTokens
from attnscope.bounds.registry import Theorem
from attnscope.norms import SLACK
from derivatives import bend
from theorem_cases import Case

WHERE = (Near, NearTokens, NearCurvature, NearBend)
SEEDS = {
    Near: range(700, 708),
    NearTokens: range(700, 705),
    NearCurvature: range(700, 708),
    NearBend: range(700, 705),
}
LEAST = 0.05
"""An attack that reaches less of every bound would test nothing."""


def cases(theorem: Theorem) -> Iterator[Case]:
    attacks = {Near: _moved, NearTokens: _tokens_moved, NearCurvature: _bent, NearBend: _bent_whole}
    attack = attacks[theorem.where]
    reached = 0.0
    for variant in theorem.variants:
        slope = _slope(theorem, variant) if theorem.differentiable else None
        for seed in SEEDS[theorem.where]:
            bound, found = attack(theorem, _layer(seed, variant), seed)
            reached = max(reached, found / bound if bound > 0 else 0.0)
            yield Case(f"{theorem.name}, {variant.name} {seed}", bound, found, slope)
    assert reached > LEAST, f"the attack on {theorem.name} reaches {reached:.3f} of it only"


@functools.cache
def _layer(seed: int, variant: Any) -> Layer:
    return random_case(seed, variant, stack=2)


def _slope(theorem: Theorem, variant: Any) -> Callable[[Tensor], Tensor]:
    """The bound along a change of tokens and eps.

    Autograd holds the vectors of Collatz-Wielandt quotients fixed. So does this: with no power
    steps they are ones, which gives bounds too, and exact derivatives.
    """
    case, g = random_case(10, variant, stack=1), torch.Generator().manual_seed(0)
    step = torch.randn(case.x.shape, generator=g, dtype=torch.float64)

    def bound(s: Tensor) -> Tensor:
        place = theorem.where(case.attention, case.x + (s - 1) * step, 0.5 * s[None], 1.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("attnscope.norms.POWER_STEPS", 0)
            found = theorem(case.attention, place)
            if isinstance(found, Budget):
                return found.constant.sum() + found.blocks.sum()
            return found.sum() if isinstance(found, Tensor) else found(step[None]).sum()

    return bound


def _moved(theorem: Theorem, case: Layer, seed: int) -> tuple[float, float]:
    """At the input where the attack came closest to the bound."""
    bound = theorem(case.attention, Near(case.attention, case.x, case.eps, case.residual))
    return _closest(bound, _largest_move(case, seed) - _rounding(case))


@functools.cache
def _largest_move(case: Layer, seed: int) -> Tensor:
    return largest_move(case, restarts=2, steps=24, seed=seed)[0]


def _tokens_moved(theorem: Theorem, case: Layer, seed: int) -> tuple[float, float]:
    """Ascent on single tokens of the output, and on all together."""
    budget = theorem(case.attention, NearTokens(case.attention, case.x, case.eps, case.residual))
    clean, g = case(case.x), torch.Generator().manual_seed(seed)
    bounds, found = [], []
    for token in (*range(min(3, case.x.shape[-2])), slice(None)):

        def moved(d: Tensor, token: int | slice = token) -> Tensor:
            out = (case(case.x + d) - clean)[..., token, :]
            return out.flatten(1).square().sum(-1).add(1e-300).sqrt()

        start = torch.randn(case.x.shape, generator=g, dtype=torch.float64)
        value, d = climb(moved, start, case.eps, steps=24)
        lengths = torch.linalg.vector_norm(d, dim=-1)
        allowed = (budget.blocks @ lengths[..., None])[..., token, 0]
        whole = isinstance(token, slice)
        bounds.append(budget.constant * case.eps if whole else allowed)
        found.append(value - _rounding(case))
    return _closest(torch.stack(bounds), torch.stack(found))


def _bent(theorem: Theorem, case: Layer, seed: int) -> tuple[float, float]:
    """-<g, D^2F(X')[U, U]> at points of the ball, U by ascent in the lengths that it has."""
    g = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(case.x.shape, generator=g, dtype=torch.float64)

    direction = normal()
    place = NearCurvature(case.attention, case.x, case.eps, case.residual)
    form = theorem(case.attention, place)(direction[None])[0]
    bounds, found = [], []
    for share in (0.0, 1.0):
        d = normal()
        x = case.x + share * (case.eps / torch.linalg.matrix_norm(d))[:, None, None] * d

        def lowered(u: Tensor, x: Tensor = x) -> Tensor:
            return -(direction * bend(case_at(case), x, u)).sum((-2, -1))

        value, u = climb(lowered, normal(), torch.ones_like(case.eps), steps=9)
        v = torch.linalg.vector_norm(u, dim=-1)
        bounds.append((v[:, None] @ form @ v[..., None])[:, 0, 0])
        found.append(value - 0.1 * _rounding(case) * torch.linalg.matrix_norm(direction))
    return _closest(torch.stack(bounds), torch.stack(found))


def _bent_whole(theorem: Theorem, case: Layer, seed: int) -> tuple[float, float]:
    """|D^2F(X')[U, U]| at points of the ball, U of length 1 by ascent."""
    g = torch.Generator().manual_seed(seed)
    bound = theorem(case.attention, NearBend(case.attention, case.x, case.eps, case.residual))
    bounds, found = [], []
    for share in (0.0, 1.0):
        d, start = torch.randn(2, *case.x.shape, generator=g, dtype=torch.float64)
        x = case.x + share * (case.eps / torch.linalg.matrix_norm(d))[:, None, None] * d

        def size(u: Tensor, x: Tensor = x) -> Tensor:
            return torch.linalg.matrix_norm(bend(case_at(case), x, u))

        value, u = climb(size, start, torch.ones_like(case.eps), steps=9)
        bounds.append(bound * torch.linalg.matrix_norm(u).square())
        found.append(value - _rounding(case))
    return _closest(torch.stack(bounds), torch.stack(found))


def case_at(case: Layer) -> Callable[[Tensor], Tensor]:
    """F as a function of tokens, with equal masses made outside of any derivative."""
    mu = Particles(case.x)
    return lambda z: case.residual * z + case.attention.dense(z, mu.at(z))


def _rounding(case: Layer) -> Tensor:
    """Movements below this share of the size of the tokens are rounding of the attack itself."""
    return 1e-9 * (1 + case.x.abs().amax((-2, -1)))


def _closest(bound: Tensor, found: Tensor) -> tuple[float, float]:
    """The pair in which least is left between them; a broken one is always the closest."""
    bound = bound * (1 + SLACK)
    left = ((bound - found) / bound.abs().clamp(min=1e-300)).flatten().argmin()
    return float(bound.flatten()[left]), float(found.flatten()[left])
