"""Attention made of matrices that a user names or brings in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention import Attention, Heads, variants

MATRICES = ("identity", "minus-identity", "random", "symmetric", "skew", "low-rank")
MOST_ENTRIES = 10**8
"""Of the matrices of all heads together: more would fill the memory before anything is computed."""


def attention_of_matrices(
    name: str,
    heads: int,
    scores: str,
    values: str,
    dim: int,
    causal: bool,
    generator: torch.Generator,
) -> Attention:
    """An attention by name, each head with matrices of its own; values are divided by the number of
    heads.
    """
    found = variants()
    if name not in found:
        raise ValueError(f"attention must be one of {', '.join(found)}, got {name!r}.")
    if heads * dim * dim > MOST_ENTRIES:
        raise ValueError(
            f"{heads} heads of {dim} x {dim} matrices have more than {MOST_ENTRIES:.0e} entries:"
            " choose a smaller dimension."
        )
    a, v = (
        torch.stack([named_matrix(which, dim, generator) for _ in range(heads)])
        for which in (scores, values)
    )
    return found[name](Heads.from_matrices(a, v / heads), causal=causal)


def named_matrix(name: str, dim: int, generator: torch.Generator) -> Float[Tensor, "dim dim"]:
    """A named matrix or one from a file; random ones have entries of variance 1/dim, a low-rank one
    is -R^T R of rank dim // 2.
    """
    if name.endswith(".npy"):
        matrix = torch.from_numpy(load_array(name))
        if matrix.shape != (dim, dim):
            raise ValueError(
                f"{name} must hold a {dim} x {dim} matrix, as tokens have dimension {dim}, got"
                f" shape {tuple(matrix.shape)}."
            )
        return matrix
    eye = torch.eye(dim, dtype=torch.float64)
    r = torch.randn(dim, dim, dtype=torch.float64, generator=generator) / dim**0.5
    half = r[: max(dim // 2, 1)]
    named = {
        "identity": eye,
        "minus-identity": -eye,
        "random": r,
        "symmetric": (r + r.mT) / 2,
        "skew": r - r.mT,
        "low-rank": -half.mT @ half,
    }
    if name not in named:
        raise ValueError(f"a matrix is one of {', '.join(MATRICES)}, or a .npy file, got {name!r}.")
    return named[name]


def load_array(path: str) -> NDArray[np.float64]:
    """The finite numbers that a .npy file holds, in float64; nothing in it is executed."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}.")
    try:  # mapped, so that a header that promises more than there is costs nothing
        with np.errstate(over="raise"):
            held = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can end in any exception
        raise ValueError(f"{path} is no .npy file of numbers ({error}).") from error
    if not isinstance(held, np.ndarray):
        held.close()  # a zip, which stays open
        raise ValueError(f"{path} is no .npy file of real numbers.")
    if held.dtype.kind not in "biuf":
        raise ValueError(f"{path} is no .npy file of real numbers.")
    array = np.array(held, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{path} holds numbers that are not finite.")
    return array


def seeded(seed: int) -> torch.Generator:
    """A generator with this seed."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"the seed must lie between 0 and 2^63 - 1, got {seed}.")
    return torch.Generator().manual_seed(seed)
