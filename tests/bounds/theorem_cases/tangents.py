"""Cases for attention beyond second order: random movements of random layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.bounds.near.tangent_cases import left, random_tangent

from attnscope.bounds.near.along import NearTangent
from attnscope.bounds.registry import Theorem
from theorem_cases import Case

WHERE = (NearTangent,)


def cases(theorem: Theorem) -> Iterator[Case]:
    """In the norm of each token, and against a direction."""
    for seed in range(6):
        place = random_tangent(seed)
        found = theorem(place.attention, place)
        made = left(place)
        lengths = torch.linalg.vector_norm(made, dim=-1).amax(0)
        worst = int((lengths / found.tokens).argmax())
        yield Case(f"token, {seed}", float(found.tokens[worst]), float(lengths[worst]), None)
        direction = torch.randn(1, *place.x.shape, dtype=torch.float64)
        truth = (made * direction).sum((1, 2)).abs().amax()
        yield Case(f"direction, {seed}", float(found.third(direction)), float(truth), None)
