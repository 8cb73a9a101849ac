"""What each layer takes from the margins of some images: the rows, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.certification.branches import explained
from attnscope.certification.reading import taken_apart
from attnscope.layers import ResidualAttention, SelfAttention
from attnscope.studies.certify.evaluation import exact_of, hash_images, images_of
from attnscope.studies.certify.foreign import certifiable
from attnscope.studies.certify.rows import Explained, ShareRow
from attnscope.studies.study import Sheet
from attnscope.studies.workbench import Workbench, check_hash


def share_rows(cell: Explained, workbench: Workbench) -> Iterator[ShareRow]:
    """Reach, remainder and theorem of every layer that curves, at the proved radius of each image;
    nothing for images without one.
    """
    network = certifiable(exact_of(cell, workbench))
    held = images_of(workbench, cell.data, cell.split)
    check_hash(f"{held.name}", hash_images(held, 0, cell.count), cell.pixels)
    norms = norms_by_place(network)
    pixels, labels = held.pixels[: cell.count].double(), held.labels[: cell.count]
    certificates = certify(network, pixels, cell.eps, labels, bisections=cell.bisections)[0]
    for number, made in enumerate(certificates):
        workbench.check(number / cell.count, f"{cell.network}, image {number}: layers")
        if not made.radius > 0:
            continue
        shares = explained(network, pixels[number : number + 1], made.radius)
        most = max((share.remainder for share in shares), default=0.0)
        for share in shares:
            yield ShareRow(
                network=cell.network,
                image=number,
                layer=share.place,
                norm=norms.get(share.place),
                theorem=share.theorem,
                radius=made.radius,
                margin=made.margin,
                reach=share.reach,
                remainder=share.remainder,
                limits=share.remainder == most,
            )


def norms_by_place(network: nn.Module) -> dict[str, float]:
    """The largest norm of A in each attention layer, by the place where `certify` finds it."""
    try:
        links = [node.link for node in taken_apart(network).nodes if node.link is not None]
    except NoBound:
        return {}
    return {
        link.place: float(link.layer.content_norms().max())
        for link in links
        if isinstance(link.layer, ResidualAttention | SelfAttention)
    }


def layer_sheets(rows: Sequence[ShareRow]) -> list[Sheet]:
    """One line for each layer, means over the images; they are of the network, not its control."""
    if not rows:
        return []
    images = len({row.image for row in rows})
    lines: list[tuple[str, ...]] = []
    for layer in dict.fromkeys(row.layer for row in rows):
        here = [row for row in rows if row.layer == layer]
        norm = here[0].norm
        theorems = Counter(row.theorem for row in here).most_common()
        lines.append(
            (
                _shortened(layer),
                "" if norm is None else f"{norm:.3g}",
                f"{_mean([row.reach / row.radius for row in here]):.3g}",
                f"{100 * _mean([row.remainder / row.margin for row in here]):.1f}",
                ", ".join(f"{name} {count}" for name, count in theorems)
                if len(theorems) > 1
                else theorems[0][0],
                f"{sum(row.limits for row in here)}",
            )
        )
    return [
        Sheet(
            f"What each layer takes, at the proved radii of {images} images",
            ("layer", "|A|", "moves", "% taken", "by", "limits"),
            lines,
            "|A|: largest norm of A. moves: how far the layer's input can move, over the radius."
            " % taken: what its remainder takes from the margin in NT4. limits: in how many images"
            " it takes most. All proved, means over the images.",
        )
    ]


def _shortened(place: str) -> str:
    """Without what every layer of a network of one part begins with."""
    return place.removeprefix("layer ").replace("ForImageClassification", "")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
