"""The contract of every family: its attention, its parts and its tokens are those of the network's
own forward pass.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import KINDS, build, inputs, loaded, shared
from torch import Tensor

from attnscope import Particles
from attnscope.models import PARTS, Model, families

LAYERS = (0, 1, 2)


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def tolerance(name: str, dtype: torch.dtype = torch.float64) -> float:
    return 1e-5 if dtype == torch.float32 or KINDS[name].float32_inside else 1e-10


def seen(model: Model, source: Tensor, path: str, layer: int, end: str) -> Tensor:
    """What the network's own module takes in or gives out while the whole network runs."""
    caught: list[Tensor] = []

    def watch(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        value = out if end == "out" else (*args, *kwargs.values())
        caught.append(value[0] if isinstance(value, tuple) else value)

    handle = model.module.get_submodule(path.format(layer)).register_forward_hook(
        watch, with_kwargs=True
    )
    with torch.no_grad():
        model.module(source.to(model.dtype) if source.is_floating_point() else source)
    handle.remove()
    return caught[0]


def test_every_family_but_the_generic_one_has_a_tiny_network() -> None:
    assert {shared(name).family for name in KINDS} == set(families()) - {"generic"}


def test_kinds_are_recognised(name: str) -> None:
    model = shared(name)
    assert name.split("-")[0] in type(model).types
    assert (model.layers, model.heads, model.dim) == (
        3,
        model.config.num_attention_heads,
        model.config.hidden_size,
    )
    assert model.causal == (name == "bert-decoder" or model.family in ("gpt2", "llama"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rebuilt_attention_is_the_networks_own(name: str, dtype: torch.dtype) -> None:
    model, source = loaded(build(name), dtype), inputs(name)
    for layer in LAYERS:
        x = model.tokens(source, layer)
        expected = seen(model, source, KINDS[name].attention, layer, "out")
        rebuilt = model.attention(layer)(x, Particles(x))
        assert rebuilt.dtype == dtype
        assert (rebuilt - expected).abs().max() < tolerance(name, dtype) * expected.abs().max()
        assert (model.function(layer, "attention")(x) - expected).abs().max() < tolerance(
            name, dtype
        ) * expected.abs().max()


def test_rebuilt_attention_has_the_jacobian_of_the_networks_own(name: str) -> None:
    model = shared(name)
    x = model.tokens(inputs(name)[0], 1)
    attention, mu = model.attention(1), Particles(x)
    ours = torch.func.jacrev(lambda z: attention.dense(z, mu.at(z)))(x)
    forward = torch.func.jacfwd(model.function(1, "attention"))(x)
    backward = torch.func.jacrev(model.function(1, "attention"))(x)
    assert (ours - forward).abs().max() < tolerance(name) * ours.abs().max()
    assert (ours - backward).abs().max() < tolerance(name) * ours.abs().max()


def test_parts_end_where_the_network_says(name: str) -> None:
    model, source, kind = shared(name), inputs(name), KINDS[name]
    for layer in LAYERS:
        ends = {
            "residual": seen(model, source, kind.residual, layer, "in"),
            "norm+attention": seen(model, source, kind.after_norm, layer, "out"),
        }
        for part, expected in ends.items():
            found = model.function(layer, part)(model.tokens(source, layer, part))
            assert (found - expected).abs().max() < tolerance(name) * expected.abs().max(), part


def test_blocks_lead_from_one_hidden_state_to_the_next(name: str) -> None:
    model, source = shared(name), inputs(name)
    with torch.no_grad():
        states = model.module(source, output_hidden_states=True).hidden_states
    for layer in LAYERS:
        tokens = model.tokens(source, layer, "block")
        assert (tokens - states[layer]).abs().max() < 1e-10
        if layer + 1 in LAYERS:
            assert (
                model.function(layer, "block")(tokens) - states[layer + 1]
            ).abs().max() < tolerance(name) * states[layer + 1].abs().max()


def test_a_hook_of_the_user_on_a_layer_is_applied_once(name: str) -> None:
    """The tokens of a layer are those that it is handed, before its own hooks."""
    model, source = loaded(build(name)), inputs(name)
    handle = model.blocks[1].register_forward_pre_hook(lambda _, args: (args[0] + 1, *args[1:]))
    with torch.no_grad():
        states = model.module(source, output_hidden_states=True).hidden_states
        found = model.function(1, "block")(model.tokens(source, 1, "block"))
    handle.remove()
    assert (found - states[2]).abs().max() < tolerance(name) * states[2].abs().max()


def test_every_part_has_forward_and_backward_derivatives_that_agree(name: str, randn: Any) -> None:
    model, source = shared(name), inputs(name)
    for part in PARTS:
        x = model.tokens(source, 1, part)
        u, v = randn(*x.shape), randn(*x.shape)
        function = model.function(1, part)
        forward = torch.func.jvp(function, (x,), (u,))[1]
        backward = torch.func.vjp(function, x)[1](v)[0]
        assert (
            abs((v * forward).sum() - (backward * u).sum())
            < tolerance(name) * forward.norm() * v.norm()
        )


def test_fused_attention_gives_the_same_maps(name: str, randn: Any) -> None:
    if name == "mpnet":
        return  # it knows eager attention only
    eager, fused = shared(name), loaded(build(name, "sdpa"))
    for part in PARTS:
        x = eager.tokens(inputs(name), 1, part)
        step = randn(*x.shape)
        assert (fused.tokens(inputs(name), 1, part) - x).abs().max() < tolerance(name)
        (out, tangent), (fused_out, fused_tangent) = (
            torch.func.jvp(model.function(1, part), (x,), (step,)) for model in (eager, fused)
        )
        assert (out - fused_out).abs().max() < tolerance(name) * out.abs().max()
        assert (tangent - fused_tangent).abs().max() < tolerance(name) * tangent.abs().max()


def test_a_token_sees_later_ones_exactly_in_the_networks_that_are_not_causal(name: str) -> None:
    model, source = shared(name), inputs(name)
    for part in PARTS:
        x = model.tokens(source, 1, part)
        moved = torch.cat(
            [x[:, :-1], x[:, -1:] + torch.arange(1.0, 1 + model.dim, dtype=x.dtype)], dim=1
        )
        function, attention = model.function(1, part), model.attention(1)
        change = (function(moved) - function(x))[:, :-1].abs().max()
        rebuilt = (
            (attention(moved, Particles(moved)) - attention(x, Particles(x)))[:, :-1].abs().max()
        )
        if part == "mlp":
            assert change < 1e-12  # token by token
        elif model.causal:
            assert max(change, rebuilt) < 1e-12
        else:
            assert min(change, rebuilt) > 1e-4


def test_a_prefix_has_its_own_tokens_in_a_causal_network(name: str) -> None:
    model, source = shared(name), inputs(name)
    if model.causal:
        assert (model.tokens(source[:, :3], 2) - model.tokens(source, 2)[:, :3]).abs().max() < 1e-10


def test_a_stack_is_a_loop(name: str) -> None:
    model, source = shared(name), inputs(name)
    x = model.tokens(source, 1, "block")
    assert x.shape == (3, 5, model.dim)
    assert model.tokens(source[:1], 1, "block").shape == (1, 5, model.dim)
    assert model.tokens(source[0], 1, "block").shape == (5, model.dim)
    assert (x - torch.stack([model.tokens(one, 1, "block") for one in source])).abs().max() < 1e-10
    function = model.function(1, "block")
    assert (function(x) - torch.stack([function(one) for one in x])).abs().max() < 1e-6
    assert function(x[:, None]).shape == (3, 1, 5, model.dim)


def test_norm_bounds_the_tokens_and_is_nearly_reached(name: str, randn: Any) -> None:
    model, source = shared(name), inputs(name)
    for layer in LAYERS:
        radius = model.norm_radius(layer)
        assert radius is not None
        assert model.tokens(source, layer).norm(dim=-1).max() <= radius * (1 + 1e-6)
        norm = model.input_norm(layer)
        spikes = 1e3 * torch.eye(model.dim, dtype=torch.float64)
        reached = (
            torch.cat([norm(spikes), norm(-spikes), norm(1e6 * randn(50, model.dim))])
            .norm(dim=-1)
            .max()
        )
        assert 0.8 * radius <= reached <= radius * (1 + 1e-6)


def test_negative_gains_count_with_their_size() -> None:
    model, x = loaded(build("gpt2")), 1e3 * torch.eye(12, dtype=torch.float64)
    with torch.no_grad():
        model.norm(1).weight[3] = -7.0
        assert model.norm(1)(x).norm(dim=-1).max() > 0.9 * 7 * 12**0.5
        assert model.norm(1)(x).norm(dim=-1).max() <= model.norm_radius(1)


def test_an_image_has_as_many_tokens_as_the_model_has_positions() -> None:
    model = loaded(build("vit"))
    assert model.tokens(inputs("vit")[0], 0).shape[-2] == model.positions


@pytest.mark.parametrize("layer", LAYERS)
def test_the_radius_of_a_post_norm_model_comes_from_the_norm_before(layer: int) -> None:
    """BERT's attention reads the output of the previous block, or of the embedding."""
    model = loaded(build("bert"))
    norm = (
        model.module.embeddings.LayerNorm
        if layer == 0
        else model.module.encoder.layer[layer - 1].output.LayerNorm
    )
    gain, shift = norm.weight.detach(), norm.bias.detach()
    assert model.norm_radius(layer) == pytest.approx(
        float(12**0.5 * gain.abs().max() + shift.norm())
    )
    assert len({model.norm_radius(other) for other in LAYERS}) == len(LAYERS)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_printed_in_a_line(name: str) -> None:
    shown = repr(shared(name))
    assert len(shown) < 200
    assert "\n" not in shown
    assert "3 layers" in shown
