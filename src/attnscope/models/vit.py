"""Vision Transformer: pre-norm, bidirectional; the tokens are a class token and the patches of an
image [dosovitskiy21].

Hugging Face evaluates its softmax in float32 even in a double model.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.models._base import Model
from attnscope.models._split import linear, split
from attnscope.validation import described


@final
class ViT(Model):
    """`module.layers` holds the layers; images of one size, so every sequence has `positions`
    tokens.
    """

    family: ClassVar[str] = "vit"
    types: ClassVar[tuple[str, ...]] = ("vit",)
    pre_norm: bool = True

    @property
    def blocks(self) -> list[Any]:
        return list(self.module.layers)

    @property
    def causal(self) -> bool:
        return False

    @property
    def positions(self) -> int:
        return int(self.module.embeddings.patch_embeddings.num_patches) + 1

    def norm(self, layer: int) -> nn.Module:
        return self.blocks[layer].layernorm_before

    def input_norm(self, layer: int) -> nn.Module:
        return self.norm(layer)

    def layer_heads(self, layer: int) -> Heads:
        attention = self.blocks[layer].attention
        query, key, value, output = map(
            linear, (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        return split(query, key, value, output, size=attention.head_dim, scale=attention.scaling)

    def _inputs(self, source: str | Tensor) -> tuple[Tensor, bool]:
        """A stack of images, and whether it came as a stack."""
        patches = self.module.embeddings.patch_embeddings
        shape = (int(patches.num_channels), *map(int, patches.image_size))
        if (
            not isinstance(source, Tensor)
            or not source.is_floating_point()
            or tuple(source.shape[-3:]) != shape
            or source.ndim > 4
        ):
            raise ValueError(
                f"{self.name} reads images: pass pixels of shape {shape} or (B, *{shape}), got"
                f" {described(source)}."
            )
        return source.to(device=self.device, dtype=self.dtype).reshape(-1, *shape), source.ndim == 4
