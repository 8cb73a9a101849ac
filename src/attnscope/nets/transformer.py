r"""A compact Transformer made of layers: a causal language model or a classifier of
images.
"""

from __future__ import annotations

import copy
from typing import Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attention import Heads, variants
from attnscope.layers import (
    MLP,
    SLL,
    ConvexPotential,
    Head,
    PatchEmbedding,
    ResidualAttention,
    ResidualMLP,
    TokenEmbedding,
    activation,
    isometry,
    norm_layer,
)
from attnscope.nets.config import Config

NEIGHBOURS = ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 0))
"""Where the heads of a classifier look at first, in patches down and right."""


@final
class Transformer(nn.Module):
    """Embedding, then attention and MLP `depth` times, then a linear head: `network.layers` in
    order, each with its bounds.
    """

    def __init__(self, config: Config, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.Sequential(*_layers(config, generator))

    def forward(self, x: Tensor) -> Tensor:
        """Logits: (*stack, classes) for images (*stack, C, H, W), (*stack, n, vocabulary) for token
        numbers (*stack, n).
        """
        return self.layers(x)

    @property
    def attentions(self) -> list[ResidualAttention]:
        """The attention layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, ResidualAttention)]

    def attention_norms(self) -> list[Float[Tensor, " h"]]:
        r"""$\|A_h\|$ of each head, one tensor per attention layer: near 0 means that the layer does
        not look at what tokens say.
        """
        return [layer.content_norms() for layer in self.attentions]

    def with_content_off(self) -> Self:
        """A copy with A set to 0 in every attention layer: what is left of the accuracy then owes
        nothing to content attention.
        """
        twin = copy.deepcopy(self)
        for layer in twin.attentions:
            layer.without_content()
        return twin

    def without_attention(self, seed: int = 0) -> Transformer:
        """An untrained network of the same parts without its attention layers: the control to train
        beside it.
        """
        return Transformer(
            Config.from_dict({**self.config.as_dict(), "attention": "none", "options": {}}), seed
        )


def _layers(config: Config, generator: torch.Generator) -> list[nn.Module]:
    layers: list[nn.Module] = []
    if config.image is not None:
        layers.append(
            PatchEmbedding(
                config.image, config.side, config.dim, generator, config.learned_embedding
            )
        )
    else:
        layers.append(TokenEmbedding(config.outputs, config.tokens, config.dim, generator))
    for _ in range(config.depth):
        if config.attention != "none":
            layers.append(_attention(config, generator))
        if config.mlp != "none":
            layers.append(_mlp(config, generator))
    if (norm := norm_layer(config.norm, config.dim)) is not None:
        layers.append(norm)
    return [*layers, Head(config.tokens, config.dim, config.outputs, config.pooling, generator)]


def _attention(config: Config, generator: torch.Generator) -> ResidualAttention:
    """Queries and keys start equal, so that tokens look for their like, and as isometries, so that
    they see all directions alike: of all A with one norm these tell tokens apart best. Values and
    outputs are random and small.
    """
    h, k, v, d = config.heads, config.head_dim, config.value_dim, config.dim
    query = torch.stack([isometry(k, d, generator) for _ in range(h)])
    heads = Heads(
        query,
        query.clone(),
        torch.randn(h, v, d, generator=generator) / d**0.5,
        torch.randn(h, d, v, generator=generator) * 0.5 / (h * v) ** 0.5,
        query_bias=torch.zeros(h, k),
        output_bias=torch.zeros(d),
        position_bias=_position_bias(config, generator) if config.position_bias else None,
        scale=k**-0.5,
    )
    causal = config.kind == "language"
    made = ResidualAttention(
        variants()[config.attention],
        config.options,
        heads,
        causal,
        norm_layer(config.norm, d),
        config.step,
    )
    if not config.content:
        made.without_content()
    made.attention()  # a variant that cannot be causal, or takes no such option, says so here
    return made


def _position_bias(config: Config, generator: torch.Generator) -> Float[Tensor, "h n n"]:
    r"""Head h of a classifier starts with $-|r_j - r_i - o_h|^2$, a look at the patch next to it,
    or with small random numbers; a language model starts flat.
    """
    if config.kind == "language":
        return torch.zeros(config.heads, config.tokens, config.tokens)
    if config.look == "anywhere":
        shape = (config.heads, config.tokens, config.tokens)
        return 0.3 * torch.randn(shape, generator=generator)
    rows, columns = config.grid
    place = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(columns))).reshape(
        -1, 2
    )
    offset = torch.tensor([NEIGHBOURS[h % len(NEIGHBOURS)] for h in range(config.heads)])
    return -(place[None, None, :] - place[None, :, None] - offset[:, None, None]).square().sum(-1)


def _mlp(config: Config, generator: torch.Generator) -> MLP:
    parts = (
        config.dim,
        config.hidden,
        activation(config.activation, config.half_width),
        norm_layer(config.norm, config.dim),
        generator,
    )
    if config.mlp == "residual":
        return ResidualMLP(*parts, step=config.step)
    return SLL(*parts) if config.mlp == "sll" else ConvexPotential(*parts)
