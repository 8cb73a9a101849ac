"""Every part of many architectures is the map that their own modules make, put together by hand:
dense Jacobians in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, Architecture
from networks import loaded
from torch import Tensor, nn

from attnscope.models import Model
from attnscope.models._plain import Plain

HERE = object()
"""Stands where a module is handed its tokens."""

# DeBERTa scripts a function when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.fixture(params=ARCHITECTURES)
def case(request: pytest.FixtureRequest) -> Architecture:
    return ARCHITECTURES[request.param]


def chain(block: nn.Module, names: str, told: dict[nn.Module, Any]) -> Callable[[Tensor], Tensor]:
    """Modules one after the other; the first may be told masks and angles."""
    modules = [block.get_submodule(name.strip()) for name in names.split(">") if name.strip()]

    def run(x: Tensor) -> Tensor:
        for module in modules:
            args, kwargs = told.get(module, ((HERE,), {}))
            out = module(*(x if value is HERE else value for value in args), **kwargs)
            x = (out[0] if isinstance(out, tuple | list) else out).reshape((*x.shape[:-1], -1))
        return x

    return run


def by_hand(case: Architecture, block: Any, told: dict[nn.Module, Any]) -> dict[str, Any]:
    """Each part as a map on (1, n, d) and, before it, the map from the stream to where it is
    read.
    """
    wiring = case.wiring
    norm, attend, after, second, mlp, after_mlp = (
        chain(block, names, told)
        for names in (
            wiring.norm,
            wiring.attention,
            wiring.after,
            wiring.second,
            wiring.mlp,
            wiring.after_mlp,
        )
    )

    def whole(x: Tensor) -> Tensor:
        args, kwargs = told[block]
        out = block(*(x if value is HERE else value for value in args), **kwargs)
        return out[0] if isinstance(out, tuple | list) else out

    parts: dict[str, Any] = {"block": (lambda x: x, whole)}
    if wiring.attention:
        parts["attention"] = (norm, attend)
    if wiring.kind == "post":
        if wiring.attention:
            parts["residual"] = (lambda x: x, lambda x: x + attend(x))
            parts["norm+attention"] = (lambda x: x, lambda x: second(x + attend(x)))
            parts["mlp"] = (parts["norm+attention"][1], mlp)
        return parts
    step = lambda x: wiring.scale * after(attend(norm(x)))  # noqa: E731
    parts["norm+attention"] = (lambda x: x, step)
    parts["residual"] = (lambda x: x, lambda x: x + step(x))
    middle = (lambda x: x) if wiring.kind == "parallel" else parts["residual"][1]
    parts["mlp"] = (middle, lambda x: wiring.scale * after_mlp(mlp(second(x))))
    return parts


def overheard(model: Model, case: Architecture, inputs: Tensor) -> tuple[Any, Tensor, dict]:
    """The layer, the stream before it, and what its modules are told, by hooks of our own."""
    blocks = model.module.get_submodule(case.layers)
    block = blocks[case.layer % len(blocks)]
    told: dict[nn.Module, Any] = {}
    stream: list[Tensor] = []
    turn = [0]

    def hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is block:
            turn[0] += 1
            stream.append((*args, *kwargs.values())[0])
        hidden = next(
            v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()
        )
        told[module] = (
            # Bloom's attention is told the stream, to add it: without it, it is attention alone.
            tuple(HERE if v is hidden else 0 * v if v is stream[-1] else v for v in args),
            {k: v for k, v in kwargs.items() if "past" not in k and "cache" not in k},
        )
        if not args:
            name = next(k for k, v in kwargs.items() if v is hidden)
            rest = {k: v for k, v in told[module][1].items() if k != name}
            told[module] = ((HERE,), rest)

    handles = []
    for name in dict.fromkeys(("", *case.wiring.attention.split(">")[:1])):
        module = block.get_submodule(name.strip())
        handles.append(module.register_forward_pre_hook(hear, with_kwargs=True))
    with torch.no_grad(), Plain(model.module)():
        name = model.module.main_input_name
        model.module(**{name: inputs})
    for handle in handles:
        handle.remove()
    return block, stream[-1 if len(stream) == 1 else case.layer], told


def dense(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The Jacobian, row by row where rows cannot be taken together: experts choose their tokens,
    and Bloom's activation has a derivative of the old kind.
    """
    try:
        return torch.func.jacrev(function)(x).detach().reshape(x.numel(), -1)
    except RuntimeError:
        return torch.autograd.functional.jacobian(function, x).reshape(x.numel(), -1)


