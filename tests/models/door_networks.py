"""A tiny network of each family that is tested behind the door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

TOKENS = 19
TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64}
LAYERS = ["sliding_attention", "full_attention"]
IMAGE = {**TEXT, "image_size": 16, "patch_size": 4, "num_channels": 2}
SEQUENCES = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


@dataclass(frozen=True)
class Kind:
    """A family: its configuration, how often a forward pass calls the attention, its inputs."""

    config: str
    options: dict[str, Any]
    model: str
    calls: int = 2
    shape: tuple[int, ...] = (1, TOKENS, 16)
    name: str = "inputs_embeds"
    more: Callable[[], dict[str, Any]] = field(default=dict)


def decoded() -> dict[str, Any]:
    return {"decoder_input_ids": torch.arange(7)[None] + 3}


KINDS = {
    "llama": Kind("LlamaConfig", GROUPED, "LlamaModel"),
    "qwen2": Kind("Qwen2Config", GROUPED, "Qwen2Model"),
    "qwen2 sliding": Kind(
        "Qwen2Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "layer_types": LAYERS},
        "Qwen2Model",
    ),
    "qwen3": Kind("Qwen3Config", GROUPED, "Qwen3Model"),
    "gemma2": Kind(
        "Gemma2Config",
        {**GROUPED, "attn_logit_softcapping": 0.5, "sliding_window": 5, "layer_types": LAYERS},
        "Gemma2Model",
    ),
    "gemma3": Kind(
        "Gemma3TextConfig",
        {**GROUPED, "sliding_window": 5, "layer_types": LAYERS},
        "Gemma3TextModel",
    ),
    "mistral": Kind("MistralConfig", {**GROUPED, "sliding_window": 6}, "MistralModel"),
    "phi3": Kind("Phi3Config", GROUPED, "Phi3Model"),
    "olmo2": Kind("Olmo2Config", GROUPED, "Olmo2Model"),
    "gpt-oss": Kind(
        "GptOssConfig",
        {
            **GROUPED,
            "sliding_window": 6,
            "layer_types": LAYERS,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "experts_implementation": "eager",
        },
        "GptOssModel",
    ),
    "llama4 chunked": Kind(
        "Llama4TextConfig",
        {
            **GROUPED,
            "intermediate_size_mlp": 20,
            "attention_chunk_size": 6,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
            "num_local_experts": 2,
            "moe_layers": [],
        },
        "Llama4TextModel",
    ),
    "gpt2": Kind(
        "GPT2Config",
        {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 40},
        "GPT2Model",
    ),
    "gpt-neox": Kind("GPTNeoXConfig", {**TEXT, "max_position_embeddings": 64}, "GPTNeoXModel"),
    "bert": Kind("BertConfig", {**TEXT, "max_position_embeddings": 64}, "BertModel"),
    "modernbert": Kind(
        "ModernBertConfig",
        {**TEXT, "local_attention": 8, "layer_types": LAYERS, "cls_token_id": 1, "sep_token_id": 2},
        "ModernBertModel",
    ),
    "vit": Kind("ViTConfig", IMAGE, "ViTModel", shape=(1, 2, 16, 16), name="pixel_values"),
    "dinov2": Kind("Dinov2Config", IMAGE, "Dinov2Model", shape=(1, 2, 16, 16), name="pixel_values"),
    "siglip": Kind(
        "SiglipVisionConfig", IMAGE, "SiglipVisionModel", shape=(1, 2, 16, 16), name="pixel_values"
    ),
    "bart": Kind(
        "BartConfig", {**SEQUENCES, "max_position_embeddings": 64}, "BartModel", 6, more=decoded
    ),
    "whisper": Kind(
        "WhisperConfig",
        {**SEQUENCES, "num_mel_bins": 4, "max_source_positions": 10, "max_target_positions": 16},
        "WhisperModel",
        6,
        (1, 4, 20),
        "input_features",
        decoded,
    ),
    "t5": Kind(
        "T5Config",
        {
            **TEXT,
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 20,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 1,
        },
        "T5Model",
        6,
        more=decoded,
    ),
}
