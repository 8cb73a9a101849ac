"""Cross-attention is attention(x, mu): the module's own against softmax attention of its matrices,
in the queries and in the measure.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from networks import stir
from torch import Tensor

from attnscope import Heads, Particles, Softmax
from attnscope.models import cross_attentions

SIZES: dict[str, Any] = {
    "d_model": 12,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def network(kind: str) -> tuple[Any, Tensor]:
    source = torch.arange(5, 11)
    if kind == "bart":
        made: Any = transformers.BartModel(
            transformers.BartConfig(**SIZES, max_position_embeddings=20)
        )
    elif kind == "whisper":
        made = transformers.WhisperModel(
            transformers.WhisperConfig(
                **SIZES, num_mel_bins=4, max_source_positions=6, max_target_positions=8
            )
        )
        source = torch.randn(4, 12, generator=torch.Generator().manual_seed(2)).double()
    else:
        made = transformers.T5Model(
            transformers.T5Config(
                d_model=12,
                d_kv=4,
                d_ff=16,
                num_layers=2,
                num_heads=3,
                vocab_size=40,
                decoder_start_token_id=0,
            )
        )
    stir(made)
    return made.double().eval(), source


def by_hand(module: Any, kind: str, layer: int) -> Softmax:
    block = module.decoder.block if kind == "t5" else module.decoder.layers
    own = block[layer].layer[1].EncDecAttention if kind == "t5" else block[layer].encoder_attn
    parts = (
        [own.q, own.k, own.v, own.o]
        if kind == "t5"
        else [own.q_proj, own.k_proj, own.v_proj, own.out_proj]
    )
    q, k, v, o = (part.weight.detach() for part in parts)
    biases = [None if part.bias is None else part.bias.detach() for part in parts]
    into = [matrix.unflatten(0, (3, 4)) for matrix in (q, k, v)]
    shifts = [None if bias is None else bias.unflatten(0, (3, 4)) for bias in biases[:3]]
    heads = Heads(
        *into,
        o.unflatten(1, (3, 4)).transpose(0, 1),
        *shifts,
        biases[3],
        scale=1.0 if kind == "t5" else 0.5,
    )
    return Softmax(heads)


@pytest.mark.parametrize("kind", ["bart", "t5", "whisper"])
def test_it_is_softmax_attention_over_the_encoders_tokens(kind: str) -> None:
    module, source = network(kind)
    found = cross_attentions(module, source, torch.arange(3, 7))
    assert [one.layer for one in found] == [0, 1]
    for one in found:
        attention = by_hand(module, kind, one.layer)
        assert one.x.shape == (4, 12)
        assert one.y.shape == (6, 12)
        value = attention(one.x, Particles(one.y))
        assert (one.function(one.x, one.y) - value).abs().max() < 1e-6 * value.abs().max()
        for op, own, at in (
            (one.in_queries(), lambda x: attention(x, Particles(one.y)), one.x),  # noqa: B023
            (one.in_measure(), lambda y: attention.dense(one.x, Particles(one.y).at(y)), one.y),  # noqa: B023
        ):
            dense = torch.autograd.functional.jacobian(own, at).reshape(op.shape)
            assert (op.to_dense() - dense).abs().max() < 1e-6 * dense.abs().max()


def test_what_has_no_cross_attention_is_refused() -> None:
    module, source = network("bart")
    with pytest.raises(ValueError, match="no encoder with a decoder"):
        cross_attentions(torch.nn.Linear(2, 2), source, source)
    with pytest.raises(ValueError, match=r"ids of shape \(n,\)"):
        cross_attentions(module, source, source[None])
    with pytest.raises(ValueError, match=r"eval\(\)"):
        cross_attentions(module.train(), source, source)
