"""Networks of unknown architecture: the layers are found, and are differentiated as the network
itself runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from networks import COMMON, ROTARY, loaded, stir
from torch import Tensor, nn

from attnscope.models import ModelNotice, Part, load

DISTILBERT = {
    "dim": 12,
    "n_heads": 3,
    "n_layers": 3,
    "hidden_dim": 20,
    "vocab_size": 40,
    "max_position_embeddings": 9,
}
UNKNOWN = {
    "distilbert": (
        lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**DISTILBERT)),
        False,
    ),
    "opt": (
        lambda: transformers.OPTModel(
            transformers.OPTConfig(**COMMON, ffn_dim=20, word_embed_proj_dim=12)
        ),
        True,
    ),
    "qwen3": (
        lambda: transformers.Qwen3Model(transformers.Qwen3Config(**ROTARY, head_dim=4)),
        True,
    ),
}


class Decoder(nn.Module):
    """A stack of PyTorch's own layers that hands them a causal mask."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 20, **options)
        self.stack = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.sequence_axis = 1 if options.get("batch_first") else 0

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(
            x,
            mask=nn.Transformer.generate_square_subsequent_mask(
                x.shape[self.sequence_axis], dtype=x.dtype
            ),
        )


def stirred(module: nn.Module) -> nn.Module:
    stir(module)
    return module.eval()


@pytest.fixture(params=UNKNOWN)
def unknown(request: pytest.FixtureRequest) -> tuple[nn.Module, bool]:
    build, causal = UNKNOWN[request.param]
    return stirred(build()), causal


def test_unknown_architectures_come_with_a_notice(unknown: tuple[nn.Module, bool]) -> None:
    with pytest.warns(ModelNotice, match="is not known: its 3 layers of type"):
        assert load(unknown[0]).family == "generic"


def test_blocks_lead_from_one_hidden_state_to_the_next(unknown: tuple[nn.Module, bool]) -> None:
    model, ids = loaded(unknown[0]), torch.arange(2, 17).reshape(3, 5)
    with torch.no_grad():
        states = model.module(ids, output_hidden_states=True).hidden_states
    for layer in (0, 1):
        tokens = model.tokens(ids, layer, "block")
        assert (tokens - states[layer]).abs().max() < 1e-10
        assert (model.function(layer, "block")(tokens) - states[layer + 1]).abs().max() < 1e-10
        assert (
            model.function(layer, "block")(tokens[0]) - states[layer + 1][0]
        ).abs().max() < 1e-10


def test_attention_is_the_networks_own_at_its_own_input(unknown: tuple[nn.Module, bool]) -> None:
    model, ids, caught = loaded(unknown[0]), torch.arange(2, 17).reshape(3, 5), []
    attention = next(
        part for part in model.blocks[1].modules() if "Attention" in type(part).__name__
    )
    handle = attention.register_forward_hook(lambda _, args, out: caught.append(out[0]))
    with torch.no_grad():
        model.module(ids)
    handle.remove()
    x = model.tokens(ids, 1)
    assert (model.function(1)(x) - caught[0]).abs().max() < 1e-10
    jacobian = torch.func.jacfwd(model.function(1))(x[0])
    assert (
        jacobian - torch.func.jacrev(model.function(1))(x[0])
    ).abs().max() < 1e-6 * jacobian.abs().max()


def test_causal_networks_are_differentiated_causally(unknown: tuple[nn.Module, bool]) -> None:
    model, causal = loaded(unknown[0]), unknown[1]
    x = model.tokens(torch.arange(2, 7), 1)
    later = torch.func.jacfwd(model.function(1))(x)[0, :, 1:]
    assert model.causal == causal
    assert (later.abs().max() == 0) == causal


@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {"norm_first": True}, {}, {"batch_first": True, "norm_first": True}],
)
def test_pytorch_layers_have_every_part(options: dict[str, bool], randn: Any) -> None:
    model, x = loaded(stirred(Decoder(**options))), randn(4, 5, 12)
    stream = model.tokens(x, 1, "residual")
    assert model.causal
    assert model.pre_norm == options.get("norm_first", False)
    axes = (0, 1) if options.get("batch_first") else (1, 0)
    with torch.no_grad():
        first = model.module.stack.layers[0](
            x.transpose(*axes) if axes == (1, 0) else x, src_mask=_mask(5)
        )
    assert (stream - (first.transpose(0, 1) if axes == (1, 0) else first)).abs().max() < 1e-12
    residual, normed = (
        model.function(1, "residual")(stream),
        model.function(1, "norm+attention")(stream),
    )
    attention = model.function(1)(model.tokens(x, 1))
    norm = model.blocks[1].norm1
    expected = (
        (stream + attention, attention)
        if model.pre_norm
        else (stream + attention, norm(stream + attention))
    )
    assert (residual - expected[0]).abs().max() < 1e-12
    assert (normed - expected[1]).abs().max() < 1e-12
    tangent = torch.func.jvp(model.function(1, "block"), (stream,), (randn(4, 5, 12),))[1]
    assert torch.isfinite(tangent).all()


