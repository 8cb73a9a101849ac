"""CIFAR-10 from its official Python archive [krizhevsky09].

The archive holds pickles, and a pickle can run any code. So nothing is unpacked to disk, and the
reader knows no names but those that make up a numpy array, which it answers with inert stand-ins of
its own.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnscope.data._download import download
from attnscope.data._set import Images, from_arrays

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
BATCHES["all"] = BATCHES["train"] + BATCHES["test"]
LARGEST = 2**30
"""Bytes that an archive may unpack to; the official one has 186 MB."""


def fetched() -> Path:
    """The official archive, from the cache or the network."""
    return download("CIFAR-10", URL, MD5)


def holds(path: Path) -> bool:
    """Is this the archive, the folder it unpacks to, or a folder that holds one of them?"""
    if path.is_dir():
        return (
            (path / "test_batch").exists() or (path / FOLDER).is_dir() or (path / ARCHIVE).exists()
        )
    return path.name.endswith((".tar.gz", ".tgz"))


def read(path: Path, split: str) -> Images:
    """The images of a split in the order of the archive."""
    if path.is_dir():
        unpacked = path / FOLDER if (path / FOLDER).is_dir() else path
        if not (unpacked / "test_batch").exists() and (path / ARCHIVE).exists():
            return read(path / ARCHIVE, split)
        files = {
            name: (unpacked / name).read_bytes()
            for name in BATCHES[split]
            if (unpacked / name).is_file()
        }
    else:
        files = _members(path)
    pieces = []
    for name in BATCHES[split]:
        if name not in files:
            raise ValueError(
                f"{str(path)!r} is not the official CIFAR-10 python archive: it has no file {name}."
            )
        pieces.append(_batch(files[name], f"{name} in {str(path)!r}"))
    return from_arrays(
        np.concatenate([pixels for pixels, _ in pieces]),
        np.concatenate([labels for _, labels in pieces]),
        CLASSES,
        "cifar10",
    )


def _members(path: Path) -> dict[str, bytes]:
    """Every file of the archive by its last name, in memory. Reading to the end checks the sum that
    gzip keeps.
    """
    try:
        with gzip.open(path) as packed:
            content = packed.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(
                f"{str(path)!r} unpacks to more than {LARGEST} bytes: this is not the official"
                " CIFAR-10 python archive."
            )
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            found = {
                entry.name.rsplit("/", 1)[-1]: archive.extractfile(entry)
                for entry in archive
                if entry.isfile()
            }
            return {name: file.read() for name, file in found.items() if file is not None}
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(
            f"{str(path)!r} is truncated or damaged ({error}): get {ARCHIVE} (md5 {MD5}) again from"
            f" {URL}."
        ) from error


def _batch(content: bytes, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can end in any exception
        raise ValueError(
            f"{where} is not a CIFAR-10 batch ({error}): get {ARCHIVE} (md5 {MD5}) again from"
            f" {URL}."
        ) from error
    pixels, labels = (
        (found.get(b"data"), found.get(b"labels")) if isinstance(found, dict) else (None, None)
    )
    if (
        not isinstance(pixels, _Array)
        or not isinstance(labels, list)
        or not all(type(label) is int for label in labels)
    ):
        raise ValueError(
            f"{where} is not a CIFAR-10 batch: it needs an array `data` and a list of whole numbers"
            " `labels`."
        )
    array = pixels.as_numpy()
    if array is None or array.shape != (len(labels), 3072) or not labels:
        raise ValueError(
            f"{where} is not a CIFAR-10 batch: `data` must hold {len(labels)} rows of 3072 uint8"
            " values."
        )
    return array.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: of no use for single bytes."""


class _Array:
    """Stands in for numpy.ndarray: remembers its pickled state."""

    state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def as_numpy(self) -> NDArray[np.uint8] | None:
        """The array, or None if it is not a table of single bytes."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            return None
        _, shape, dtype, column_major, raw = self.state
        table = (
            isinstance(shape, tuple)
            and len(shape) == 2
            and all(type(size) is int and size > 0 for size in shape)
        )
        single_bytes = isinstance(dtype, _Dtype) and dtype.code in (b"u1", "u1")
        if (
            not table
            or not single_bytes
            or not isinstance(raw, bytes)
            or len(raw) != shape[0] * shape[1]
        ):
            return None
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if column_major else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _Reader(pickle.Unpickler):
    """Reads plain containers and arrays; any other name in the pickle is an error, and nothing is
    imported or called.
    """

    known: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")
        return self.known[module, name]
