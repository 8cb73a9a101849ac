"""What is proved and what is attacked, image by image: the rows behind the table and the figures of
`attnscope certify`.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attacks.projected import pgd
from attnscope.certification.network import certify
from attnscope.data.pictures import Images

BATCH = 20
BISECTIONS = 7
"""Radii tried for each image between the largest proved and the largest possible."""


class Row(NamedTuple):
    """One network, one image, one eps. `certified` and `radius` are proved; `broken` is what an
    attack found.
    """

    network: str
    image: int
    label: int
    predicted: int
    eps: float
    certified: bool
    """Right, and right for every image within eps."""
    method: str
    radius: float
    """Right for every image within this radius; 0 when the image is misread."""
    margin: float
    broken: bool | None
    """The attack found a misread image within eps; None when the image itself is misread."""
    broken_at_radius: bool | None
    """The same within the proved radius, where it would be a bug; None when there is no such
    radius.
    """
    blind: bool | None
    """The attack saw no gradient, so that its failure says little."""
    certify_seconds: float
    attack_seconds: float

    @property
    def unsound(self) -> bool:
        """An attack broke what was proved."""
        return bool((self.certified and self.broken) or self.broken_at_radius)


@final
@dataclass(frozen=True)
class Plan:
    """A network to certify on images at several eps, with the attack beside it."""

    network: nn.Module
    images: Images
    eps: tuple[float, ...]
    steps: int = 100
    restarts: int = 5
    seed: int = 0
    name: str = "network"

    def exact(self) -> nn.Module:
        """A copy of the network in float64, to evaluate only."""
        return copy.deepcopy(self.network).double().eval().requires_grad_(False)


def evaluate(plan: Plan) -> Iterator[list[Row]]:
    """Rows of one batch of images after the other, in float64: certificates first, then the attack
    on every image that is read rightly.

    A certificate that the attack breaks is marked `unsound` in its row; nothing is raised, so that
    the evidence is kept.
    """
    network = plan.exact()
    for start in range(0, len(plan.images), BATCH):
        x, y = (
            plan.images.pixels[start : start + BATCH].double(),
            plan.images.labels[start : start + BATCH],
        )
        begun = time.perf_counter()
        predicted = network(x).argmax(-1)
        proved = certify(network, x, plan.eps, y, bisections=BISECTIONS)
        middle = time.perf_counter()
        radius = torch.tensor([made.radius for made in proved[0]], dtype=torch.float64)
        broken, at_radius, blind = _attacked(plan, network, x, y, predicted == y, radius)
        seconds = (middle - begun) / len(x), (time.perf_counter() - middle) / len(x)
        yield [
            Row(
                network=plan.name,
                image=start + i,
                label=int(y[i]),
                predicted=int(predicted[i]),
                eps=made.eps,
                certified=made.verdict and bool(predicted[i] == y[i]),
                method=made.method,
                radius=made.radius,
                margin=made.margin,
                broken=bool(broken[e, i]) if predicted[i] == y[i] else None,
                broken_at_radius=bool(at_radius[i]) if radius[i] > 0 else None,
                blind=bool(blind[i]) if predicted[i] == y[i] else None,
                certify_seconds=seconds[0],
                attack_seconds=seconds[1],
            )
            for i in range(len(x))
            for e, made in enumerate(certificates[i] for certificates in proved)
        ]


def _attacked(
    plan: Plan, network: nn.Module, x: Tensor, y: Tensor, right: Tensor, radius: Float[Tensor, " b"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Which images are broken at each eps (eps, b) and at their own radius (b), and for which the
    attack saw no gradient (b).

    An image broken at one eps stays broken at larger ones; an image that is misread needs no
    attack.
    """
    broken = torch.zeros(len(plan.eps), len(x), dtype=torch.bool)
    at_radius, blind = torch.zeros(2, len(x), dtype=torch.bool)
    standing = right.clone()
    for place in sorted(range(len(plan.eps)), key=lambda e: plan.eps[e]):
        chosen = standing.nonzero()[:, 0]
        if len(chosen):
            attack = pgd(
                network, x[chosen], y[chosen], plan.eps[place], plan.steps, plan.restarts, plan.seed
            )
            standing[chosen[attack.succeeded]] = False
            blind[chosen] |= attack.blind
        broken[place] = right & ~standing
    chosen = (right & (radius > 0)).nonzero()[:, 0]
    if len(chosen):
        at_radius[chosen] = pgd(
            network, x[chosen], y[chosen], radius[chosen], plan.steps, plan.restarts, plan.seed
        ).succeeded
    return broken, at_radius, blind


@final
@dataclass(frozen=True)
class Line:
    """Shares of the images at one eps: `certified` is a proved lower bound of the robust accuracy,
    `attacked` an upper bound.
    """

    eps: float
    certified: float
    attacked: float
    methods: dict[str, int]


@final
@dataclass(frozen=True)
class Summary:
    """What the rows of one network say."""

    images: int
    clean: float
    lines: tuple[Line, ...]
    radius: float
    """Mean proved radius over all images, 0 for those that are misread."""
    certify_seconds: float
    attack_seconds: float
    blind: int
    unsound: int


def summarise(rows: Sequence[Row]) -> Summary:
    """Shares over all images of these rows, which belong to one network."""
    first = {row.image: row for row in rows}.values()
    count = len(first)
    lines = []
    for eps in sorted({row.eps for row in rows}):
        here = [row for row in rows if row.eps == eps]
        lines.append(
            Line(
                eps=eps,
                certified=sum(row.certified for row in here) / count,
                attacked=sum(row.broken is False for row in here) / count,
                methods=dict(Counter(row.method for row in here if row.certified)),
            )
        )
    return Summary(
        images=count,
        clean=sum(row.label == row.predicted for row in first) / count,
        lines=tuple(lines),
        radius=sum(row.radius for row in first) / count,
        certify_seconds=sum(row.certify_seconds for row in first) / count,
        attack_seconds=sum(row.attack_seconds for row in first) / count,
        blind=sum(bool(row.blind) for row in first),
        unsound=sum(row.unsound for row in rows),
    )


@torch.no_grad()
def accuracy(network: nn.Module, images: Images) -> float:
    """Share of the images that the network reads rightly."""
    pixels = images.pixels.to(next(network.parameters()).dtype)
    right = [network(part).argmax(-1) for part in pixels.split(BATCH)]
    return float((torch.cat(right) == images.labels).double().mean())
