"""torch's Transformer encoders: post-norm and pre-norm."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from attnscope.attention import Heads
from attnscope.bounds import NoBound
from attnscope.certification.reading.rules import rule
from attnscope.layers import (
    GELU,
    FeedForward,
    LayerNorm,
    ReLU,
    Residual,
    SelfAttention,
    torch_layer,
)
from attnscope.layers.activations import Entrywise

BASE = "torch.nn.modules.transformer"


@rule(f"{BASE}.TransformerEncoder")
def encoder(module: nn.Module) -> nn.Module:
    module = cast(nn.TransformerEncoder, module)
    _exactly(module.layers, nn.ModuleList)
    for layer in module.layers:
        _exactly(layer, nn.TransformerEncoderLayer)
    norm = [] if module.norm is None else [module.norm]
    return nn.Sequential(*module.layers, *norm)


@rule(f"{BASE}.TransformerEncoderLayer")
def encoder_layer(module: nn.Module) -> nn.Module:
    """Attention, then an MLP, each with its residual and its norm before or after."""
    module = cast(nn.TransformerEncoderLayer, module)
    for norm in (module.norm1, module.norm2):
        _exactly(norm, nn.LayerNorm)
    for linear in (module.linear1, module.linear2):
        _exactly(linear, nn.Linear)
    for dropout in (module.dropout, module.dropout1, module.dropout2):
        _exactly(dropout, nn.Dropout, nn.Identity)
    given = module.activation
    if (
        isinstance(given, nn.GELU)
        and given.approximate != "none"
        and module.activation_relu_or_gelu
    ):
        raise NoBound(
            "without gradients torch's encoder may take a fast path, which puts the exact GELU in"
            f" the place of {given!r}, so that it answers in two ways. Build it with nn.GELU(), or"
            " set activation_relu_or_gelu = 0 in each layer, which leaves that path."
        )
    attention = SelfAttention(heads_of(module.self_attn))
    mlp = FeedForward(
        module.linear1.weight,
        module.linear1.bias,
        _activation(given),
        module.linear2.weight.mT,
        module.linear2.bias,
    )
    first, second = LayerNorm(module.norm1), LayerNorm(module.norm2)
    if module.norm_first:
        return nn.Sequential(Residual(first, attention), Residual(second, mlp))
    return nn.Sequential(Residual(attention), first, Residual(mlp), second)


def heads_of(module: nn.MultiheadAttention) -> Heads:
    """The heads of torch's self-attention; tokens (b, n, d), the batch first."""
    _exactly(module, nn.MultiheadAttention)
    if not module.batch_first:
        raise NoBound(
            "an encoder with batch_first=False reads the batch as the sequence, so that images mix."
            " Build it with batch_first=True."
        )
    weight = module.in_proj_weight
    if weight is None or module.bias_k is not None or module.add_zero_attn:
        raise NoBound(
            "nn.MultiheadAttention is read with keys and values of the width of the queries, and"
            " without add_bias_kv and add_zero_attn."
        )
    _exactly(module.out_proj, NonDynamicallyQuantizableLinear)
    count, size, d = module.num_heads, module.head_dim, module.embed_dim
    query, key, value = weight.reshape(3, count, size, d)
    biases: list[torch.Tensor | None] = [None, None, None]
    if module.in_proj_bias is not None:
        biases = list(module.in_proj_bias.reshape(3, count, size))
    q, k, v = biases
    output = module.out_proj.weight.reshape(d, count, size).movedim(1, 0)
    return Heads(query, key, value, output, q, k, v, module.out_proj.bias)


def _activation(given: object) -> Entrywise:
    if given is F.relu:
        return ReLU()
    if given is F.gelu:
        return GELU()
    found = torch_layer(given) if isinstance(given, nn.Module) else None
    if not isinstance(found, Entrywise):
        raise NoBound(f"an encoder with the activation {given!r} has no bound.")
    return found


def _exactly(part: object, *kinds: type) -> None:
    if type(part) not in kinds:
        raise NoBound(
            f"an encoder is read when its parts are torch's own; it has a {type(part).__name__}."
        )
