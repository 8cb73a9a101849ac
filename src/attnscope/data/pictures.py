"""Images to certify on: named data sets, folders of pictures and .npz files. Pixels are in [0, 1],
so eps is l2 in pixel space.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from attnscope.data import _cifar, _folder, _npz, _svhn
from attnscope.data._set import SPLITS, Images, from_arrays, part
from attnscope.validation import described

__all__ = ["NAMES", "SPLITS", "Images", "images"]

NAMES = ("digits", "cifar10", "svhn")


def images(source: str | Path, split: str = "test") -> Images:
    """A data set by its name or from files of its own; `split` is "train", "test" or "all".

    - "digits": the 8 x 8 digits that ship with scikit-learn, 1797 images.
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
    if not isinstance(source, str | Path) or not str(source):
        raise TypeError(f"images needs {_accepted()}, got {described(source)}.")
    if split not in SPLITS:
        raise ValueError(f'split must be "train", "test" or "all", got {described(split)}.')
    if source == "digits":
        return _digits(split)
    if source == "cifar10":
        return _cifar.read(_cifar.fetched(), split)
    if source == "svhn":
        return _svhn.read(_svhn.fetched(split), split)
    return _from_files(Path(source), split)


def _from_files(path: Path, split: str) -> Images:
    if not path.exists():
        raise ValueError(f"there is no data set {str(path)!r}: pass {_accepted()}.")
    for reader in (_npz, _svhn, _cifar, _folder):
        if reader.holds(path):
            return reader.read(path, split)
    raise ValueError(f"{str(path)!r} is no data set: pass {_accepted()}.")


def _accepted() -> str:
    return (
        "digits, cifar10, svhn, a folder of class-named pictures, a .npz file,"
        " cifar-10-python.tar.gz or a folder with train_32x32.mat and test_32x32.mat"
    )


def _digits(split: str) -> Images:
    if importlib.util.find_spec("sklearn") is None:
        raise ValueError('the digits ship with scikit-learn: pip install "attnscope[data]".')
    from sklearn.datasets import load_digits

    whole = load_digits()
    chosen = part(split, whole.target)
    pixels = (whole.images[chosen, None] / 16).astype(np.float32)
    return from_arrays(pixels, whole.target[chosen], [str(digit) for digit in range(10)], "digits")
