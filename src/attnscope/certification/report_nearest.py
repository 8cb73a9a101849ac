"""The images nearest to their certificate, each with the nearest misread image that an attack
finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attacks.projected import pgd
from attnscope.certification.report import Plan, Row

REACHES = (1.2, 1.5, 2.0, 3.0, 5.0, 8.0)
"""Multiples of the proved radius within which a misread image is looked for."""
RESTARTS = 2
HALVINGS = 30


@final
@dataclass(frozen=True, eq=False)
class Neighbour:
    """An image and the radius proved for it; the nearest misread image that was found, how far it
    is and what it is read as (or None).
    """

    image: int
    label: int
    radius: float
    pixels: Float[Tensor, "C H W"]
    misread: Float[Tensor, "C H W"] | None = None
    distance: float | None = None
    read_as: int | None = None


def nearest(plan: Plan, rows: Sequence[Row], count: int = 6) -> list[Neighbour]:
    """The rightly read images with the smallest proved radii above 0, attacked within every
    multiple of the radius in REACHES.

    Each success is drawn back along its segment to the image for as long as it stays misread; the
    nearest one counts.
    """
    chosen = sorted(
        {row.image: row for row in rows if row.radius > 0}.values(), key=lambda row: row.radius
    )[:count]
    if not chosen:
        return []
    network = plan.exact()
    places = [row.image for row in chosen]
    x = plan.images.pixels[places].double().repeat_interleave(len(REACHES), 0)
    labels = plan.images.labels[places].repeat_interleave(len(REACHES))
    reach = torch.tensor(
        [row.radius * factor for row in chosen for factor in REACHES], dtype=torch.float64
    )
    attack = pgd(network, x, labels, reach, plan.steps, RESTARTS, plan.seed)
    found = _drawn_back(network, x, attack.x, labels)
    distance = torch.linalg.vector_norm((found - x).flatten(1), dim=1).where(
        attack.succeeded, float("inf")
    )
    made = []
    for i, row in enumerate(chosen):
        best = i * len(REACHES) + int(distance[i * len(REACHES) : (i + 1) * len(REACHES)].argmin())
        clean = Neighbour(row.image, row.label, row.radius, x[best])
        if distance[best] < float("inf"):
            read_as = int(
                _others(network, found[best : best + 1], labels[best : best + 1]).argmax()
            )
            clean = Neighbour(
                row.image,
                row.label,
                row.radius,
                x[best],
                found[best],
                float(distance[best]),
                read_as,
            )
        made.append(clean)
    return made


def _drawn_back(network: nn.Module, x: Tensor, far: Tensor, labels: Int[Tensor, " b"]) -> Tensor:
    """Points of the segments from x to far that are misread whenever far is, near the first of that
    kind.
    """
    low, high = torch.zeros(2, len(x), dtype=x.dtype)
    high += 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        at = torch.lerp(x, far, middle[:, None, None, None])
        own = network(at).gather(1, labels[:, None])[:, 0]
        misread = _others(network, at, labels).amax(1) >= own
        low, high = torch.where(misread, low, middle), torch.where(misread, middle, high)
    return torch.lerp(x, far, high[:, None, None, None])


def _others(network: nn.Module, x: Tensor, labels: Int[Tensor, " b"]) -> Float[Tensor, "b classes"]:
    """The logits with that of the label taken out."""
    return network(x).scatter(1, labels[:, None], float("-inf"))
