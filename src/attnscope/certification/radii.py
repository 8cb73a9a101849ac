r"""The largest radius that is proved for each image of a batch, from few tries.

Tries are made at the points of repeated halving of an interval, so that radii do not depend on the
way; which point comes next is guessed. By NT4 a margin falls by the share $\varepsilon/l$ to first
order, $l$ the radius where the linear part alone eats it, and by about $b\varepsilon^3$ beyond,
as measured. A try that fails tells $b$, for it has asked every bound; one that succeeds may have
asked the coarsest only. A guess proves nothing: each radius handed out was tried, and proved.
"""

from __future__ import annotations

from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

SPARE = 4
"""Rounds that guesses may waste before they are held to halving."""
NEWTON = 5
"""Steps towards the root of a guess."""
FINEST = 50
"""Halvings beyond which float64 tells no points apart."""


@runtime_checkable
class Certifies(Protocol):
    """What a search asks of a clean pass."""

    labels: Int[Tensor, " b"]

    def limits(self) -> Float[Tensor, " b"]: ...

    def certify(
        self, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]
    ) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]: ...


@final
class Radii:
    """`radius` is proved for every image; `at` is the last try that told how large a share of the
    margin was `taken`, and `failed` whether it failed.
    """

    def __init__(self, clean: Certifies) -> None:
        self.clean, self.limits = clean, clean.limits()
        self.radius, self.at = torch.zeros_like(self.limits), torch.zeros_like(self.limits)
        self.taken = torch.full_like(self.limits, torch.inf)
        self.failed = torch.zeros_like(self.limits, dtype=torch.bool)
        self.method = torch.zeros_like(clean.labels)

    def attempt(self, eps: Float[Tensor, " b"]) -> None:
        """Certify the images whose proved radius is below eps."""
        image = torch.nonzero((eps > self.radius) & (eps > 0))[:, 0]
        how, taken = self.clean.certify(image, eps[image])
        done = image[how > 0]
        self.radius[done], self.method[done] = eps[done], how[how > 0]
        told = taken.isfinite() & ((how == 0) | ~self.failed[image])
        self.failed[image[told]] = how[told] == 0
        self.at[image[told]], self.taken[image[told]] = eps[image][told], taken[told]

    def search(self, high: Float[Tensor, " b"], halvings: int) -> None:
        """Raise the radii as repeated halving towards `high` would: the last point proved is
        followed by one that is not.
        """
        low, bits = self.radius.clone(), min(halvings, FINEST)
        below = torch.zeros_like(self.method)
        above = torch.where(high > low, 2**bits, 1).to(below)
        for left in reversed(range(bits + SPARE)):
            open_ = above - below > 1
            if not bool(open_.any()):
                break
            place = (self._guess(high) - low) / (high - low).clamp(min=1e-300) * 2**bits
            wild = ~(place.abs() < 2.0**FINEST)
            guess = place.masked_fill(wild, 0.0).floor().to(below)
            guess = torch.where(wild, (below + above) // 2, guess)
            passed = guess <= below
            guess = torch.minimum(torch.maximum(guess, below + 1), above - 1)
            # whatever comes of it, halving must be able to end in the rounds that are left
            most = 2 ** min(left, FINEST + SPARE)
            guess = torch.minimum(torch.maximum(guess, above - most), below + most)
            eps = halved(low, high, guess, bits)
            self.attempt(eps.masked_fill(~open_, 0.0))
            proved = open_ & (self.radius >= eps)
            self.taken[proved & passed] = torch.inf  # beyond its guess: halve until one fails
            self.failed[proved & passed] = False
            below = torch.where(proved, guess, below)
            above = torch.where(open_ & ~proved, guess, above)

    def _guess(self, high: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        r"""The root of $\varepsilon/l + b\varepsilon^3 = 1$, halfway to `high` before anything has
        failed; infinite where nothing is known.
        """
        share = self.at / self.limits
        bent = ((self.taken - share) / share**3).clamp(min=1e-9)
        root = bent.pow(-1 / 3).clamp(max=1)
        for _ in range(NEWTON):
            root = root - (root + bent * root**3 - 1) / (1 + 3 * bent * root.square())
        root = self.limits * root
        root = torch.where(self.failed, root, (root + high) / 2)
        return root.where(self.taken.isfinite(), torch.inf)


def halved(
    low: Float[Tensor, " b"], high: Float[Tensor, " b"], place: Int[Tensor, " b"], bits: int
) -> Float[Tensor, " b"]:
    """The point of this number among the $2^{bits}$ parts of the interval, rounded as halving it
    step by step rounds.
    """
    for bit in reversed(range(bits)):
        middle = (low + high) / 2
        up = place.bitwise_right_shift(bit) % 2 == 1
        low, high = torch.where(up, middle, low), torch.where(up, high, middle)
    return low
