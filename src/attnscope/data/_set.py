"""A set of labelled images, checked once, whatever it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from attnscope.validation import brief, check_tensor, described

SPLITS = ("train", "test", "all")
HELD_OUT = 5
"""Where a set comes in one piece, every HELD_OUT-th image of each class is a test image."""


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels in [0, 1] (float32 from files), labels 0, 1, ... and the name of each class."""

    pixels: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    classes: tuple[str, ...]
    name: str = "images"

    __repr__ = brief

    def __post_init__(self) -> None:
        check_tensor("pixels", self.pixels, "images channels height width")
        low, high = float(self.pixels.min()), float(self.pixels.max())
        if low < 0 or high > 1:
            raise ValueError(
                f"{self.name}: pixels must lie in [0, 1], got values from {low:.12g} to"
                f" {high:.12g}: rescale them first."
            )
        if (
            not isinstance(self.labels, Tensor)
            or self.labels.dtype != torch.int64
            or self.labels.shape != self.pixels.shape[:1]
        ):
            raise ValueError(
                f"{self.name}: labels must be whole numbers (int64), one for each of the"
                f" {len(self.pixels)} images, got {described(self.labels)}."
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(
                f"{self.name}: labels must lie in 0 to {len(self.classes) - 1}, got values from"
                f" {low} to {high}."
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def first(self, count: int) -> Images:
        """The first `count` images, or all when there are fewer."""
        return Images(self.pixels[:count], self.labels[:count], self.classes, self.name)


def from_arrays(pixels: NDArray[Any], labels: Any, classes: Sequence[str], name: str) -> Images:
    """Images from NCHW pixels (uint8, divided by 255, or floating point in [0, 1]) and any whole
    numbers as labels.
    """
    scaled = torch.from_numpy(np.ascontiguousarray(pixels)).to(torch.float32)
    if pixels.dtype == np.uint8:
        scaled /= 255
    return Images(
        scaled, torch.from_numpy(np.asarray(labels).astype(np.int64)), tuple(classes), name
    )


def part(split: str, labels: NDArray[Any]) -> NDArray[np.intp]:
    """Places of the images of a split of a set in one piece: the 5th, 10th, 15th ... image of each
    class are test images.
    """
    labels = np.asarray(labels)
    rank = np.zeros(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        rank[mine] = np.arange(len(mine))
    held_out = rank % HELD_OUT == HELD_OUT - 1
    wanted = {"train": ~held_out, "test": held_out, "all": np.ones_like(held_out)}[split]
    return np.flatnonzero(wanted)