def _mask(n: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(n, dtype=torch.float64)


def test_a_single_attention_module_is_one_layer(randn: Any) -> None:
    module = stirred(nn.MultiheadAttention(12, 3, batch_first=True)).double()
    model, x = loaded(module), randn(2, 5, 12)
    assert (model.layers, model.heads, model.dim, model.causal) == (1, 3, 12, False)
    assert torch.equal(model.tokens(x, 0), x)
    assert (model.function(0)(x) - module(x, x, x)[0]).abs().max() < 1e-12


@pytest.mark.parametrize(
    "kind", [partial(nn.TransformerEncoderLayer, dim_feedforward=20), nn.MultiheadAttention]
)
def test_frozen_fast_path_layers_still_have_forward_derivatives(
    kind: Callable[..., nn.Module], randn: Any
) -> None:
    module = stirred(kind(12, 4, batch_first=True)).double().requires_grad_(False)
    model, x, step = loaded(module), randn(2, 5, 12), randn(2, 5, 12)
    copies = 3 if isinstance(module, nn.MultiheadAttention) else 1
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(lambda x: module(*[x] * copies), (x,), (step,))
    part: Part = "attention" if isinstance(module, nn.MultiheadAttention) else "block"
    x = model.tokens(x, 0, part)
    function = model.function(0, part)
    slope = (function(x + 1e-6 * step) - function(x - 1e-6 * step)) / 2e-6
    assert (torch.func.jvp(function, (x,), (step,))[1] - slope).abs().max() < 1e-6


@pytest.mark.parametrize("enabled", [True, False])
def test_the_fast_path_of_pytorch_is_left_as_it_was(enabled: bool, randn: Any) -> None:
    model = loaded(stirred(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)))
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        model.function(0, "block")(model.tokens(randn(2, 5, 12), 0, "block"))
        assert torch.backends.mha.get_fastpath_enabled() is enabled
        with pytest.raises(ValueError, match="not known yet"):
            model.function(0, "block")(randn(2, 6, 12))
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class CachingAttention(nn.Module):
    """Attention that writes its tokens into a cache and reads all that the cache holds."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(12, 12)

    def forward(self, x: Tensor, past_key_values: list[Tensor] | None = None) -> Tensor:
        seen = [] if past_key_values is None else past_key_values
        seen.append(x)
        keys = torch.cat(seen, dim=1)
        return torch.softmax(x @ keys.mT, dim=-1) @ self.read(keys)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([CachingAttention(), CachingAttention()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, past_key_values=[])
        return x


def test_a_layer_is_called_again_without_the_cache_that_it_filled(randn: Any) -> None:
    model, x = loaded(stirred(Caching())), randn(2, 5, 12)
    with torch.no_grad():
        states = [x, model.module.blocks[0](x), model.module(x)]
        for layer in (0, 1):
            tokens = model.tokens(x, layer, "block")
            for _ in range(2):
                assert torch.equal(model.function(layer, "block")(tokens), states[layer + 1])


class MaskedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(12, 12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((x @ x.mT).masked_fill(mask, -1e30), dim=-1) @ self.read(x)


class MaskedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MaskedAttention()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.attention(x, mask)


class Padded(nn.Module):
    """Hides the tokens whose first coordinate is zero, each sequence by its own mask."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([MaskedBlock()])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x, (x[..., 0] == 0)[:, None].expand(-1, x.shape[1], -1))


def test_a_layer_keeps_the_mask_of_the_last_sequence_and_takes_stacks_of_any_size(
    randn: Any,
) -> None:
    model, stack = loaded(stirred(Padded())), randn(4, 5, 12)
    for hidden in ([3, 4], [0], []):
        padded = stack.clone()
        padded[:, hidden, 0] = 0
        x = model.tokens(padded, 0, "block")
        assert torch.equal(x, padded)
        for some in (x, x[:2], x[0]):
            expected = model.module(some.reshape(-1, 5, 12)).reshape(some.shape)
            assert (model.function(0, "block")(some) - expected).abs().max() < 1e-12
            assert (some + model.function(0)(some) - expected).abs().max() < 1e-12


def test_parts_are_told_apart_inside_a_module_that_holds_norm_and_residual() -> None:
    """Electra's attention ends with residual and LayerNorm, as BERT's."""
    module = stirred(
        transformers.ElectraModel(transformers.ElectraConfig(**COMMON, embedding_size=12))
    )
    model = loaded(module)
    inner = model.blocks[1].attention
    x = model.tokens(torch.arange(5), 1, "norm+attention")
    attention = inner.output.dense(inner.self(x[None])[0])[0]
    for part, expected in (
        ("attention", attention),
        ("residual", x + attention),
        ("norm+attention", inner.output.LayerNorm(x + attention)),
    ):
        assert (model.function(1, part)(x) - expected).abs().max() < 1e-12


def test_a_length_that_was_never_run_has_the_mask_of_the_network(
    unknown: tuple[nn.Module, bool], randn: Any
) -> None:
    model, ids = loaded(unknown[0]), torch.arange(2, 9)
    x = randn(7, model.dim)
    unseen = model.function(1)(x)
    model.tokens(ids, 1)
    assert torch.equal(unseen, model.function(1)(x))


def test_what_is_missing_is_said(unknown: tuple[nn.Module, bool], randn: Any) -> None:
    model = loaded(unknown[0])
    with pytest.raises(
        ValueError, match=r"query, key, value and output matrices of .* could not be found"
    ):
        model.attention(0)
    too_long = model.positions + 1
    with pytest.raises(ValueError, match=f"takes at most {too_long - 1} tokens, got {too_long}"):
        model.function(0)(randn(too_long, model.dim))
    with pytest.raises(ValueError, match="looks like attention"):
        load(nn.Linear(3, 3).eval())
    assert model.norm_radius(0) is None


def test_too_many_tokens_are_refused() -> None:
    model = loaded(stirred(UNKNOWN["distilbert"][0]()))
    assert model.positions == 9
    with pytest.raises(ValueError, match="at most 9 tokens, got 10"):
        model.tokens(torch.ones(2, 10, dtype=torch.long), 0)
    assert model.tokens(torch.ones(10, 9, dtype=torch.long), 0).shape == (10, 9, 12)
