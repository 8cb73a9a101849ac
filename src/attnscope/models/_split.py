"""Weight matrices of a real network, cut into heads."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads


class Projection(NamedTuple):
    """A linear map with its matrix as out x in."""

    weight: Float[Tensor, "out in_"]
    bias: Float[Tensor, " out"] | None


def linear(module: Any) -> Projection:
    """The projection that an `nn.Linear`, or what stands in its place, holds."""
    return Projection(module.weight.detach(), None if module.bias is None else module.bias.detach())


def split(
    query: Projection,
    key: Projection,
    value: Projection,
    output: Projection,
    size: int,
    scale: float,
    rotary: Float[Tensor, " half"] | None = None,
    position_bias: Float[Tensor, "h N N"] | None = None,
) -> Heads:
    """Heads of `size` coordinates each, one after the other along the output of query, key and
    value.

    Grouped heads: where keys and values have fewer heads than queries, each serves a run of
    neighbouring query heads.
    """
    count = query.weight.shape[0] // size

    def matrix(part: Projection) -> Tensor:
        heads = part.weight.reshape(-1, size, part.weight.shape[1])
        return heads.repeat_interleave(count // heads.shape[0], dim=0)

    def vector(part: Projection) -> Tensor | None:
        if part.bias is None:
            return None
        heads = part.bias.reshape(-1, size)
        return heads.repeat_interleave(count // heads.shape[0], dim=0)

    return Heads(
        query=matrix(query),
        key=matrix(key),
        value=matrix(value),
        output=output.weight.reshape(-1, count, size).transpose(0, 1).contiguous(),
        query_bias=vector(query),
        key_bias=vector(key),
        value_bias=vector(value),
        output_bias=output.bias,
        scale=scale,
        rotary=rotary,
        position_bias=position_bias,
    )
