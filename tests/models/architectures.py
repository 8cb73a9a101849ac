"""Tiny networks of many architectures, each with the names of its modules: how its parts are put
together by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import transformers
from networks import COMMON, ROTARY, stir
from torch import nn

LLAMA: dict[str, Any] = {**ROTARY, "head_dim": 4}
SLIDING: dict[str, Any] = {**LLAMA, "sliding_window": 3}
PADDED: dict[str, Any] = {**LLAMA, "pad_token_id": 0}
EXPERTS: dict[str, Any] = {
    **LLAMA,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}
IMAGE: dict[str, Any] = {**COMMON, "image_size": 8, "patch_size": 4, "num_channels": 2}
SHORT: dict[str, Any] = {
    "n_embd": 16,
    "n_head": 4,
    "n_layer": 3,
    "vocab_size": 40,
    "n_positions": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@dataclass(frozen=True)
class Wiring:
    """The modules of a layer: `a > b` means b after a, and nothing means the identity."""

    kind: Literal["pre", "post", "parallel"] = "pre"
    norm: str = "input_layernorm"
    attention: str = "self_attn"
    after: str = ""
    """What stands between the attention and the residual."""
    second: str = "post_attention_layernorm"
    mlp: str = "mlp"
    after_mlp: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class Architecture:
    model: str
    options: dict[str, Any]
    layers: str = "layers"
    wiring: Wiring = Wiring()
    config: str = ""
    layer: int = 1

    def build(self) -> nn.Module:
        """The network with seeded weights, in eval mode, its attention eager."""
        kind = self.config or self.model.removesuffix("Model") + "Config"
        config = getattr(transformers, kind)(**self.options)
        module: Any = getattr(transformers, self.model)(config).eval()
        module.set_attn_implementation("eager")
        module.config.use_cache = False
        stir(module)
        return module


SANDWICH = Wiring(
    after="post_attention_layernorm",
    second="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
AFTER = Wiring(
    norm="",
    after="post_attention_layernorm",
    second="",
    after_mlp="post_feedforward_layernorm",
)
BESIDE = Wiring("parallel", second="input_layernorm")
BERT = Wiring(
    "post",
    "",
    "attention.self > attention.output.dense",
    "",
    "attention.output.LayerNorm",
    "intermediate > output.dense",
    "output.LayerNorm",
)
BERT_BEFORE = Wiring(
    "pre",
    "attention.LayerNorm",
    "attention.self > attention.output.dense",
    "",
    "LayerNorm",
    "intermediate > output.dense",
)
BERT_LIST = "encoder.layer"
VIT = Wiring(norm="layernorm_before", attention="attention", second="layernorm_after")
DINO = Wiring(
    norm="norm1",
    attention="attention",
    after="layer_scale1",
    second="norm2",
    after_mlp="layer_scale2",
)
CLIP = Wiring(norm="layer_norm1", second="layer_norm2")
GPT = Wiring(norm="ln_1", attention="attn", second="ln_2")
FAIRSEQ = Wiring(norm="self_attn_layer_norm", second="final_layer_norm", mlp="fc1 > gelu > fc2")

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaModel", LLAMA),
    "mistral": Architecture("MistralModel", LLAMA),
    "qwen2": Architecture("Qwen2Model", ROTARY),
    "qwen3": Architecture("Qwen3Model", LLAMA),
    "gemma": Architecture("GemmaModel", LLAMA),
    "gemma2": Architecture("Gemma2Model", SLIDING, wiring=SANDWICH),
    "gemma3": Architecture("Gemma3TextModel", SLIDING, wiring=SANDWICH),
    "olmo": Architecture("OlmoModel", {**LLAMA, "eos_token_id": 0}),
    "olmo2": Architecture("Olmo2Model", {**LLAMA, "eos_token_id": 0}, wiring=AFTER),
    "olmo3": Architecture("Olmo3Model", {**SLIDING, "eos_token_id": 0}, wiring=AFTER),
    "phi": Architecture("PhiModel", LLAMA, wiring=BESIDE),
    "phi3": Architecture("Phi3Model", {**PADDED, "eos_token_id": 0}),
    "granite": Architecture(
        "GraniteModel", {**LLAMA, "residual_multiplier": 0.3}, wiring=Wiring(scale=0.3)
    ),
    "cohere": Architecture("CohereModel", {**LLAMA, "eos_token_id": 0}, wiring=BESIDE),
    "cohere2": Architecture("Cohere2Model", {**SLIDING, "eos_token_id": 0}, wiring=BESIDE),
    "stablelm": Architecture("StableLmModel", LLAMA),
    "starcoder2": Architecture("Starcoder2Model", {**LLAMA, "bos_token_id": 0, "eos_token_id": 0}),
    "glm": Architecture("GlmModel", PADDED),
    "glm4": Architecture(
        "Glm4Model",
        PADDED,
        wiring=Wiring(after="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
    "helium": Architecture("HeliumModel", LLAMA),
    "smollm3": Architecture("SmolLM3Model", {**PADDED, "bos_token_id": 0, "eos_token_id": 0}),
    "nemotron": Architecture("NemotronModel", LLAMA),
    "exaone4": Architecture("Exaone4Model", SLIDING, wiring=AFTER),
    "ernie4_5": Architecture("Ernie4_5Model", LLAMA),
    "seed_oss": Architecture("SeedOssModel", PADDED),
    "arcee": Architecture("ArceeModel", {**LLAMA, "bos_token_id": 0, "eos_token_id": 0}),
    "bitnet": Architecture("BitNetModel", {**LLAMA, "bos_token_id": 0, "eos_token_id": 0}),
    "mixtral": Architecture("MixtralModel", EXPERTS),
    "qwen3_moe": Architecture("Qwen3MoeModel", EXPERTS),
    "qwen2_moe": Architecture("Qwen2MoeModel", EXPERTS),
    "olmoe": Architecture("OlmoeModel", {**EXPERTS, "eos_token_id": 0}),
    "gpt_oss": Architecture("GptOssModel", {**EXPERTS, "sliding_window": 3, "eos_token_id": 0}),
    "deepseek_v3": Architecture(
        "DeepseekV3Model",
        {
            **COMMON,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 4,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 8,
        },
    ),
    "lfm2": Architecture(
        "Lfm2Model",
        {**ROTARY, "layer_types": ["conv", "full_attention", "conv"]},
        wiring=Wiring(norm="operator_norm", second="ffn_norm", mlp="feed_forward"),
    ),
    "qwen3_next": Architecture(
        "Qwen3NextModel",
        {
            **EXPERTS,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
        },
    ),
    "jamba": Architecture(
        "JambaModel",
        {
            **ROTARY,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 0,
            "num_experts": 4,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "pad_token_id": 0,
        },
        wiring=Wiring(second="pre_ff_layernorm", mlp="feed_forward"),
    ),
    "albert": Architecture(
        "AlbertModel",
        {**COMMON, "embedding_size": 8},
        layers="encoder.albert_layer_groups",
        wiring=Wiring(
            "post",
            "",
            "",  # one module holds the attention, its residual and its norm
            "",
            "albert_layers.0.attention.LayerNorm",
            "albert_layers.0.ffn > albert_layers.0.activation > albert_layers.0.ffn_output",
            "albert_layers.0.full_layer_layer_norm",
        ),
    ),
    "bloom": Architecture(
        "BloomModel",
        {"hidden_size": 12, "n_head": 3, "n_layer": 3, "vocab_size": 40},
        layers="h",
        wiring=Wiring(
            attention="self_attention",  # with its residual, which is told, not read
            mlp="mlp.dense_h_to_4h > mlp.gelu_impl > mlp.dense_4h_to_h",
        ),
    ),
    "gptj": Architecture(
        "GPTJModel",
        {**SHORT, "rotary_dim": 4},
        "h",
        Wiring("parallel", "ln_1", "attn", second="ln_1"),
    ),
    "gpt_neo": Architecture(
        "GPTNeoModel",
        {
            "hidden_size": 12,
            "num_heads": 3,
            "num_layers": 4,
            "vocab_size": 40,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 3,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        "h",
        GPT,
    ),
    "gpt_neox": Architecture(
        "GPTNeoXModel", COMMON, wiring=Wiring("parallel", attention="attention")
    ),
    "falcon": Architecture(
        "FalconModel",
        {k: v for k, v in COMMON.items() if k != "intermediate_size"},
        "h",
        Wiring("parallel", attention="self_attention", second="input_layernorm"),
    ),
    "mpt": Architecture(
        "MptModel",
        {"d_model": 12, "n_heads": 3, "n_layers": 3, "vocab_size": 40, "max_seq_len": 16},
        "blocks",
        Wiring(
            norm="norm_1",
            attention="attn",
            second="norm_2",
            mlp="ffn.up_proj > ffn.act > ffn.down_proj",
        ),
    ),
    "gpt2": Architecture("GPT2Model", SHORT, "h", GPT),
    "gpt_bigcode": Architecture("GPTBigCodeModel", SHORT, "h", GPT),
    "codegen": Architecture(
        "CodeGenModel",
        {**SHORT, "rotary_dim": 4},
        "h",
        Wiring("parallel", "ln_1", "attn", second="ln_1"),
    ),
    "openai-gpt": Architecture(
        "OpenAIGPTModel",
        {k: v for k, v in SHORT.items() if "token" not in k},
        "h",
        Wiring("post", "", "attn", second="ln_1", after_mlp="ln_2"),
    ),
    "persimmon": Architecture("PersimmonModel", COMMON),
    "opt": Architecture(
        "OPTModel",
        {**COMMON, "ffn_dim": 20, "word_embed_proj_dim": 12},
        "decoder.layers",
        Wiring(
            norm="self_attn_layer_norm",
            second="final_layer_norm",
            mlp="fc1 > activation_fn > fc2",
        ),
    ),
    "bert": Architecture("BertModel", COMMON, BERT_LIST, BERT),
    "electra": Architecture("ElectraModel", {**COMMON, "embedding_size": 12}, BERT_LIST, BERT),
    "ernie": Architecture("ErnieModel", COMMON, BERT_LIST, BERT),
    "data2vec-text": Architecture("Data2VecTextModel", COMMON, BERT_LIST, BERT),
    "rembert": Architecture(
        "RemBertModel",
        {**COMMON, "input_embedding_size": 8, "bos_token_id": 0, "eos_token_id": 0},
        BERT_LIST,
        BERT,
    ),
    "roformer": Architecture("RoFormerModel", {**COMMON, "embedding_size": 12}, BERT_LIST, BERT),
    "megatron-bert": Architecture(
        "MegatronBertModel",
        COMMON,
        BERT_LIST,
        Wiring(
            "pre",
            "attention.ln",
            "attention.self > attention.output.dense",
            "",
            "ln",
            "intermediate > output.dense",
        ),
    ),
    "esm": Architecture(
        "EsmModel",
        {
            **COMMON,
            "pad_token_id": 1,
            "mask_token_id": 2,
            "position_embedding_type": "rotary",
            "token_dropout": False,
        },
        BERT_LIST,
        BERT_BEFORE,
    ),
    "roberta-prelayernorm": Architecture(
        "RobertaPreLayerNormModel",
        {**COMMON, "pad_token_id": 1},
        BERT_LIST,
        Wiring(
            "pre",
            "attention.LayerNorm",
            "attention.self > attention.output.dense",
            "",
            "intermediate.LayerNorm",
            "intermediate.dense > intermediate.intermediate_act_fn > output.dense",
        ),
    ),
    "distilbert": Architecture(
        "DistilBertModel",
        {"dim": 12, "n_heads": 3, "n_layers": 3, "hidden_dim": 20, "vocab_size": 40},
        "transformer.layer",
        Wiring("post", "", "attention", "", "sa_layer_norm", "ffn", "output_layer_norm"),
    ),
    "deberta": Architecture(
        "DebertaModel",
        {
            **COMMON,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": 8,
        },
        BERT_LIST,
        BERT,
    ),
    "deberta-v2": Architecture(
        "DebertaV2Model",
        {
            **COMMON,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": 8,
            "position_buckets": 4,
        },
        BERT_LIST,
        BERT,
    ),
    "mpnet": Architecture(
        "MPNetModel",
        {**COMMON, "pad_token_id": 1},
        BERT_LIST,
        Wiring(
            "post",
            "",
            "attention.attn",
            "",
            "attention.LayerNorm",
            "intermediate > output.dense",
            "output.LayerNorm",
        ),
    ),
    "modernbert": Architecture(
        "ModernBertModel",
        {
            **COMMON,
            "global_attn_every_n_layers": 2,
            "local_attention": 4,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        wiring=Wiring(norm="attn_norm", attention="attn", second="mlp_norm"),
    ),
    "t5": Architecture(
        "T5EncoderModel",
        {"d_model": 12, "d_kv": 4, "num_heads": 3, "num_layers": 3, "d_ff": 20, "vocab_size": 40},
        "encoder.block",
        Wiring(
            norm="layer.0.layer_norm",
            attention="layer.0.SelfAttention",
            second="layer.1.layer_norm",
            mlp="layer.1.DenseReluDense",
        ),
        config="T5Config",
    ),
    "vit": Architecture("ViTModel", IMAGE, wiring=VIT),
    "deit": Architecture("DeiTModel", IMAGE, wiring=VIT),
    "dinov2": Architecture("Dinov2Model", IMAGE, BERT_LIST, DINO),
    "dinov3": Architecture("DINOv3ViTModel", IMAGE, "model.layer", DINO),
    "clip-vision": Architecture("CLIPVisionModel", IMAGE, "encoder.layers", CLIP),
    "clip-text": Architecture(
        "CLIPTextModel",
        {**COMMON, "bos_token_id": 0, "eos_token_id": 1},
        "encoder.layers",
        CLIP,
    ),
    "siglip": Architecture("SiglipVisionModel", IMAGE, "encoder.layers", CLIP),
}
