"""What is proved and what is attacked, image by image: the rows of one shard."""

from __future__ import annotations

import copy
import time

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.attacks import pgd
from attnscope.certification.network import certify
from attnscope.data.pictures import Images, images
from attnscope.nets import Transformer
from attnscope.studies.certify.foreign import Foreign, certifiable, open_network
from attnscope.studies.certify.nearest import in_single, nearest
from attnscope.studies.certify.rows import NearRow, NetCell, Row, Shard
from attnscope.studies.workbench import Workbench, check_hash, hash_module, hash_tensors


def network_of(workbench: Workbench, checkpoint: str) -> Transformer | Foreign:
    """The network in a folder, or what was put on the workbench under this name."""
    network: Transformer | Foreign = workbench.once(
        ("network", checkpoint), lambda: open_network(checkpoint)
    )
    return network


def weights_of(workbench: Workbench, checkpoint: str) -> str:
    return workbench.once(
        ("network weights", checkpoint), lambda: hash_module(network_of(workbench, checkpoint))
    )


def images_of(workbench: Workbench, data: str, split: str) -> Images:
    """All images of a split, or what was put on the workbench under this name."""
    found: Images = workbench.once(("images", data, split), lambda: images(data, split))
    return found


def hash_images(held: Images, first: int, count: int) -> str:
    """sha256 of some of the images, their labels and the names of the classes."""
    part = slice(first, first + count)
    return hash_tensors(
        {"pixels": held.pixels[part], "labels": held.labels[part]}, "\n".join(held.classes)
    )


def exact_of(cell: NetCell, workbench: Workbench) -> Transformer | Foreign:
    """A copy of the network in float64, to evaluate only."""
    found = weights_of(workbench, cell.checkpoint)
    check_hash(f"the network {cell.checkpoint!r}", found, cell.weights)

    def made() -> Transformer | Foreign:
        network = copy.deepcopy(network_of(workbench, cell.checkpoint))
        return network.double().eval().requires_grad_(False)

    network: Transformer | Foreign = workbench.once(("exact", cell.checkpoint), made)
    return network


def evaluate(cell: Shard, workbench: Workbench) -> list[Row | NearRow]:
    """Certificates in float64, then the attack on every image that is read rightly, then the
    nearest misread images for those with the smallest proved radii.

    A certificate that the attack breaks is marked `unsound` in its row; nothing is raised, so that
    the evidence is kept.
    """
    network, held = exact_of(cell, workbench), images_of(workbench, cell.data, cell.split)
    check_hash(f"{held.name}", hash_images(held, cell.first, cell.count), cell.pixels)
    part = slice(cell.first, cell.first + cell.count)
    x, y = held.pixels[part].double(), held.labels[part]
    place = f"{cell.network}, images {cell.first} to {cell.first + cell.count - 1}"
    workbench.check(0.0, f"{place}: certificates")
    begun = time.perf_counter()
    predicted = network(x).argmax(-1)
    proved = certify(certifiable(network), x, cell.eps, y, bisections=cell.bisections)
    middle = time.perf_counter()
    workbench.check(0.3, f"{place}: attacks")
    radius = torch.tensor([made.radius for made in proved[0]], dtype=torch.float64)
    verdicts = torch.tensor([[made.verdict for made in several] for several in proved])
    broken, at_radius, blind = _attacked(cell, network, x, y, predicted == y, verdicts, radius)
    seconds = (middle - begun) / len(x), (time.perf_counter() - middle) / len(x)
    off, off_proved = _content_off(cell, network, x, y)
    rows: list[Row | NearRow] = [
        Row(
            network=cell.network,
            image=cell.first + i,
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
            content_off=off[i],
            content_off_certified=off_proved[e][i],
            certify_seconds=seconds[0],
            attack_seconds=seconds[1],
        )
        for i in range(len(x))
        for e, made in enumerate(certificates[i] for certificates in proved)
    ]
    if cell.nearest:
        workbench.check(0.9, f"{place}: nearest misread images")
        rows += nearest(cell, network, held, radius)
    return rows


def _content_off(
    cell: Shard, network: Transformer | Foreign, x: Tensor, y: Tensor
) -> tuple[list[int | None], list[list[bool | None]]]:
    """What is read with every A set to 0, and whether that is right and proved at each eps; None
    for a network without attention.
    """
    twin = network.with_content_off() if network.attentions else None
    if twin is None:
        return [None] * len(x), [[None] * len(x) for _ in cell.eps]
    proved = certify(certifiable(twin), x, cell.eps, y, bisections=0)
    return twin(x).argmax(-1).tolist(), [[made.verdict for made in several] for several in proved]


def _attacked(
    cell: Shard,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    right: Bool[Tensor, " b"],
    proved: Bool[Tensor, "eps b"],
    radius: Float[Tensor, " b"],
) -> tuple[Bool[Tensor, "eps b"], Bool[Tensor, " b"], Bool[Tensor, " b"]]:
    """Which images are broken within each eps and within their own radius, and for which the attack
    saw no gradient; all balls in one attack.

    An image that is proved at an eps and whose own radius reaches it is attacked at that radius
    only, a ball that holds the other; an image that is misread needs no attack. What is broken at
    one eps stays broken at larger ones.
    """
    balls = [torch.full_like(radius, eps) for eps in cell.eps] + [radius]
    held = [one & (radius >= ball) for one, ball in zip(proved, balls, strict=False)]
    asked = [*(right & ~one for one in held), right & (radius > 0)]
    images = [part.nonzero()[:, 0] for part in asked]
    distance = torch.full((len(balls), len(x)), torch.inf, dtype=torch.float64)
    blind = torch.zeros(len(x), dtype=torch.bool)
    image = torch.cat(images)
    if len(image):
        ball = torch.cat([one[part] for one, part in zip(balls, images, strict=True)])
        ball_number = torch.arange(len(balls)).repeat_interleave(
            torch.tensor([len(part) for part in images])
        )
        strength = (cell.steps, cell.restarts, cell.seed)
        attack = pgd(network, x[image], y[image], ball, *strength, search=in_single(network))
        away = torch.linalg.vector_norm((attack.x - x[image]).flatten(1), dim=1)
        distance[ball_number, image] = away.where(attack.succeeded, torch.inf)
        blind[image[attack.blind]] = True
    nearest_found, eps = distance.amin(0), torch.tensor(cell.eps, dtype=torch.float64)
    return nearest_found <= eps[:, None], (nearest_found <= radius) & (radius > 0), blind
