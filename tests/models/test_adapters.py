"""What was loaded is what is measured: adapters, hooks and parametrisations are never ignored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import build, inputs, loaded
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attnscope import Particles, spectral_norm
from attnscope.models import PARTS, Model, ModelNotice, load
from attnscope.models._jacobian import head_jacobian, part_jacobian
from attnscope.models._taps import listening, silent


class LowRank(nn.Module):
    """A linear map with a branch of rank two added to it, as LoRA does."""

    def __init__(self, base: nn.Linear, size: float = 1.0) -> None:
        super().__init__()
        self.base_layer = base
        source = torch.Generator().manual_seed(5)
        self.down = nn.Parameter(torch.randn(2, base.in_features, generator=source))
        self.up = nn.Parameter(size * torch.randn(base.out_features, 2, generator=source))

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + x @ self.down.T @ self.up.T


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def low_rank(block: Any) -> None:
    block.self_attn.v_proj = LowRank(block.self_attn.v_proj)


def small_low_rank(block: Any) -> None:
    block.self_attn.q_proj = LowRank(block.self_attn.q_proj, 1e-3)


def projection_hook(block: Any) -> None:
    block.self_attn.k_proj.register_forward_hook(lambda _, args, out: 1.5 * out)


def attention_pre_hook(block: Any) -> None:
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = kwargs.pop("hidden_states", args[0] if args else None)
        return (), {**kwargs, "hidden_states": 2 * hidden}

    block.self_attn.register_forward_pre_hook(before, with_kwargs=True)


def attention_hook(block: Any) -> None:
    block.self_attn.register_forward_hook(lambda _, args, out: (out[0].tanh(), *out[1:]))


def norm_hook(block: Any) -> None:
    block.input_layernorm.register_forward_hook(lambda _, args, out: out.sin())


CHANGES = [
    low_rank,
    small_low_rank,
    projection_hook,
    attention_pre_hook,
    attention_hook,
    norm_hook,
]


def truth(model: Any, ids: Tensor, part: str) -> Tensor:
    """The dense Jacobian of Hugging Face's own modules, put together by hand."""
    block, x = model.module.layers[1], model.tokens(ids, 1, part)
    n = len(ids)
    mask = torch.full((n, n), -1e30, dtype=x.dtype).triu(1)[None, None]
    angles = model.module.rotary_emb(x[None], position_ids=torch.arange(n)[None])

    def attend(x: Tensor) -> Tensor:
        told = {"attention_mask": mask, "position_embeddings": angles}
        return block.self_attn(hidden_states=x[None], **told)[0][0]

    maps: dict[str, Callable[[Tensor], Tensor]] = {
        "attention": attend,
        "norm+attention": lambda x: attend(block.input_layernorm(x)),
        "residual": lambda x: x + attend(block.input_layernorm(x)),
        "mlp": lambda x: block.mlp(block.post_attention_layernorm(x)),
        "block": lambda x: block(x[None], attention_mask=mask, position_embeddings=angles)[0],
    }
    return torch.func.jacrev(maps[part])(x).detach().reshape(x.numel(), x.numel())


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_map_changes_its_constant(change: Callable[[Any], None]) -> None:
    module: Any = build("llama")
    change(module.layers[1])
    module.eval()
    model, ids = loaded(module), inputs("llama")[0]
    with pytest.warns(ModelNotice, match=r"layer 1 of LlamaModel compute something else"):
        assert not model.rebuilt(1)
    assert model.rebuilt(0)
    for part in PARTS:
        x, dense = model.tokens(ids, 1, part), truth(model, ids, part)
        op = part_jacobian(model, 1, part, x)
        assert (op.to_dense() - dense).abs().max() < 1e-5 * dense.abs().max()
    with pytest.raises(ValueError, match="an adapter, a hook or a parametrisation"):
        model.attention(1)


def test_the_notice_is_given_once() -> None:
    module: Any = build("llama")
    low_rank(module.layers[1])
    module.eval()
    model = loaded(module)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not model.rebuilt(1)
        assert not model.rebuilt(1)
    assert len(told) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_merged_adapter_and_a_parametrisation_are_read_from_the_weights(
    dtype: torch.dtype,
) -> None:
    """They change what `.weight` is, so that heads can be rebuilt."""
    merged: Any = build("llama")
    adapter = LowRank(merged.layers[1].self_attn.v_proj)
    with torch.no_grad():
        adapter.base_layer.weight += adapter.up @ adapter.down
    parametrised: Any = build("llama")
    parametrize.register_parametrization(
        parametrised.layers[1].self_attn.q_proj, "weight", Doubled()
    )
    for module in (merged, parametrised):
        model = loaded(module.eval(), dtype)
        x = model.tokens(inputs("llama")[0], 1)
        assert model.rebuilt(1)
        own = model.function(1)(x)
        gap = model.attention(1)(x, Particles(x)) - own
        assert gap.abs().max() < 1e-5 * own.abs().max()


