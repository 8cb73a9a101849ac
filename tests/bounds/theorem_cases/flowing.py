"""Flows: where the solver takes measures, and the length of the field itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnscope import Attention, Particles, flow
from attnscope.bounds import Flow, Reach, Theorem, TwoFlows
from attnscope.flows import Trajectory, distances
from theorem_cases import Case
from theorem_cases.attentions import D, every, inside, scaled

WHERE = (Reach, Flow, TwoFlows)
RADIUS, TIME = 0.4, 0.2


def cases(theorem: Theorem) -> Iterator[Case]:
    for number, attention in enumerate(every(theorem)):
        for p in (1, 1.5, 2, 3) if theorem.where is TwoFlows and not attention.causal else (2,):
            place = _place(theorem, 1.0, p)
            if not theorem.holds(attention, place):
                continue
            yield Case(
                f"{theorem.name}, p = {p}, {attention}",
                float(theorem(attention, place)),
                _truth(theorem, attention, p, number),
                _along(theorem, attention, p),
            )


def _place(theorem: Theorem, s: Tensor | float, p: float) -> Reach | Flow | TwoFlows:
    if theorem.where is Reach:
        return Reach(s * RADIUS)
    return Flow(s * RADIUS, TIME) if theorem.where is Flow else TwoFlows(s * RADIUS, TIME, p)


def _along(theorem: Theorem, attention: Attention, p: float):  # type: ignore[no-untyped-def]
    return lambda s: theorem(scaled(attention, s), _place(theorem, s, p))


def _truth(theorem: Theorem, attention: Attention, p: float, seed: int) -> float:
    g = torch.Generator().manual_seed(seed)
    x, y = (
        inside(RADIUS * 2 * torch.randn(4, D, generator=g, dtype=torch.float64), RADIUS)
        for _ in range(2)
    )
    if theorem.where is Reach:
        return float(torch.linalg.vector_norm(attention(x, Particles(x)), dim=-1).max())
    first = _flow(attention, seed, x)
    if theorem.where is Flow:
        return float(torch.linalg.vector_norm(first.states[-1].x, dim=-1).max())
    near = inside(x + 0.1 * y, RADIUS)
    second = _flow(attention, -1 - seed, near)
    before, after = distances(first, second, p, causal=attention.causal)
    return after / before


_KNOWN: dict[tuple[Attention, int], Trajectory[Particles]] = {}


def _flow(attention: Attention, key: int, x: Tensor) -> Trajectory[Particles]:
    """The flow from x, solved once for all theorems and all p."""
    if (attention, key) not in _KNOWN:
        _KNOWN[attention, key] = flow(attention, Particles(x), [0, TIME], settle=None, rtol=1e-6)
    return _KNOWN[attention, key]
