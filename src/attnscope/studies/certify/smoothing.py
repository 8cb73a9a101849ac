"""The smoothed network beside the proofs: rows of one shard, and their lines in the table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from attnscope.certification import smoothed
from attnscope.studies.certify.evaluation import (
    hash_images,
    images_of,
    network_of,
    weights_of,
)
from attnscope.studies.certify.rows import CertifyConfig, Smoothing, SmoothRow
from attnscope.studies.workbench import Workbench, check_hash
from attnscope.validation import check_positive

METHODS = ("proof", "smoothing", "both")


def check_smoothing(config: CertifyConfig) -> None:
    """What can be refused before a network is loaded."""
    if config.method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {config.method!r}.")
    if config.method == "proof":
        return
    if config.sigma is None:
        raise ValueError("smoothing needs sigma, the standard deviation of the noise.")
    check_positive("sigma", config.sigma)
    if config.samples < 1:
        raise ValueError(f"samples must be at least 1, got {config.samples}.")
    if not 0 < config.alpha < 1 / config.shard:
        raise ValueError(
            f"alpha, the probability of a wrong radius, must lie between 0 and {1 / config.shard:g}"
            f" (the images of a shard have it together), got {config.alpha:g}."
        )


def smooth_rows(cell: Smoothing, workbench: Workbench) -> Iterator[SmoothRow]:
    """One row per image. The noise depends on the seed and the number of the image alone."""
    check_hash(
        f"the network {cell.checkpoint!r}", weights_of(workbench, cell.checkpoint), cell.weights
    )
    network = network_of(workbench, cell.checkpoint).eval()
    held = images_of(workbench, cell.data, cell.split)
    check_hash(f"{held.name}", hash_images(held, cell.first, cell.count), cell.pixels)
    for number in range(cell.first, cell.first + cell.count):
        workbench.check(
            (number - cell.first) / cell.count, f"{cell.network}, image {number}: smoothing"
        )
        begun = time.perf_counter()
        drawn = np.random.SeedSequence([cell.seed, number]).generate_state(1, np.uint64)
        (found,) = smoothed(
            network,
            held.pixels[number : number + 1],
            cell.sigma,
            samples=cell.samples,
            alpha=cell.alpha,
            seed=torch.Generator().manual_seed(int(drawn[0] >> np.uint64(1))),
        )
        yield SmoothRow(
            network=cell.network,
            image=number,
            label=int(held.labels[number]),
            predicted=found.label,
            sigma=found.sigma,
            samples=found.samples,
            agreeing=found.count,
            lower=found.lower,
            radius=found.radius,
            kind=found.kind,
            failure_probability=found.failure_probability,
            seconds=time.perf_counter() - begun,
        )


@final
@dataclass(frozen=True)
class SmoothSummary:
    """What the rows of one smoothed network say; all shares are probable."""

    images: int
    sigma: float
    samples: int
    clean: float
    """Share that the smoothed network reads rightly and does not abstain from."""
    abstained: float
    eps: tuple[float, ...]
    certified: tuple[float, ...]
    radius: float
    """Mean radius, 0 for images that are misread or abstained from."""
    alpha: float
    failure_probability: float
    """That some radius of these rows is wrong."""
    seconds: float


def summarise_smoothing(rows: Sequence[SmoothRow], eps: Sequence[float]) -> SmoothSummary:
    """Shares over all images of these rows, which belong to one network."""
    count, radii = len(rows), np.array([row.rightly for row in rows])
    return SmoothSummary(
        images=count,
        sigma=rows[0].sigma,
        samples=rows[0].samples,
        clean=sum(row.predicted == row.label for row in rows) / count,
        abstained=sum(row.predicted is None for row in rows) / count,
        eps=tuple(sorted(eps)),
        certified=tuple(float((radii >= one).mean()) for one in sorted(eps)),
        radius=float(radii.mean()),
        alpha=rows[0].failure_probability,
        failure_probability=sum(row.failure_probability for row in rows),
        seconds=sum(row.seconds for row in rows) / count,
    )


def smooth_summaries(rows: Sequence[SmoothRow], eps: Sequence[float]) -> dict[str, SmoothSummary]:
    parts = {name: [row for row in rows if row.network == name] for name in ("network", "control")}
    return {name: summarise_smoothing(part, eps) for name, part in parts.items() if part}


def sentences(made: dict[str, SmoothSummary]) -> list[str]:
    """What stands below the table."""
    if "network" not in made:
        return []
    one = made["network"]
    return [
        f"Smoothed (sigma {one.sigma:g}, {one.samples} samples): mean radius {one.radius:.4f},"
        f" {100 * one.abstained:.1f} % abstained, {1000 * one.seconds:.0f} ms per image.",
        "smoothed: probable. It speaks of another classifier, the class that noisy copies of an"
        f" image are read as most often. A radius is wrong with probability at most {one.alpha:g};"
        f" that one of the {one.images} is, at most {min(one.failure_probability, 1.0):.3g}.",
    ]
