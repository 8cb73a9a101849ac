"""What a run of `certify` is asked, cut into, and made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnscope.studies.cell import Cell

LAYER_EPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


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
    """The attack found a misread image within eps, or, where eps is certified, within the proved
    radius and no farther than eps; None when the image itself is misread.
    """
    broken_at_radius: bool | None
    """The same within the proved radius, where it would be a bug; None when there is no such
    radius.
    """
    blind: bool | None
    """The attack saw no gradient, so that its failure says little."""
    content_off: int | None
    """What is read when every A is set to 0; None for a network without attention."""
    content_off_certified: bool | None
    """Whether that is right, and proved right within eps."""
    certify_seconds: float
    attack_seconds: float

    @property
    def unsound(self) -> bool:
        """An attack broke what was proved."""
        return bool((self.certified and self.broken) or self.broken_at_radius)


class ShareRow(NamedTuple):
    """What one layer takes from the margin of one image at its proved radius."""

    network: str
    image: int
    layer: str
    norm: float | None
    """The largest norm of A of its heads; None where there is no A."""
    theorem: str
    radius: float
    margin: float
    reach: float
    """Its input moves by at most this much: proved."""
    remainder: float
    """What lies beyond its linear part takes at most this much from the margin: proved."""
    limits: bool
    """No other layer takes more."""


class SmoothRow(NamedTuple):
    """One network smoothed by Gaussian noise, one image. `radius` is probable: wrong with at most
    `failure_probability`, and about the smoothed network.
    """

    network: str
    image: int
    label: int
    predicted: int | None
    """What the smoothed network reads; None where it abstains."""
    sigma: float
    samples: int
    agreeing: int
    """Samples that were read as the class that was selected."""
    lower: float
    """The probability of that class is at least this."""
    radius: float
    """The smoothed network reads every image within this radius as `predicted`."""
    kind: str
    failure_probability: float
    seconds: float

    @property
    def rightly(self) -> float:
        """The radius within which it is right; 0 when the image is misread."""
        return self.radius if self.predicted == self.label else 0.0


class NetworkRow(NamedTuple):
    """A network, the images that it reads, and how it was trained, as far as its file says."""

    network: str
    checkpoint: str
    attention: str
    heads: int
    depth: int
    images: str
    data: str | None
    minutes: float | None
    steps: int | None
    finished: bool | None


class HeadRow(NamedTuple):
    """The norm of A of one head."""

    network: str
    layer: int
    head: int
    norm: float


class NearRow(NamedTuple):
    """An image and the radius proved for it; the nearest misread image that was found, how far it
    is and what it is read as (or None).
    """

    image: int
    label: int
    radius: float
    distance: float | None
    read_as: int | None
    class_name: str
    read_as_name: str | None
    pixels: np.ndarray
    misread: np.ndarray | None


class LayerRow(NamedTuple):
    """How far the output of one random residual softmax layer can move: a theorem, the smallest of
    them, or what the attack found.
    """

    heads: int
    eps: float
    by: str
    proved: bool
    moved: float


@dataclass(frozen=True)
class CertifyConfig:
    """What to certify.

    Args:
        checkpoint: Folder of a network; None for the digits network that ships with attnscope.
        builder: `package.module:function` that builds the module whose weights the checkpoint, a
            safetensors file, holds.
        data: The images; None for what the network was trained on.
        images: How many of the split, from the first on.
        eps: Radii in l2 of pixels in [0, 1].
        eps_names: How tables write them, such as "36/255"; no row depends on it.
        control: Folder of the control; None for the one beside the checkpoint, if any.
        steps: Of every attack; `restarts` are its starts.
        bisections: Radii tried for each image between the largest proved and the largest possible.
        shard: Images per cell.
        nearest: How many of the images nearest to their certificate are shown.
        layers: Numbers of heads of the random layers whose bound is set against an attack.
        explained: How many images of the network are taken apart layer by layer.
        method: "proof"; "smoothing", for any classifier, probable; or "both".
        sigma: Of the noise in every pixel.
        samples: Noisy copies of each image.
        alpha: The probability with which the radius of one image may be wrong.
    """

    checkpoint: str | None = None
    data: str | None = None
    split: str = "test"
    images: int = 100
    eps: tuple[float, ...] = (36 / 255, 72 / 255, 108 / 255)
    eps_names: tuple[str, ...] = ("36/255", "72/255", "108/255")
    control: str | None = None
    steps: int = 100
    restarts: int = 5
    seed: int = 0
    bisections: int = 7
    shard: int = 25
    nearest: int = 6
    layers: tuple[int, ...] = (1, 8)
    explained: int = 3
    builder: str | None = None
    method: str = "proof"
    sigma: float | None = None
    samples: int = 1000
    alpha: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class NetCell(Cell):
    """A network by its folder and the hash of its weights; `network` is "network" or "control"."""

    network: str
    checkpoint: str
    weights: str
    data: str
    split: str


@dataclass(frozen=True, kw_only=True)
class About(NetCell):
    """What the file of a network says of it, and the norms of its heads."""

    trained: tuple[str | None, float | None, int | None, bool | None]
    """Data, minutes, steps, and whether the training was finished."""


@dataclass(frozen=True, kw_only=True)
class Shard(NetCell):
    """The images [first, first + count) with all certificates and attacks; `pixels` is their
    hash.
    """

    first: int
    count: int
    pixels: str
    eps: tuple[float, ...]
    bisections: int
    steps: int
    restarts: int
    seed: int
    nearest: int


@dataclass(frozen=True, kw_only=True)
class Explained(NetCell):
    """The first images, layer by layer."""

    count: int
    pixels: str
    eps: tuple[float, ...]
    bisections: int


@dataclass(frozen=True, kw_only=True)
class Smoothing(NetCell):
    """The images [first, first + count) read by the smoothed network."""

    first: int
    count: int
    pixels: str
    sigma: float
    samples: int
    alpha: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class OneLayer(Cell):
    """A random layer, its bounds and the attack on it."""

    heads: int
    eps: tuple[float, ...]
    steps: int
    restarts: int
    seed: int
