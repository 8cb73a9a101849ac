"""The trainable weights of one invertible layer, and the attention that they make."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attention import Attention, Heads
from attnscope.bounds import tied_reads

WEIGHTS = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")
FIXED = ("rotary", "position_bias")


class AttentionWeights(nn.Module):
    """The weights of an attention as parameters. Where tied heads are Lipschitz everywhere they are
    kept tied: the parameters are Q and U, the values UQ.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        heads = attention.heads
        found_reads = tied_reads(heads) if attention.lipschitz_if_tied else None
        reads = None if found_reads is None else found_reads.to(heads.query.dtype)
        self.tied = reads is not None
        found = {name: getattr(heads, name) for name in WEIGHTS}
        if reads is not None:
            found |= {
                "key": None,
                "value": None,
                "query_bias": None,
                "key_bias": None,
                "reads": reads,
            }
        self.weights = nn.ParameterDict(
            {
                name: nn.Parameter(part.detach().clone())
                for name, part in found.items()
                if part is not None
            }
        )
        for name in FIXED:
            part = getattr(heads, name)
            self.register_buffer(name, None if part is None else part.detach().clone())
        self.scale = heads.scale
        self.variant = type(attention)
        self.options = {
            field.name: getattr(attention, field.name)
            for field in dataclasses.fields(attention)
            if field.name != "heads"
        }

    def attention(self, dtype: torch.dtype | None = None) -> Attention:
        """The attention of the weights as they are, unscaled; differentiable."""
        parts: dict[str, Any] = dict(self.weights.items()) | {
            name: getattr(self, name) for name in FIXED
        }
        if dtype is not None:
            parts = {name: None if part is None else part.to(dtype) for name, part in parts.items()}
        reads = parts.pop("reads", None)
        if reads is not None:
            parts |= {"key": parts["query"], "value": reads @ parts["query"]}
        return self.variant(Heads(**parts, scale=self.scale), **self.options)

    def reads(self) -> Float[Tensor, "h v k"] | None:
        """U of tied attention, in float64."""
        return self.weights["reads"].to(torch.float64) if self.tied else None


def scaled(attention: Attention, factor: Float[Tensor, ""]) -> Attention:
    """The attention times a number."""
    heads = attention.heads
    times = factor.to(heads.query)
    parts: dict[str, Any] = {
        field.name: getattr(heads, field.name) for field in dataclasses.fields(heads)
    }
    for name in ("value", "value_bias", "output_bias"):
        parts[name] = None if parts[name] is None else times * parts[name]
    return dataclasses.replace(attention, heads=Heads(**parts))


def tensors(attention: Attention) -> dict[str, Tensor]:
    """What an attention is differentiated in."""
    found = {name: getattr(attention.heads, name) for name in WEIGHTS}
    return {name: part for name, part in found.items() if part is not None}


def with_tensors(attention: Attention, parts: dict[str, Tensor]) -> Attention:
    """The same attention with other weights."""
    changes: dict[str, Any] = dict(parts)
    return dataclasses.replace(attention, heads=dataclasses.replace(attention.heads, **changes))
