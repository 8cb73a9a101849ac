"""Images and labels in .npz files. Arrays of objects are never read: they are pickles."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.data._set import Images, from_arrays, part

PIXELS = ("images", "x", "X", "data", "pixels")
LABELS = ("labels", "y", "Y", "label", "targets", "target")
CLASSES = ("classes", "class_names", "label_names")
PARTS = ("train", "test")
MOST_CLASSES = 100_000

Arrays = dict[str, NDArray[Any]]


def holds(path: Path) -> bool:
    """Is this a .npz file, or a folder with train.npz and test.npz?"""
    return (
        path.suffix == ".npz"
        if path.is_file()
        else all((path / f"{name}.npz").is_file() for name in PARTS)
    )


def read(path: Path, split: str) -> Images:
    """The images of a split in the order of the file."""
    pieces, classes = _pieces(path)
    largest = max(int(labels.max()) for _, labels in pieces.values())
    if largest >= MOST_CLASSES:
        raise ValueError(
            f"{str(path)!r}: labels must be numbers of classes, 0, 1, 2, ..., got {largest}."
        )
    names = classes or [str(label) for label in range(largest + 1)]
    if "whole" in pieces:
        pixels, labels = pieces["whole"]
        chosen = part(split, labels)
        if not len(chosen):
            raise ValueError(
                f"{str(path)!r} has no {split} images: each class needs at least 5 to give one"
                " away, or pass the split all."
            )
        pixels, labels = pixels[chosen], labels[chosen]
    else:
        wanted = [pieces[name] for name in PARTS if split in (name, "all")]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*wanted, strict=True))
    return from_arrays(pixels, labels, names, path.stem)


def _pieces(path: Path) -> tuple[dict[str, tuple[NDArray[Any], NDArray[Any]]], list[str]]:
    """(pixels, labels) of "train" and "test", or of "whole"; and the names of the classes if the
    file has them.
    """
    if path.is_dir():
        files = {name: _load(path / f"{name}.npz") for name in PARTS}
        return {
            name: _pair(arrays, "", path / f"{name}.npz") for name, arrays in files.items()
        }, _names(files["train"])
    arrays = _load(path)
    apart = any(f"{key}_train" in arrays for key in PIXELS)
    if apart:
        return {name: _pair(arrays, f"_{name}", path) for name in PARTS}, _names(arrays)
    return {"whole": _pair(arrays, "", path)}, _names(arrays)


def _load(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{str(path)!r} is not a whole .npz file: save it again with numpy.savez(file,"
            " images=..., labels=...)."
        )
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            wanted = [
                key
                for key in file.files
                if key in CLASSES
                or key.removesuffix("_train").removesuffix("_test") in PIXELS + LABELS
            ]
            return {key: np.asarray(file[key]) for key in wanted}
    except MemoryError as error:
        raise ValueError(
            f"{str(path)!r} promises more numbers than the machine can hold: it is damaged, or must"
            " be cut into smaller files."
        ) from error
    except Exception as error:  # a damaged or encrypted archive can end in any exception
        objects = "pickle" in str(error)
        problem = (
            "holds objects, which are pickles and not read"
            if objects
            else f"is truncated or damaged ({error})"
        )
        raise ValueError(
            f"{str(path)!r} {problem}: save plain arrays with numpy.savez(file, images=...,"
            " labels=...)."
        ) from error


def _names(arrays: Arrays) -> list[str]:
    return next(
        ([str(name) for name in arrays[key].ravel()] for key in CLASSES if key in arrays), []
    )


def _pair(arrays: Arrays, end: str, path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    pixels = next((arrays[key + end] for key in PIXELS if key + end in arrays), None)
    labels = next((arrays[key + end] for key in LABELS if key + end in arrays), None)
    if pixels is None or labels is None:
        raise ValueError(
            f"{str(path)!r} needs arrays images{end} and labels{end} (or x{end} and y{end}), it has"
            f" {', '.join(arrays) or 'neither'}."
        )
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    matching = labels.ndim == 1 and labels.shape == pixels.shape[:1] and labels.size > 0
    if labels.dtype.kind not in "ui" or not matching:
        raise ValueError(
            f"{str(path)!r}: labels must be whole numbers, one for each image, got {labels.dtype}"
            f" of shape {labels.shape}."
        )
    return _channels_first(pixels, path), labels


def _channels_first(pixels: NDArray[Any], path: Path) -> NDArray[Any]:
    if pixels.dtype == np.uint8:
        shaped = pixels[..., None] if pixels.ndim == 3 else pixels
        if shaped.ndim == 4 and shaped.shape[3] in (1, 3):
            return shaped.transpose(0, 3, 1, 2)
    elif pixels.dtype.kind == "f":
        shaped = pixels[:, None] if pixels.ndim == 3 else pixels
        if shaped.ndim == 4 and shaped.shape[1] in (1, 3):
            return shaped
    raise ValueError(
        f"{str(path)!r}: images must be uint8 of shape (N, H, W, C) or floating point in [0, 1] of"
        f" shape (N, C, H, W), with C = 1 or 3, got {pixels.dtype} of shape {pixels.shape}."
    )
