"""Whole models behind the door against the same models with eager attention: values and derivatives
in the embeddings or pixels.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from door_networks import KINDS, TOKENS, Kind
from torch import Tensor, nn
from torch.func import grad, jacfwd, jvp, vjp, vmap

from attnscope.models import door


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The door, with a list of the modules that came through it; and eager attention whose softmax
    keeps the precision of the model, where many families would round to float32.
    """
    came: list[object] = []
    forward, softmax = door.attention_forward, nn.functional.softmax

    @functools.wraps(forward)
    def counted(module: nn.Module, *arguments: Any, **named: Any) -> Any:
        came.append(module)
        return forward(module, *arguments, **named)

    monkeypatch.setattr(door, "attention_forward", counted)
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim, **_: softmax(x, dim))
    door.register_attention()
    yield came
    monkeypatch.undo()
    door.register_attention()


def build(kind: Kind, implementation: str) -> nn.Module:
    """The same random network for either implementation, its weights large enough to matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, kind.config)(**kind.options)
        config._attn_implementation = implementation
        torch.manual_seed(0)
        model: nn.Module = getattr(transformers, kind.model)(config)
    for index, parameter in enumerate(model.parameters()):
        noise = torch.Generator().manual_seed(index)
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=noise)
    return model.double().eval().requires_grad_(False)


def function(model: nn.Module, kind: Kind, **more: Any) -> Callable[[Tensor], Tensor]:
    def of(x: Tensor) -> Tensor:
        out: Tensor = model(**{kind.name: x}, **kind.more(), **more).last_hidden_state
        return out

    return of


def point(kind: Kind) -> Tensor:
    noise = torch.Generator().manual_seed(1)
    return torch.randn(kind.shape, dtype=torch.float64, generator=noise)


def agree(one: object, other: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def compare(
    kind: Kind, x: Tensor, seen: Callable[[Tensor], Tensor] = lambda out: out, **more: Any
) -> None:
    """Values, derivative and adjoint of the whole network, relative to their size."""
    results = []
    for implementation in ("eager", "attnscope"):
        of = function(build(kind, implementation), kind, **more)
        noise = torch.Generator().manual_seed(2)
        t = torch.randn(x.shape, dtype=x.dtype, generator=noise)
        out, moved = jvp(lambda x, of=of: seen(of(x)), (x,), (t,))
        g = torch.randn(out.shape, dtype=x.dtype, generator=noise)
        (back,) = vjp(lambda x, of=of: seen(of(x)), x)[1](g)
        results.append([out, moved, back])
    for theirs, ours in zip(*results, strict=True):
        size = theirs.abs().max()
        assert size > 0
        agree(ours / size, theirs / size)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_behind_the_door_is_the_model(name: str, calls: list[object]) -> None:
    kind = KINDS[name]
    compare(kind, point(kind))
    assert len(calls) == 2 * kind.calls, "the attention is not the one that was registered"


PADDED = torch.ones(2, TOKENS, dtype=torch.int64)
PADDED[1, :4] = 0
TRAILING = PADDED.flip(-1)
HOLES = PADDED.flip(-1) * PADDED
HOLES[0, 7] = 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "bert", "modernbert", "t5"])
@pytest.mark.parametrize("mask", [PADDED, TRAILING, HOLES], ids=["left", "right", "holes"])
def test_padding(name: str, mask: Tensor) -> None:
    """At every token that is one: what a model puts at padding is nobody's business."""
    kind = KINDS[name]
    x = torch.cat([point(kind), point(kind).flip(1)])
    real = mask.bool() if kind.more is dict else torch.ones(2, 7, dtype=torch.bool)
    rest = {} if kind.more is dict else {"decoder_input_ids": decoded_pair()}
    alone = Kind(kind.config, kind.options, kind.model, kind.calls)
    compare(alone, x, lambda out: out[real], attention_mask=mask, **rest)


def decoded_pair() -> Tensor:
    return torch.stack([torch.arange(7) + 3, torch.arange(7) + 20])


