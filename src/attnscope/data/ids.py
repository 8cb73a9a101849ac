"""Token ids from a file, for models that come without a tokenizer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from attnscope.validation import described

LARGEST = 2**63 - 1


def read_ids(source: str | Path) -> Int[Tensor, " total"]:
    """Whole numbers of at least 0, from a .npy file of shape (total,) or a text file that holds
    them in decimal, separated by blanks or commas.
    """
    if not isinstance(source, str | Path) or not str(source).strip():
        raise ValueError(f"token ids are read from a file, got {described(source)}.")
    path = Path(source)
    array = _array(path) if path.suffix == ".npy" else _written(path)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "ui":
        raise ValueError(
            f"{str(path)!r} must hold whole numbers of shape (total,), got {array.dtype} of shape"
            f" {array.shape}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > LARGEST:
        raise ValueError(f"{str(path)!r} must hold token ids of at least 0, got {low} to {high}.")
    return torch.from_numpy(array.astype(np.int64))


def _array(path: Path) -> NDArray[Any]:
    try:  # mapped: a header that promises more than the file holds costs nothing
        with np.errstate(over="ignore"):
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # a damaged file can end in any exception
        raise ValueError(
            f"{str(path)!r} is no .npy file of whole numbers ({error or type(error).__name__})."
        ) from error


def _written(path: Path) -> NDArray[Any]:
    try:
        pieces = re.split(r"[\s,]+", path.read_text(encoding="ascii").strip(" \t\r\n,"))
        return np.array([int(piece) for piece in pieces], dtype=np.int64)
    except OSError as error:
        raise ValueError(
            f"the token ids {str(path)!r} cannot be read ({error.strerror or error})."
        ) from error
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{str(path)!r} must hold token ids: whole numbers separated by blanks or commas, or an"
            " array in a .npy file."
        ) from error
