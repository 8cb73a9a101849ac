"""A folder of pictures whose sub-folders are the classes."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.data._set import Images, from_arrays, part

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
DEEP = {"I", "I;16", "I;16B", "I;16L", "F"}
"""Modes of Pillow with more than 8 bits per channel."""
MOST_PIXELS = 2**22
"""Of a picture; no network here reads more."""


def holds(path: Path) -> bool:
    """Any folder may hold pictures."""
    return path.is_dir()


def read(path: Path, split: str) -> Images:
    """Classes and pictures in alphabetical order; all pictures of one size, grey only if all are
    grey.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ValueError('pictures are read with Pillow: pip install "attnscope[plot]".')
    apart = (path / "train").is_dir() and (path / "test").is_dir()
    roots = (
        [path / name for name in ("train", "test") if split in (name, "all")] if apart else [path]
    )
    classes = _classes(path / "train" if apart else path)
    if apart and _classes(path / "test") != classes:
        raise ValueError(
            f"{str(path)!r}: train and test must have sub-folders of the same names, one for each"
            " class."
        )
    files = [
        (file, label)
        for root in roots
        for label, name in enumerate(classes)
        for file in _pictures(root / name)
    ]
    if not files:
        raise ValueError(
            f"{str(path)!r} holds no pictures: put them into one sub-folder for each class,"
            f" {path}/CLASS/*.png."
        )
    if not apart:
        files = [files[place] for place in part(split, np.array([label for _, label in files]))]
    if not files:
        raise ValueError(
            f"{str(path)!r} has no {split} pictures: each class needs at least 5 to give one away,"
            " or make train/ and test/."
        )
    return from_arrays(
        _stack([file for file, _ in files]),
        [label for _, label in files],
        classes,
        path.resolve().name,
    )


def _classes(path: Path) -> list[str]:
    return sorted(
        entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _pictures(path: Path) -> list[Path]:
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in ENDINGS and not entry.name.startswith(".")
    )


def _stack(files: list[Path]) -> NDArray[np.uint8]:
    """The pictures as one array (N, C, H, W)."""
    pictures = [_picture(file) for file in files]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape[:2] != pictures[0].shape[:2]:
            (height, width), (other_height, other_width) = pictures[0].shape[:2], picture.shape[:2]
            raise ValueError(
                f"{str(file)!r} is {other_width} x {other_height} pixels, but {str(files[0])!r} is"
                f" {width} x {height}: all pictures must have one size."
            )
    grey = all(picture.ndim == 2 for picture in pictures)
    coloured = [
        picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=2)
        for picture in pictures
    ]
    return np.stack(pictures)[:, None] if grey else np.stack(coloured).transpose(0, 3, 1, 2)


def _picture(file: Path) -> NDArray[Any]:
    """Grey (H, W) or colour (H, W, 3), uint8; transparency is dropped."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a size that is refused below
            opened = Image.open(file)
        with opened as picture:
            if picture.mode in DEEP:
                raise ValueError(
                    f"{str(file)!r} has more than 8 bits per channel: convert it to 8 bits first."
                )
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(
                    f"{str(file)!r} is {picture.width} x {picture.height} pixels, more than the"
                    f" {MOST_PIXELS} that are read: make it smaller."
                )
            return np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{str(file)!r} is not a readable picture ({error}): replace or remove it."
        ) from error