def test_sequences_packed_into_one() -> None:
    places = torch.cat([torch.arange(8), torch.arange(TOKENS - 8)])[None]
    kind = KINDS["llama"]
    compare(kind, point(kind), position_ids=places, use_cache=False)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_masks_of_four_axes_are_taken_as_they_come(name: str) -> None:
    kind, noise = KINDS[name], torch.Generator().manual_seed(3)
    numbers = torch.randn(1, 1, TOKENS, TOKENS, dtype=torch.float64, generator=noise)
    numbers[..., 5, :] = torch.finfo(torch.float64).min
    compare(kind, point(kind), attention_mask=numbers)
    reads = (numbers > 0) | torch.eye(TOKENS, dtype=torch.bool)
    hidden = torch.zeros_like(numbers).masked_fill(~reads, torch.finfo(torch.float64).min)
    ours = function(build(kind, "attnscope"), kind, attention_mask=reads)(point(kind))
    theirs = function(build(kind, "eager"), kind, attention_mask=hidden)(point(kind))
    agree(ours / theirs.abs().max(), theirs / theirs.abs().max())


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_generated_with_a_cache(name: str) -> None:
    kind = KINDS[name]
    steps = []
    for implementation in ("eager", "attnscope"):
        model = build(kind, implementation)
        x, cache, outs = point(kind), None, []
        with torch.no_grad():
            for part in (x[:, :9], x[:, 9:10], x[:, 10:13]):
                out = model(inputs_embeds=part, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                outs.append(out.last_hidden_state)
        steps.append(torch.cat(outs, 1))
    agree(steps[1], steps[0], 1e-11)


def test_every_transform_of_a_model() -> None:
    kind = KINDS["gemma2"]
    x = point(kind)
    t = torch.randn(3, *x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(4))
    results = []
    for implementation in ("eager", "attnscope"):
        of = function(build(kind, implementation), kind)

        def scalar(x: Tensor, of: Callable[[Tensor], Tensor] = of) -> Tensor:
            return of(x).sin().sum()

        leaf = x.clone().requires_grad_()
        (once,) = torch.autograd.grad(scalar(leaf), leaf, create_graph=True)
        (twice,) = torch.autograd.grad(once.cos().sum(), leaf)
        results.append(
            [
                vmap(lambda t, of=of: jvp(of, (x,), (t,))[1])(t),
                jacfwd(lambda s, of=of: of(x + torch.einsum("s,sbnd->bnd", s, t)))(x[0, 0, :3]),
                jvp(grad(scalar), (x,), (t[0],))[1],
                grad(lambda x, of=of: jvp(of, (x,), (t[0],))[1].sin().sum())(x),
                once.detach(),
                twice,
            ]
        )
    for theirs, ours in zip(*results, strict=True):
        agree(ours / theirs.abs().max(), theirs / theirs.abs().max())


def test_two_forward_levels_are_refused() -> None:
    kind = KINDS["llama"]
    of, x = function(build(kind, "attnscope"), kind), point(kind)
    with pytest.raises(NotImplementedError, match="two levels"):
        jvp(lambda x: jvp(of, (x,), (x,))[1], (x,), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    """Half precision is computed in float32, and comes back as it was."""
    shape = (1, 2, TOKENS, 8)
    noise = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(shape, generator=noise).to(dtype) for _ in range(3))
    module = nn.Identity()
    module.is_causal = False  # type: ignore[assignment]

    def of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return door.attention_forward(module, q, k, v, None)[0]

    out, moved = jvp(of, (q, k, v), (q, k, v))
    assert out.dtype == moved.dtype == dtype
    exact = jvp(of, (q.double(), k.double(), v.double()), (q.double(), k.double(), v.double()))
    close = 16 * torch.finfo(dtype).eps  # of scores of size 5 and their changes
    torch.testing.assert_close((out.double(), moved.double()), exact, rtol=close, atol=close)


def test_masks_keep_their_structure() -> None:
    """No mask of a text model costs n^2 memory: one interval of keys for each query."""
    from transformers import masking_utils

    config = transformers.LlamaConfig(sliding_window=5, attention_chunk_size=6)
    config._attn_implementation = "attnscope"
    x = torch.zeros(2, TOKENS, 1)
    for make in (
        masking_utils.create_causal_mask,
        masking_utils.create_sliding_window_causal_mask,
        masking_utils.create_chunked_causal_mask,
        masking_utils.create_bidirectional_mask,
        masking_utils.create_bidirectional_sliding_window_mask,
    ):
        for padding in (None, PADDED, TRAILING):
            made = make(
                config=config, inputs_embeds=x, attention_mask=padding, past_key_values=None
            )
            assert made.shape == (2, 1, TOKENS, 3)
    holes = masking_utils.create_causal_mask(config, x, HOLES, None)
    assert holes.shape == (2, 1, TOKENS, TOKENS)


def test_what_would_change_the_map_is_refused(unchecked: None) -> None:
    q = torch.zeros(1, 2, TOKENS, 4)
    module = nn.Identity().eval()
    module.is_causal = True  # type: ignore[assignment]

    def ask(mask: Tensor | None = None, x: Tensor = q, **named: Any) -> None:
        door.attention_forward(module, x, x, x, mask, **named)

    ask(dropout=0.1, use_cache=True, cu_seq_lens_q=None, head_mask=None)
    with pytest.raises(NotImplementedError, match="cu_seq_lens_q"):
        ask(cu_seq_lens_q=torch.arange(3))
    with pytest.raises(NotImplementedError, match="indices"):
        ask(indices=torch.arange(3))
    with pytest.raises(NotImplementedError, match="sliding window of 5"):
        ask(sliding_window=5)
    with pytest.raises(ValueError, match="output_attentions"):
        ask(output_attentions=True)
    with pytest.raises(ValueError, match="got a tensor of shape"):
        ask(torch.ones(1, TOKENS))
    with pytest.raises(ValueError, match="got a tensor of shape"):
        ask(torch.zeros(1, 1, TOKENS, TOKENS - 1))
    short = door.attention_mask(1, TOKENS, TOKENS - 1)
    with pytest.raises(ValueError, match="got a tensor of shape"):
        ask(short)
    with pytest.raises(TypeError, match="boolean mask"):
        ask(torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.int64))
    with pytest.raises(TypeError, match="one dtype"):
        ask(x=q.to(torch.float8_e4m3fn))
    with pytest.raises(TypeError, match="one dtype"):
        door.attention_forward(module, q, q.double(), q, None)
    del module.is_causal
    with pytest.raises(NotImplementedError, match="whether it is causal"):
        ask()
    module.train()
    with pytest.raises(ValueError, match="dropout"):
        ask(dropout=0.1)


def test_the_layer_without_a_mask_is_causal_when_it_says_so(randn: Callable[..., Tensor]) -> None:
    q = randn(1, 2, TOKENS, 4)
    module = nn.Identity()
    module.is_causal = True  # type: ignore[assignment]
    out = door.attention_forward(module, q, q, q, None)[0]
    masked = door.attention_forward(module, q, q, q, door.attention_mask(1, TOKENS, TOKENS))[0]
    whole = door.attention_forward(module, q, q, q, None, is_causal=False)[0]
    agree(out, masked)
    assert not torch.allclose(out, whole)
    agree(out[:, -1], whole[:, -1])
