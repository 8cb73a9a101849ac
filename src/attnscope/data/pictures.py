"""Images to certify on: named data sets, folders of pictures and .npz files. Pixels are in [0, 1],
so eps is l2 in pixel space.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from attnscope.data import _cifar, _folder, _npz, _svhn
from attnscope.data._download import cache
from attnscope.data._set import SPLITS, Images, from_arrays, part
from attnscope.data.strips import STRIPS, odd_ones, strips
from attnscope.validation import described

__all__ = ["NAMES", "SOURCES", "SPLITS", "Images", "images", "local_images"]

STRIPED = ("strips", "strips-class", "strips-odd")
NAMES = ("digits", *STRIPED, "cifar10", "svhn")
SOURCES = (
    f"{', '.join(NAMES)}, a folder of class-named pictures, a .npz file, or strips of one of these"
    " (strips:svhn)"
)
"""What a set of images is read from, in the help of commands."""


def images(source: str | Path, split: str = "test") -> Images:
    """A data set by its name or from files of its own; `split` is "train", "test" or "all".

    - "digits": the 8 x 8 digits that ship with scikit-learn, 1797 images.
    - "strips", "strips-class": four digits side by side, 1 x 8 x 32; the label says which of the
      last three is the very same picture as the first, or another picture of its class. 8000 strips
      of training digits, 1000 of test digits.
    - "strips-odd": five digits side by side, 1 x 8 x 40, two pictures twice and one once: which?
    - "strips:SET", "strips-class:SET", "strips-odd:SET": the same of the pictures of another set,
      by name or path: as many strips, training strips of its training pictures, test strips of its
      test pictures.
    - "cifar10", "svhn": downloaded once, checked by their hash, kept in a cache. Or a path: the
      official archive `cifar-10-python.tar.gz`, the folder it unpacks to, or a folder that holds
      either; a folder with `train_32x32.mat` and `test_32x32.mat`.
    - a folder of pictures, `DIR/class/*.png`, or `DIR/train/class/*.png` and
      `DIR/test/class/*.png`.
    - a file `.npz` with `images` and `labels` (or `x` and `y`, ...; or `x_train`, `y_train`,
      `x_test`, `y_test`): uint8 as (N, H, W) or (N, H, W, C), floating point in [0, 1] as (N, H, W)
      or (N, C, H, W). Or a folder with `train.npz` and `test.npz`.

    A set that comes in one piece (digits, a folder without train/ and test/, an .npz with one pair
    of arrays) is split by a rule without randomness: the 5th, 10th, 15th ... image of each class
    are test images, the others are training images.
    """
    if not isinstance(source, str | Path):
        raise TypeError(f"images needs {_accepted()}, got {described(source)}.")
    if not str(source).strip():
        raise ValueError(f"images needs {_accepted()}, got an empty name.")
    if split not in SPLITS:
        raise ValueError(f'split must be "train", "test" or "all", got {described(split)}.')
    if source == "digits":
        return _digits(split)
    if isinstance(source, str) and (kind := source.partition(":")[0]) in STRIPED:
        return _strips(kind, source[len(kind) :], split)
    if source == "cifar10":
        return _cifar.read(_cifar.fetched(), split)
    if source == "svhn":
        return _svhn.read(_svhn.fetched(split), split)
    return _from_files(Path(source), split)


def local_images(name: str, folder: Path | None = None) -> Path | None:
    """Where "cifar10" or "svhn" is on this machine, without a download: in this folder, or in the
    cache of downloads; None if it is not there.

    A folder holds a set in its official form, as a folder of its name, or as `NAME*.npz`.
    """
    readers: dict[str, ModuleType] = {"cifar10": _cifar, "svhn": _svhn}
    if name not in readers:
        raise ValueError(f"sets that are looked for are {', '.join(readers)}, got {name!r}.")
    if folder is None:
        cached = cache()
        return cached if cached is not None and readers[name].holds(cached) else None
    for place in (folder, folder / name):
        if place.is_dir() and readers[name].holds(place):
            return place
    if (folder / name).is_dir():
        return folder / name
    return next(iter(sorted(folder.glob(f"{name}*.npz"))), None) if folder.is_dir() else None


def _from_files(path: Path, split: str) -> Images:
    if not path.exists():
        raise ValueError(f"there is no data set {str(path)!r}: pass {_accepted()}.")
    for reader in (_npz, _svhn, _cifar, _folder):
        if reader.holds(path):
            return reader.read(path, split)
    raise ValueError(f"{str(path)!r} is no data set: pass {_accepted()}.")


def _accepted() -> str:
    return (
        f"{', '.join(NAMES)}, a folder of class-named pictures, a .npz file,"
        " cifar-10-python.tar.gz, a folder with train_32x32.mat and test_32x32.mat, or strips of"
        " one of these, as in strips:svhn"
    )


def _digits(split: str) -> Images:
    if importlib.util.find_spec("sklearn") is None:
        raise ValueError('the digits ship with scikit-learn: pip install "attnscope[data]".')
    from sklearn.datasets import load_digits

    whole = load_digits()
    chosen = part(split, whole.target)
    pixels = (whole.images[chosen, None] / 16).astype(np.float32)
    return from_arrays(pixels, whole.target[chosen], [str(digit) for digit in range(10)], "digits")


def _strips(kind: str, of: str, split: str) -> Images:
    """Strips of digits, or of the set that is named behind a colon. Test strips are made of its
    test pictures, with another seed; "all" is both, the training strips first.
    """
    source = of.removeprefix(":").strip() if of else "digits"
    if not source or source.partition(":")[0] in STRIPED:
        raise ValueError(
            f"strips are made of pictures: after {kind + ':'!r} comes a set of pictures, such as"
            f" {kind}:svhn or {kind}:PATH.npz, got {kind + of!r}."
        )
    made = []
    for seed, (one, count) in enumerate(STRIPS.items()):
        if split in (one, "all"):
            pictures = images(source, one)
            made.append(
                odd_ones(pictures, count, seed)
                if kind == "strips-odd"
                else strips(pictures, count, "class" if kind == "strips-class" else "picture", seed)
            )
    pixels, labels = (torch.cat([getattr(one, of) for one in made]) for of in ("pixels", "labels"))
    name = f"{kind}:{pictures.name}" if of else kind
    return Images(pixels, labels, made[0].classes, name)
