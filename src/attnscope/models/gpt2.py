"""GPT-2: pre-norm, causal, learned positions; its Conv1D layers store matrices as in x out
[radford19].
"""

from __future__ import annotations

from typing import Any, ClassVar, final

from torch import nn

from attnscope.attention import Heads
from attnscope.models._base import Model
from attnscope.models._split import Projection, split


@final
class GPT2(Model):
    """`module.h` holds the layers; queries, keys and values are thirds of the columns of
    `c_attn`.
    """

    family: ClassVar[str] = "gpt2"
    types: ClassVar[tuple[str, ...]] = ("gpt2",)
    pre_norm: bool = True

    @property
    def blocks(self) -> list[Any]:
        return list(self.module.h)

    @property
    def causal(self) -> bool:
        return True

    @property
    def positions(self) -> int:
        return int(self.config.max_position_embeddings)

    def norm(self, layer: int) -> nn.Module:
        return self.blocks[layer].ln_1

    def input_norm(self, layer: int) -> nn.Module:
        return self.norm(layer)

    def layer_heads(self, layer: int) -> Heads:
        attention = self.blocks[layer].attn
        weights = attention.c_attn.weight.detach().T.chunk(3)
        biases = attention.c_attn.bias.detach().chunk(3)
        query, key, value = (
            Projection(weight, bias) for weight, bias in zip(weights, biases, strict=True)
        )
        output = Projection(attention.c_proj.weight.detach().T, attention.c_proj.bias.detach())
        return split(query, key, value, output, size=attention.head_dim, scale=attention.scaling)
