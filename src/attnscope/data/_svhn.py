"""Street View House Numbers, cropped digits, from the official .mat files [netzer11]."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.data._download import download
from attnscope.data._set import Images, from_arrays

URL = "http://ufldl.stanford.edu/housenumbers/"
MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
FILES = {
    "train": ["train_32x32.mat"],
    "test": ["test_32x32.mat"],
    "all": ["train_32x32.mat", "test_32x32.mat"],
}
CLASSES = tuple(str(digit) for digit in range(10))


def fetched(split: str) -> Path:
    """The folder with the official files of this split, from the cache or the network."""
    return [download("SVHN", URL + file, MD5[file]) for file in FILES[split]][-1].parent


def holds(path: Path) -> bool:
    """Is this one of the official files, or a folder with one of them?"""
    if path.is_dir():
        return any((path / file).exists() for file in MD5)
    return path.suffix == ".mat"


def read(path: Path, split: str) -> Images:
    """The images of a split in the order of the files. The digit 0 has label 10 in the files and 0
    here.
    """
    folder = path if path.is_dir() else path.parent
    pieces = [_mat(folder / file) for file in FILES[split]]
    return from_arrays(
        np.concatenate([pixels for pixels, _ in pieces]),
        np.concatenate([labels for _, labels in pieces]),
        CLASSES,
        "svhn",
    )


def _mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    if not path.is_file():
        raise ValueError(
            f"SVHN needs {path.name}, which is not in {str(path.parent)!r}: get it (md5"
            f" {MD5[path.name]}) from {URL}{path.name}."
        )
    import scipy.io

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a damaged file: what counts is checked below
            found = scipy.io.loadmat(path, variable_names=["X", "y"])
    except NotImplementedError as error:
        raise ValueError(
            f"{str(path)!r} is a .mat file of version 7.3, but SVHN comes in version 5: get it"
            f" again from {URL}."
        ) from error
    except Exception as error:  # a damaged file can end in any exception
        raise ValueError(
            f"{str(path)!r} is truncated or damaged ({error or type(error).__name__}): get it (md5"
            f" {MD5[path.name]}) again from {URL}."
        ) from error
    pixels, labels = found.get("X"), found.get("y")
    right = (
        isinstance(pixels, np.ndarray)
        and isinstance(labels, np.ndarray)
        and pixels.dtype == np.uint8
        and pixels.shape[:-1] == (32, 32, 3)
        and labels.shape == (pixels.shape[-1], 1)
        and labels.dtype.kind in "ui"
        and bool(((labels >= 1) & (labels <= 10)).all())
    )
    if not right or pixels is None or labels is None:
        raise ValueError(
            f"{str(path)!r} is not an SVHN file: it needs X, uint8 (32, 32, 3, N), and y, N labels"
            " from 1 to 10."
        )
    return pixels.transpose(3, 2, 0, 1), labels[:, 0].astype(np.int64) % 10
