"""Float64 where a device has it, and where it goes when a device has none."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Kinds of devices that refuse float64: what needs it goes to the CPU."""

MOST_COMMON = 100.0
"""How many times as large as their differences vectors may be that float32 stands for in float64's
place.
"""
SAME = 64 * torch.finfo(torch.float64).eps
"""The relative distance below which vectors in float64 are the same but for rounding."""

Movable = TypeVar("Movable", bound=Any)
"""Tensors, measures and attention: whatever has `to(dtype or device)`."""


def home(device: torch.device) -> torch.device:
    """Where float64 of this device is computed: there, or on the CPU where it has none."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def widened(thing: Movable, device: torch.device) -> Movable:
    """The same in float64: what lives on `device` goes home first."""
    return (thing if home(device) == device else thing.to(home(device))).to(torch.float64)


def wide(tensor: Tensor) -> Tensor:
    """A tensor in float64, at home."""
    return widened(tensor, tensor.device)


def lengths(vectors: Float[Tensor, "b N"]) -> Float[Tensor, " b"]:
    """Euclidean norms, left on the device; accumulated in float64, or in what the device has: its
    partial sums form a tree, and err less than a product in that precision does.
    """
    kind = torch.float64 if home(vectors.device) == vectors.device else vectors.dtype
    return torch.linalg.vector_norm(vectors, dim=1, dtype=kind)


def common_part(vectors: Float[Tensor, "*stack n d"]) -> float:
    """How many times as large as their distances from their mean n vectors are, at most in all of a
    stack: so many times their rounding weighs in their differences. 1 where they are the same.
    """
    vectors = wide(vectors)
    size, apart = (
        torch.linalg.vector_norm(part, dim=-1).amax(-1)
        for part in (vectors, vectors - vectors.mean(-2, keepdim=True))
    )
    differ = apart > SAME * size
    return float(torch.where(differ, size / torch.where(differ, apart, 1.0), 1.0).max())


def common_rounding(vectors: Float[Tensor, "*stack n d"]) -> float:
    """The relative rounding of what such vectors differ by, in their precision."""
    return 2 * torch.finfo(vectors.dtype).eps * common_part(vectors)
