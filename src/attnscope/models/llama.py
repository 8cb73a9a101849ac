"""Llama and its kin (Mistral, Qwen2): pre-norm with RMSNorm, causal, rotary positions, grouped
heads [touvron23].

Hugging Face evaluates their softmax, RMSNorm and rotary angles in float32 even in a double model.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, final

from torch import nn

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.models._base import Model, ModelNotice
from attnscope.models._split import linear, split


@final
class Llama(Model):
    """`module.layers` holds the layers; one rotary embedding serves them all."""

    family: ClassVar[str] = "llama"
    types: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2")
    pre_norm: bool = True

    @property
    def blocks(self) -> list[Any]:
        return list(self.module.layers)

    @property
    def causal(self) -> bool:
        return True

    @property
    def positions(self) -> int:
        return int(self.config.max_position_embeddings)

    def attention(self, layer: int) -> Softmax:
        made = super().attention(layer)
        module = self.blocks[layer].self_attn
        window = getattr(module, "sliding_window", getattr(self.config, "sliding_window", None))
        if window is not None and window < self.positions:
            warnings.warn(
                f"layer {layer} of {self.name} reads the last {window} tokens and these heads read"
                f" all: they are the same map on at most {window} tokens.",
                ModelNotice,
                stacklevel=2,
            )
        return made

    def readable(self, layer: int) -> bool:
        """Not where the rotary angles depend on the length of the sequence: heads hold one set of
        them.
        """
        return self.module.rotary_emb.rope_type not in ("dynamic", "longrope")

    def norm(self, layer: int) -> nn.Module:
        return self.blocks[layer].input_layernorm

    def input_norm(self, layer: int) -> nn.Module:
        return self.norm(layer)

    def layer_heads(self, layer: int) -> Heads:
        attention, rope = self.blocks[layer].self_attn, self.module.rotary_emb
        if not self.readable(layer):
            raise ValueError(
                f"the rotary angles of {self.name} depend on the length of the sequence (rope type"
                f" {rope.rope_type!r}), which heads cannot say. Use model.function(layer, part)"
                " instead."
            )
        query, key, value, output = map(
            linear, (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        scale = attention.scaling * float(rope.attention_scaling) ** 2
        return split(
            query,
            key,
            value,
            output,
            size=attention.head_dim,
            scale=scale,
            rotary=rope.inv_freq.to(self.dtype),
        )