def test_a_hook_that_only_looks_keeps_the_heads() -> None:
    module, seen = build("llama"), []
    module.layers[1].self_attn.register_forward_hook(lambda _, args, out: seen.append(out[0]))
    assert loaded(module).rebuilt(1)
    assert seen


def test_a_hook_that_comes_later_is_seen_too() -> None:
    model, ids = loaded(build("gpt2")), inputs("gpt2")[0]
    x = model.tokens(ids, 1)
    before = float(spectral_norm(part_jacobian(model, 1, "attention", x), tol=1e-10).lower)
    model.module.h[1].attn.c_proj.register_forward_hook(lambda _, args, out: 3 * out)
    with pytest.warns(ModelNotice, match="compute something else"):
        after = float(spectral_norm(part_jacobian(model, 1, "attention", x), tol=1e-10).lower)
    assert after == pytest.approx(3 * before, rel=1e-8)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_radius_is_withheld_where_a_hook_follows_the_norm(name: str) -> None:
    model = loaded(build(name))
    assert model.norm_radius(1) is not None
    after = model.blocks[0] if name == "bert" else model.norm(1)
    after.register_forward_hook(lambda _, args, out: 100 * out)
    x = model.tokens(inputs(name)[0], 1)
    assert model.norm_radius(1) is None
    assert x.norm(dim=-1).max() > model.norm_radius(0)


def test_compiled_modules_are_measured_as_what_they_compute() -> None:
    module: Any = build("gpt2")
    whole = load(torch.compile(module, backend="eager"))
    assert whole.module is module
    ids = inputs("gpt2")[0]
    expected = whole.tokens(ids, 2)
    module.h[1].compile(backend="eager")
    torch.testing.assert_close(load(module).tokens(ids, 2), expected)


def test_weights_made_in_inference_mode_can_be_differentiated() -> None:
    with torch.inference_mode():
        module = build("gpt2")
    model = load(module)
    x = model.tokens(inputs("gpt2")[0], 1, "block")
    assert part_jacobian(model, 1, "block", x).to_dense().isfinite().all()


def test_quantised_weights_are_refused_for_what_they_are() -> None:
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    held = nn.Linear(8, 8)
    held.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.int8), requires_grad=False)
    module.linear1 = held
    with pytest.raises(ValueError, match=r"quantised weights \(torch\.int8\)"):
        load(module)


