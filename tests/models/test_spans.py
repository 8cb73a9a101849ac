"""Spans: the derivative between any two places is that of the network's own forward pass."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from networks import COMMON, GPT2, ROTARY
from torch import Tensor, nn

from attnscope import singular_values, spectral_norm
from attnscope.models import Model, load, pieces_of

IDS = torch.tensor([3, 1, 4])
KINDS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**GPT2, attn_implementation="eager")
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**ROTARY, tie_word_embeddings=False, attn_implementation="eager")
    ),
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**COMMON, max_position_embeddings=11, attn_implementation="eager")
    ),
}


def made(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: nn.Module = KINDS[kind]().double().eval().requires_grad_(False)
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    return module


@cache
def network(kind: str) -> tuple[Any, Model]:
    module = made(kind)
    return module, load(module)


def by_hand(kind: str, module: Any, stop: str | int) -> tuple[Tensor, Tensor]:
    """The dense derivative of the module's own output in `inputs_embeds`, and that of what the
    embeddings do before the first block (a norm in BERT).
    """
    table = module.get_input_embeddings()
    embedded = table(IDS)[None]

    def out(x: Tensor) -> Tensor:
        got = module(inputs_embeds=x, output_hidden_states=True)
        if stop == "logits":
            return got.logits
        if stop == "next":
            return got.logits[:, -1]
        return got.hidden_states[-1 if stop == "final" else stop]

    def into(x: Tensor) -> Tensor:
        return module(inputs_embeds=x, output_hidden_states=True).hidden_states[0]

    whole, first = (torch.autograd.functional.jacobian(f, embedded) for f in (out, into))
    size = embedded.numel()
    return whole.reshape(-1, size), first.reshape(-1, size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["final", "next"])
def test_a_span_from_the_embeddings_is_the_modules_own_derivative(kind: str, stop: Any) -> None:
    module, model = network(kind)
    expected, embedding = by_hand(kind, module, stop)
    op = model.jacobian((0, stop), IDS)
    dense = op.to_dense()
    found = dense @ embedding
    # Hugging Face's Llama keeps float32 inside a double model
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    sigma = torch.linalg.svdvals(dense)
    bracket = spectral_norm(op, tol=1e-6, failure_probability=1e-3)
    assert bracket.lower == pytest.approx(float(sigma[0]), rel=1e-6)
    assert bracket.upper is not None
    assert bracket.upper >= float(sigma[0]) * (1 - 1e-6)
    values = singular_values(op, k=2, tol=1e-8).values
    assert torch.allclose(values, sigma[:2], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_chain_of_its_pieces_is_the_span(kind: str) -> None:
    _, model = network(kind)
    pieces = pieces_of(model, 0, "logits")
    assert pieces == [(0, 1), (1, 2), (2, "last"), ("last", "final"), ("final", "logits")]
    move = torch.randn(len(IDS), model.dim, generator=torch.Generator().manual_seed(2)).double()
    chain = move
    for piece in pieces:
        chain = model.jacobian(piece, IDS).mv(chain)
    whole = model.jacobian((0, "logits"), IDS).mv(move)
    assert (chain - whole).abs().max() <= 1e-6 * whole.abs().max()
    assert pieces_of(model, 1, 3) == [(1, 2), (2, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_itself_is_the_networks(kind: str) -> None:
    """At the network's own stream a span gives the network's own values; blocks are its parts."""
    module, model = network(kind)
    got = module(IDS[None], output_hidden_states=True)
    x = got.hidden_states[0][0]
    for stop, expected in (
        (2, got.hidden_states[2]),
        ("final", got.hidden_states[-1]),
        ("logits", got.logits),
        ("next", got.logits[:, -1]),
    ):
        found = model.span(0, stop)(x)
        assert torch.allclose(found, expected[0], rtol=1e-6, atol=1e-7)
    other = torch.randn(2, 3, model.dim, generator=torch.Generator().manual_seed(1)).double()
    block = model.function(1, "block")(other)
    assert torch.allclose(model.span(1, 2)(other), block, rtol=1e-9)
    assert model.span(1, 2)(other[0]).shape == (3, model.dim)


def test_a_stack_is_a_loop() -> None:
    _, model = network("gpt2")
    ids = torch.stack([IDS, IDS + 1])
    stack = spectral_norm(model.jacobian((0, "last"), ids), tol=1e-8)
    each = [spectral_norm(model.jacobian((0, "last"), one), tol=1e-8).lower for one in ids]
    assert torch.allclose(torch.as_tensor(stack.lower), torch.tensor(each).double(), rtol=1e-7)
    values = singular_values(model.jacobian((0, "next"), ids), k=2)
    assert values.values.shape == (2, 2)


def test_lower_bounds_of_float32_are_finished_in_float64() -> None:
    module, wide = network("bert")
    narrow = load(module, dtype=torch.float32)
    op = narrow.jacobian((0, "logits"), IDS)
    assert op.exact is not None
    assert op.exact().dtype == torch.float64
    truth = torch.linalg.svdvals(wide.jacobian((0, "logits"), IDS).to_dense())[0]
    assert spectral_norm(op).lower == pytest.approx(float(truth), rel=1e-6)
    assert narrow.module.dtype == torch.float32


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_fetched_from_the_folder(tmp_path: Path, tied: bool) -> None:
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, tie_word_embeddings=tied))
    module.save_pretrained(tmp_path)
    model = load(str(tmp_path), dtype=torch.float64)
    logits = module.double().eval()(IDS[None], output_hidden_states=True)
    found = model.span(0, "logits")(logits.hidden_states[0].detach())
    assert torch.allclose(found, logits.logits, atol=1e-6)
    shared = model.whole().lm_head.weight is model.module.wte.weight  # type: ignore[union-attr]
    assert shared == tied


@pytest.mark.filterwarnings("ignore::attnscope.ModelNotice")
def test_a_network_of_ones_own_gives_its_logits() -> None:
    """No door, no config: the module's own attention, by plain autograd."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.words = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.words(self.body(x))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Own().double().eval().requires_grad_(False)
    model = load(module)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).double()
    dense = torch.autograd.functional.jacobian(lambda x: module(x[None])[0], x).reshape(20, 32)
    assert torch.allclose(model.jacobian((0, "logits"), x).to_dense(), dense, atol=1e-10)
    with pytest.raises(ValueError, match='use "last"'):
        model.jacobian((0, "final"), x)
    with pytest.raises(ValueError, match="give the span a source"):
        model.span(0, 1)(x)


