"""Attention made of matrices that a user names or brings in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnscope.attention import Attention, Heads, variants

MATRICES = ("identity", "minus-identity", "random", "symmetric", "skew", "low-rank")


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
        raise ValueError(f"--attention must be one of {', '.join(found)}, got {name!r}.")
    a, v = (
        torch.stack([named_matrix(which, dim, generator) for _ in range(heads)])
        for which in (scores, values)
    )
    return found[name](Heads.from_matrices(a, v / heads), causal=causal)


def named_matrix(name: str, dim: int, generator: torch.Generator) -> torch.Tensor:
    """A named matrix or one from a file; random ones have entries of variance 1/dim, a low-rank one
    is -R^T R of rank dim // 2.
    """
    if name.endswith(".npy"):
        matrix = torch.from_numpy(np.asarray(load_array(name), dtype=np.float64))
        if matrix.shape != (dim, dim):
            raise ValueError(
                f"{name} must hold a {dim} x {dim} matrix (see --dim), got shape"
                f" {tuple(matrix.shape)}."
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


def load_array(path: str) -> Any:
    """What a .npy file holds; nothing in it is executed."""
    if not Path(path).exists():
        raise ValueError(f"there is no file {path}.")
    return np.load(path, allow_pickle=False)
