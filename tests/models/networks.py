"""A tiny network of every kind, with weights large enough that nothing in it is nearly linear or
zero.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from attnscope.models import Model, ModelNotice, load

COMMON: dict[str, Any] = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 20,
    "vocab_size": 40,
}
ROTARY: dict[str, Any] = {
    **COMMON,
    "num_attention_heads": 4,
    "hidden_size": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 9,
}
GPT2: dict[str, Any] = {
    "n_embd": 12,
    "n_head": 3,
    "n_layer": 3,
    "n_positions": 9,
    "vocab_size": 40,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
VIT: dict[str, Any] = {**COMMON, "image_size": 8, "patch_size": 4, "num_channels": 2}


@dataclass(frozen=True)
class Kind:
    """How to build a network and where, in its own modules, the ends of the parts are to be
    seen.
    """

    build: Callable[[], nn.Module]
    attention: str
    """The module whose output is the attention, projection included."""
    residual: str
    """The module whose input is the residual stream after the attention."""
    after_norm: str
    """The module whose output is part norm+attention."""
    float32_inside: bool = False
    """Whether Hugging Face evaluates some of it in float32 even in a double model."""


def _bert(config: type, model: type, **options: Any) -> Callable[[], nn.Module]:
    return lambda: model(config(**COMMON, max_position_embeddings=11, pad_token_id=1, **options))


BERT_ENDS = (
    "encoder.layer.{}.attention.output.dense",
    "encoder.layer.{}.attention.output.LayerNorm",
    "encoder.layer.{}.attention",
)
GPT2_ENDS = ("h.{}.attn", "h.{}.ln_2", "h.{}.attn")
LLAMA_ENDS = ("layers.{}.self_attn", "layers.{}.post_attention_layernorm", "layers.{}.self_attn")

KINDS = {
    "bert": Kind(_bert(transformers.BertConfig, transformers.BertModel), *BERT_ENDS),
    "bert-decoder": Kind(
        _bert(transformers.BertConfig, transformers.BertModel, is_decoder=True), *BERT_ENDS
    ),
    "roberta": Kind(_bert(transformers.RobertaConfig, transformers.RobertaModel), *BERT_ENDS),
    "mpnet": Kind(
        _bert(transformers.MPNetConfig, transformers.MPNetModel),
        "encoder.layer.{}.attention.attn",
        "encoder.layer.{}.attention.LayerNorm",
        "encoder.layer.{}.attention",
    ),
    "gpt2": Kind(lambda: transformers.GPT2Model(transformers.GPT2Config(**GPT2)), *GPT2_ENDS),
    "gpt2-scaled": Kind(
        lambda: transformers.GPT2Model(
            transformers.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True)
        ),
        *GPT2_ENDS,
    ),
    "llama": Kind(
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**ROTARY)),
        *LLAMA_ENDS,
        float32_inside=True,
    ),
    "llama-yarn": Kind(
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**ROTARY, rope_parameters=YARN)),
        *LLAMA_ENDS,
        float32_inside=True,
    ),
    "mistral": Kind(
        lambda: transformers.MistralModel(transformers.MistralConfig(**ROTARY)),
        *LLAMA_ENDS,
        float32_inside=True,
    ),
    "qwen2": Kind(
        lambda: transformers.Qwen2Model(transformers.Qwen2Config(**ROTARY)),
        *LLAMA_ENDS,
        float32_inside=True,
    ),
    "vit": Kind(
        lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)),
        "layers.{}.attention",
        "layers.{}.layernorm_after",
        "layers.{}.attention",
        float32_inside=True,
    ),
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 4,
    "rope_theta": 10000.0,
}


def build(name: str, implementation: str = "eager") -> nn.Module:
    """The network of this kind with seeded weights, biases and gains, in eval mode."""
    module: Any = KINDS[name].build().eval()
    module.set_attn_implementation(implementation)
    stir(module)
    return module


def stir(module: nn.Module) -> None:
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=source)
            parameter.copy_(0.4 * noise if parameter.ndim > 1 else parameter + 0.2 * noise)


def loaded(module: nn.Module, dtype: torch.dtype = torch.float64) -> Model:
    """The model around a network, its notice aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelNotice)
        return load(module, dtype=dtype)


def inputs(name: str, count: int = 3, n: int = 5) -> Tensor:
    """A stack of inputs that the network of this kind can read."""
    source = torch.Generator().manual_seed(4)
    if name == "vit":
        return torch.randn(count, 2, 8, 8, generator=source, dtype=torch.float64)
    return torch.randint(2, 40, (count, n), generator=source)


@functools.cache
def shared(name: str) -> Model:
    """The model of this kind in float64, for tests that leave it as it is: what it learnt of its
    layers in one of them serves the others.
    """
    return loaded(build(name))
