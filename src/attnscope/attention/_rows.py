"""Large couplings a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor

CHUNK_BYTES = 2**26
"""Size of a part of the coupling that is held at once. Above 32 MiB glibc returns every freed block
at once; below, the heap fragments.
"""


def by_rows(
    field: Callable[[Tensor, Tensor | None], Any],
    x: Float[Tensor, "*stack m d"],
    positions: Float[Tensor, "*stack m"] | None,
    entries_per_row: int,
) -> Tensor:
    """Evaluate `field(x, positions)` on a few rows of queries at a time, so that the coupling takes
    CHUNK_BYTES at the most.
    """
    rows = max(1, CHUNK_BYTES // (entries_per_row * x.element_size()))
    if rows >= x.shape[-2]:
        return field(x, positions)
    whole = None
    for start in range(0, x.shape[-2], rows):
        part = slice(start, start + rows)
        piece = field(x[..., part, :], None if positions is None else positions[..., part])
        if whole is None:  # a list of small pieces would pin the heap between the large blocks
            whole = piece.new_empty(*piece.shape[:-2], x.shape[-2], piece.shape[-1])
        whole[..., part, :] = piece
    assert whole is not None
    return whole