def test_every_part_is_that_of_the_networks_own_modules(case: Architecture) -> None:
    """Ours through the door, theirs with eager attention."""
    model = loaded(case.build())
    inputs = model.sample(5)
    assert inputs is not None
    assert model.layers == case.options.get("num_hidden_layers", model.layers)
    block, stream, told = overheard(model, case, inputs)
    parts = by_hand(case, block, told)
    for part, (before, own) in parts.items():
        x = model.tokens(inputs, case.layer, part)[0]
        with Plain(model.module)():
            with torch.no_grad():
                assert (x - before(stream)[0]).abs().max() < 1e-6 * x.abs().max(), part
            expected = dense(lambda x: own(x[None])[0], x)  # noqa: B023
        found = dense(model.function(case.layer, part), x)
        assert expected.abs().max() > 1e-3, part
        assert (found - expected).abs().max() < 1e-6 * expected.abs().max(), part


NOT_BEHIND = {
    "bloom",
    "gptj",
    "gpt_neo",
    "falcon",
    "mpt",
    "codegen",
    "openai-gpt",
    "rembert",
    "roformer",
    "megatron-bert",
    "deberta",
    "deberta-v2",
    "mpnet",
}
MIXED = {"bitnet"}
"""A norm over all heads stands before the output projection."""
GATED = {"bitnet", "qwen3_next"}


def projection(model: Model, block: Any) -> Any:
    """The linear map that writes the heads, by its name."""
    names = ("o_proj", "out_proj", "c_proj", "output.dense", "dense", "out_lin", "Wo", "o")
    for name, part in block.named_modules():
        if any(f".{name}".endswith(f".{own}") for own in names) and "mlp" not in name:
            return part
    raise AssertionError(block)


def without_others(model: Model, case: Architecture, inputs: Tensor, head: int) -> Tensor:
    """The Jacobian of the eager attention when the output projection reads one head only."""
    silent = loaded(copy.deepcopy(model.module))
    block, _, told = overheard(silent, case, inputs)
    out = projection(silent, block)
    count = silent.heads
    columns = type(out).__name__ != "Conv1D"
    with torch.no_grad():
        weight = out.weight if columns else out.weight.T
        size = weight.shape[1] // count
        kept = torch.zeros(weight.shape[1], dtype=weight.dtype)
        kept[head * size : (head + 1) * size] = 1
        out.weight.copy_(weight * kept if columns else (weight * kept).T)
    x = model.tokens(inputs, case.layer, "attention")[0]
    attend = by_hand(case, block, told)["attention"][1]
    with Plain(silent.module)():
        return dense(lambda x: attend(x[None])[0], x)


def test_one_head_the_coupling_and_the_bounds(case: Architecture) -> None:
    name = next(name for name, known in ARCHITECTURES.items() if known is case)
    model = loaded(case.build())
    inputs = model.sample(5)
    assert inputs is not None
    assert model.tapped == (name not in NOT_BEHIND)
    if not model.tapped:
        with pytest.raises(ValueError, match="AttentionInterface"):
            model.tap(case.layer, inputs[0])
        return
    tap = model.tap(case.layer, inputs[0])
    rows = tap.coupling.sum(-1)
    assert (rows <= 1 + 1e-12).all()
    assert name == "gpt_oss" or (rows - 1).abs().max() < 1e-12
    assert (tap.coupling >= 0).all()
    top = float(torch.linalg.svdvals(model.jacobian(case.layer, inputs[0]).to_dense().detach())[0])
    if name in GATED:
        with pytest.raises(ValueError, match="no theorem covers"):
            model.bounds(case.layer, inputs[0])
    else:
        for bound in model.bounds(case.layer, inputs[0]):
            assert top <= bound.value <= 12 * top
    if name in MIXED:
        with pytest.raises(ValueError, match="mixed before they are added"):
            model.jacobian(case.layer, inputs[0], head=1)
    elif case.wiring.attention:
        expected = without_others(model, case, inputs, 1)
        found = model.jacobian(case.layer, inputs[0], head=1).to_dense()
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 2e-6 * expected.abs().max()
