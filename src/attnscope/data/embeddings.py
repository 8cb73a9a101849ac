"""Embeddings of tokens from a file, in place of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.validation import described

ENDINGS = (".npy", ".npz", ".safetensors")


def read_embeddings(source: str | Path) -> Float[Tensor, "b n d"]:
    """One array of shape (n, d), or (B, n, d) for several sequences, from a .npy, .npz or
    .safetensors file. Arrays of objects are never read: they are pickles.
    """
    if not isinstance(source, str | Path) or not str(source).strip():
        raise ValueError(f"embeddings are read from a file, got {described(source)}.")
    path = Path(source)
    if path.suffix not in ENDINGS:
        raise ValueError(
            f"embeddings are read from a {', '.join(ENDINGS)} file, got {str(path)!r}."
        )
    try:
        held = _arrays(path)
    except Exception as error:  # a damaged file can end in any exception
        raise ValueError(
            f"{str(path)!r} holds no embeddings that can be read ({error or type(error).__name__})."
        ) from error
    if len(held) != 1:
        raise ValueError(f"{str(path)!r} must hold one array, got {', '.join(held) or 'none'}.")
    (array,) = held.values()
    if array.ndim not in (2, 3) or not array.is_floating_point() or not array.numel():
        raise ValueError(
            f"{str(path)!r} must hold numbers of shape (n, d) or (B, n, d), got {described(array)}."
        )
    if not bool(torch.isfinite(array).all()):
        raise ValueError(f"{str(path)!r} holds numbers that are not finite.")
    return array.reshape(-1, *array.shape[-2:])


def _arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    held: Any = np.load(path, allow_pickle=False)
    if path.suffix == ".npy":
        return {"array": torch.from_numpy(np.ascontiguousarray(held))}
    with held:
        return {name: torch.from_numpy(np.ascontiguousarray(held[name])) for name in held.files}
