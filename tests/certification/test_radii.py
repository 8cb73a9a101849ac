"""The search for a radius: it ends where halving ends, whatever its guesses are worth."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.certification.radii import Radii, halved

COUNT = 40


class Thresholds:
    """Stands for a clean pass: images are certified below a threshold, and shares of margins are
    told by any function of radius and threshold.
    """

    def __init__(self, seed: int, honest: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.limit = self._draw() + 0.1
        self.threshold = self.limit * self._draw()
        self.threshold[:3] = torch.tensor([0.0, 1e-9, float(self.limit[2])], dtype=torch.float64)
        self.labels = torch.zeros(COUNT, dtype=torch.int64)
        self.honest, self.tries = honest, 0

    def _draw(self) -> Float[Tensor, " b"]:
        return torch.rand(COUNT, dtype=torch.float64, generator=self.generator)

    def limits(self) -> Float[Tensor, " b"]:
        return self.limit

    def certify(
        self, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]
    ) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
        self.tries += len(image)
        edge, limit = self.threshold[image], self.limit[image]
        if self.honest:
            bent = (1 - edge / limit) / edge**3
            taken = eps / limit + bent * eps**3
        else:
            some = self._draw()[: len(image)]
            wrong = torch.tensor([float("inf"), float("nan"), 0.0, 1e9, -1.0], dtype=torch.float64)
            taken = torch.where(some < 0.5, wrong[(10 * some).long() % 5], 2 * some)
        return (eps <= edge).to(torch.int64), taken


def by_halving(clean: Thresholds, low: Tensor, high: Tensor, count: int) -> Tensor:
    for _ in range(count):
        middle = (low + high) / 2
        proved = (middle <= clean.threshold) & (middle > low)
        low, high = torch.where(proved, middle, low), torch.where(proved, high, middle)
    return low


def test_guesses_that_mislead_end_where_halving_ends() -> None:
    for seed in range(30):
        for count in (0, 1, 2, 7, 12):
            clean = Thresholds(seed, honest=False)
            radii = Radii(clean)
            radii.attempt(torch.full_like(clean.limit, 0.2))
            expected = by_halving(clean, radii.radius.clone(), clean.limit, count)
            radii.search(clean.limit, count)
            assert torch.equal(radii.radius, expected)
            assert (radii.radius <= clean.threshold).all()


def test_good_guesses_need_few_tries() -> None:
    clean = Thresholds(0, honest=True)
    radii = Radii(clean)
    radii.search(clean.limit, 12)
    start = torch.zeros_like(clean.limit)
    assert torch.equal(radii.radius, by_halving(clean, start, clean.limit, 12))
    assert clean.tries < 5 * COUNT


def test_halved_rounds_as_halving_does() -> None:
    low, high = torch.tensor([0.1, 0.0], dtype=torch.float64), torch.tensor([0.7, 1 / 3]).double()
    for place in range(8):
        one, other = low, high
        for bit in (4, 2, 1):
            middle = (one + other) / 2
            one, other = (middle, other) if place & bit else (one, middle)
        assert torch.equal(halved(low, high, torch.tensor([place, place]), 3), one)