@pytest.mark.parametrize(
    ("start", "stop", "match"),
    [
        (2, 1, "must end after it begins, got one from 2 to 1"),
        (3, "last", "must end after it begins"),
        ("final", 2, "must end after it begins"),
        ("logits", "next", "must end after it begins"),
        (0, 4, "a number from 0 to 3, its number of layers, or last"),
        (-1, 2, "a number from 0 to 3"),
        (True, 2, "a number from 0 to 3"),
        ("first", 2, "got 'first'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_span_that_is_none_is_refused(start: Any, stop: Any, match: str) -> None:
    _, model = network("gpt2")
    with pytest.raises(ValueError, match=match):
        model.span(start, stop)
    with pytest.raises(ValueError, match=match):
        model.jacobian((start, stop), IDS)


@pytest.mark.usefixtures("unchecked")
def test_what_a_span_cannot_do_is_said() -> None:
    module, model = network("gpt2")
    with pytest.raises(ValueError, match="leave part and head out"):
        model.jacobian((0, 1), IDS, part="mlp")
    with pytest.raises(ValueError, match=r"tokens of shape \(..., n, 12\)"):
        model.span(0, 1)(torch.zeros(5, 7))
    bare = load(module.transformer)
    with pytest.raises(ValueError, match="came without a head"):
        bare.span(0, "next")
    minilm = load("minilm")
    assert minilm.jacobian((0, 1), torch.tensor([5, 6])).shape == (768, 768)
    with pytest.raises(ValueError, match="stored as a BertModel, which gives no logits"):
        minilm.span(0, "logits")