def test_a_hook_on_the_whole_attention_is_part_of_it() -> None:
    """What leaves the module counts, not what its last projection made."""
    module, ids = build("gpt2"), inputs("gpt2")[0]
    before = spectral_norm(loaded(module).jacobian(1, ids), tol=1e-10).lower
    module.h[1].attn.register_forward_hook(lambda _, args, out: (2 * out[0], *out[1:]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelNotice)
        after = spectral_norm(loaded(module).jacobian(1, ids), tol=1e-10).lower
    assert after == pytest.approx(2 * before, rel=1e-8)


def own_jacobian(model: Model, layer: int, x: Tensor) -> Tensor:
    """Of Hugging Face's attention module itself, its hooks included (GPT-2, eager)."""
    attention = model.blocks[layer].attn
    mask = torch.full((len(x), len(x)), -1e30, dtype=x.dtype).triu(1)[None, None]
    run = torch.func.jacrev(lambda x: attention(x[None], attention_mask=mask)[0][0])
    return run(x).detach().reshape(x.numel(), -1)


def clipped(attention: Any) -> None:
    """Nothing at tokens of size one."""
    attention.c_attn.register_forward_hook(lambda _, args, out: out.clamp(-CLIP, CLIP))


CLIP = 12.0


def gated(attention: Any) -> None:
    """By the tokens, and centred: the sum over the coordinates never moves."""

    def after(_: nn.Module, args: tuple[Tensor, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
        y = out[0] * args[0].sigmoid()
        return y - y.mean(-1, keepdim=True), *out[1:]

    attention.register_forward_hook(after)


def stretched(attention: Any) -> None:
    attention.register_forward_hook(lambda _, args, out: (out[0].tanh(), *out[1:]))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("change", [clipped, gated, stretched])
def test_hooks_that_hide_are_measured(change: Callable[[Any], None], late: bool) -> None:
    """They show at the model's own tokens only, or not in a sum, or come when parts are known."""
    model, ids = loaded(build("gpt2")), inputs("gpt2")[0]
    if late:
        model.jacobian(1, ids)
        model.jacobian(1, ids, head=1)
    change(model.blocks[1].attn)
    x = 8 * model.tokens(ids, 1)
    assert change is not clipped or model.blocks[1].attn.c_attn(x).abs().max() == CLIP
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelNotice)
        found, true = part_jacobian(model, 1, "attention", x), own_jacobian(model, 1, x)
        assert (found.to_dense() - true).abs().max() < 1e-8 * true.abs().max()
        if change is stretched:
            with pytest.raises(ValueError, match="mixed before they are added"):
                head_jacobian(model, 1, x, 0)
            return
        heads = sum(head_jacobian(model, 1, x, head).to_dense() for head in range(model.heads))
        rest = torch.func.jacrev(_without_heads(model))(x).detach().reshape(true.shape)
    assert (heads + rest - true).abs().max() < 1e-8 * true.abs().max()


def _without_heads(model: Model) -> Callable[[Tensor], Tensor]:
    """What the bias of the output becomes behind a gate; it belongs to no head."""

    def run(x: Tensor) -> Tensor:
        with listening(silent):
            return model.function(1)(x)

    return run


def test_a_number_of_a_module_that_changes_is_seen() -> None:
    model = load(build("gpt2").float(), dtype=torch.float32)
    ids = inputs("gpt2")[0]
    model.jacobian(1, ids)
    first = model.doubled()
    assert model.doubled() is first
    model.blocks[1].attn.scaling *= 3
    again = model.doubled()
    assert again is not first
    assert again is not None
    x = model.tokens(ids, 1).double()
    found = spectral_norm(model.jacobian(1, ids), tol=1e-8).lower
    true = torch.linalg.matrix_norm(own_jacobian(again, 1, x), 2)
    assert float(found) == pytest.approx(float(true), rel=1e-6)


def test_the_copy_in_float64_follows_the_weights() -> None:
    model = load(build("gpt2").float(), dtype=torch.float32)
    first = model.doubled()
    assert first is not None
    assert model.doubled() is first
    weight = model.module.h[0].attn.c_proj.weight
    with torch.no_grad():
        weight.mul_(2)
    again = model.doubled()
    assert again is not None
    assert again.module.h[0].attn.c_proj.weight.equal(weight.double())


def scaled_in_place(part: Any) -> Callable[[], None]:
    """`.data` writes past torch's counter of versions, as adapters do that are merged."""
    return lambda: part.c_proj.weight.data.mul_(3)


def switched(part: Any) -> Callable[[], None]:
    """A hook that is the method of an object, and follows it."""

    class Steering:
        factor = 1.0

        def __init__(self) -> None:
            self.told = {"layers": [self.factor]}

        def hook(self, _: nn.Module, given: object, out: Tensor) -> Tensor:
            return self.told["layers"][0] * out

    steering = Steering()
    part.c_proj.register_forward_hook(steering.hook)

    def switch() -> None:
        steering.told["layers"][0] = 3.0

    return switch


def rescaled(part: Any) -> Callable[[], None]:
    """A branch whose scale stands in a dictionary, as peft's do."""

    class Scaled(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base, self.scaling = base, {"default": 1.0}

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) * self.scaling["default"]

    part.c_proj = made = Scaled(part.c_proj).eval()
    return lambda: made.scaling.update(default=3.0)


@pytest.mark.parametrize("prepared", [scaled_in_place, switched, rescaled])
def test_lower_bounds_are_of_the_network_as_it_is_now(
    prepared: Callable[[Any], Callable[[], None]],
) -> None:
    """The copy in float64 finishes them, and was made before the network changed."""
    model = load(build("gpt2").float(), dtype=torch.float32)
    ids, mlp = inputs("gpt2")[0], model.module.h[1].mlp
    change = prepared(mlp)

    def constant() -> float:
        return float(spectral_norm(model.jacobian(1, ids, "mlp"), tol=1e-6).lower)

    first = constant()
    change()
    assert constant() == pytest.approx(3 * first, rel=1e-5)
