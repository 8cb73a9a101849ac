"""BERT and its kin (RoBERTa, XLM-R, CamemBERT, MPNet): post-norm, learned positions, bidirectional
unless a decoder [devlin19].

MPNet adds a relative position bias, shared by all layers, to the scores [song20].
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.models._base import Model
from attnscope.models._split import linear, split


@final
class Bert(Model):
    """`module.encoder.layer` holds the layers; each attention ends with residual and LayerNorm."""

    family: ClassVar[str] = "bert"
    types: ClassVar[tuple[str, ...]] = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")
    pre_norm: bool = False

    @property
    def blocks(self) -> list[Any]:
        return list(self.module.encoder.layer)

    @property
    def causal(self) -> bool:
        return bool(getattr(self.config, "is_decoder", False))

    @property
    def positions(self) -> int:
        """RoBERTa and MPNet number their tokens from the padding id on, so that many positions are
        never used.
        """
        unused = 0 if self.config.model_type == "bert" else self.module.embeddings.padding_idx + 1
        return int(self.config.max_position_embeddings) - unused

    def norm(self, layer: int) -> nn.Module:
        attention = self.blocks[layer].attention
        return attention.LayerNorm if self._relative else attention.output.LayerNorm

    def input_norm(self, layer: int) -> nn.Module:
        return (
            self.module.embeddings.LayerNorm
            if layer == 0
            else self.blocks[layer - 1].output.LayerNorm
        )

    def layer_heads(self, layer: int) -> Heads:
        attention = self.blocks[layer].attention
        if self._relative:
            own = attention.attn
            parts = (own.q, own.k, own.v, own.o)
            bias = self._position_bias(self.positions)[0].detach()
        else:
            own = attention.self
            parts = (own.query, own.key, own.value, attention.output.dense)
            bias = None
        size = own.attention_head_size
        query, key, value, output = map(linear, parts)
        return split(query, key, value, output, size=size, scale=size**-0.5, position_bias=bias)

    @property
    def _relative(self) -> bool:
        return self.config.model_type == "mpnet"

    def _position_bias(self, n: int) -> Float[Tensor, "1 h n n"]:
        return self.module.encoder.compute_position_bias(torch.empty(1, n, 1, device=self.device))
