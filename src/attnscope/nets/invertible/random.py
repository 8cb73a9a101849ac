"""Random attention to start an invertible stack from."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.attention import Attention, Heads, variants
from attnscope.validation import described


def random_attention(
    variant: str,
    dim: int,
    heads: int,
    radius: float,
    causal: bool,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Attention:
    """Gaussian matrices, queries and keys of the size that makes scores at most 1 in the ball. L2
    attention is tied, its values factor.
    """
    found = variants()
    if variant not in found:
        raise ValueError(
            f"the attention must be one of {', '.join(found)}, got {described(variant)}."
        )
    if heads < 1 or dim % heads:
        raise ValueError(f"heads must divide the dimension {dim}, got {heads}.")
    width = dim // heads

    def draw(*shape: int) -> Tensor:
        return (
            torch.randn(*shape, dtype=torch.float64, generator=generator, device=generator.device)
            / dim**0.5
        )

    def of_norm(matrix: Tensor, norm: float) -> Tensor:
        return matrix * (norm / torch.linalg.matrix_norm(matrix, 2)[:, None, None])

    query, key, value, output = (
        draw(heads, width, dim),
        draw(heads, width, dim),
        draw(heads, width, dim),
        draw(heads, dim, width),
    )
    unit = width**0.25 / radius
    if found[variant].lipschitz_if_tied:
        query = of_norm(query, unit / 2)
        made = Heads(query, query, draw(heads, width, width) @ query / unit, output)
    else:
        made = Heads(of_norm(query, unit), of_norm(key, unit), value, output)
    return found[variant](made.to(dtype), causal=causal)
