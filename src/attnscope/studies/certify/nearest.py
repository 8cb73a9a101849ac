"""The images nearest to their certificate, each with the nearest misread image that an attack
finds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.attacks import pgd
from attnscope.data.pictures import Images
from attnscope.nets import Transformer
from attnscope.studies.certify.rows import NearRow, Shard

REACHES = (1.2, 1.5, 2.0, 3.0, 5.0, 8.0)
"""Multiples of the proved radius within which a misread image is looked for."""
RESTARTS = 2
HALVINGS = 30


def in_single(network: nn.Module) -> nn.Module | None:
    """A copy of one of our networks to search with: what it finds is judged by the network itself,
    in float64. Others may hold to their own precision, and are searched as they are.
    """
    if not isinstance(network, Transformer):
        return None
    return copy.deepcopy(network).float().requires_grad_(False)


def nearest(
    cell: Shard, network: nn.Module, images: Images, radius: Float[Tensor, " b"]
) -> list[NearRow]:
    """The images of the shard with the smallest proved radii above 0, attacked within every
    multiple of the radius in REACHES.

    Each success is drawn back along its segment to the image for as long as it stays misread; the
    nearest one counts. Those nearest of all images are among those of their shards.
    """
    ordered = [i for i in radius.argsort().tolist() if radius[i] > 0][: cell.nearest]
    if not ordered:
        return []
    chosen = [cell.first + i for i in ordered]
    x = images.pixels[chosen].double().repeat_interleave(len(REACHES), 0)
    labels = images.labels[chosen].repeat_interleave(len(REACHES))
    reach = (radius[ordered, None] * torch.tensor(REACHES, dtype=torch.float64)).flatten()
    search = in_single(network)
    attack = pgd(network, x, labels, reach, cell.steps, RESTARTS, cell.seed, search=search)
    found = _drawn_back(network, x, attack.x, labels)
    distance = torch.linalg.vector_norm((found - x).flatten(1), dim=1).where(
        attack.succeeded, float("inf")
    )
    made = []
    for place, (distances, i) in enumerate(
        zip(distance.reshape(-1, len(REACHES)), ordered, strict=True)
    ):
        best = place * len(REACHES) + int(distances.argmin())
        at = slice(best, best + 1)
        misread = bool(distance[best] < float("inf"))
        read_as = int(_others(network, found[at], labels[at]).argmax()) if misread else None
        made.append(
            NearRow(
                image=cell.first + i,
                label=int(labels[best]),
                radius=float(radius[i]),
                distance=float(distance[best]) if misread else None,
                read_as=read_as,
                class_name=images.classes[int(labels[best])],
                read_as_name=None if read_as is None else images.classes[read_as],
                pixels=x[best].numpy(),
                misread=found[best].numpy() if misread else None,
            )
        )
    return made


def nearest_of_all(rows: Sequence[NearRow], count: int) -> list[NearRow]:
    """The images with the smallest proved radii among those of every shard."""
    return sorted(rows, key=lambda row: (row.radius, row.image))[:count]


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
