"""Every part of many architectures is the map that their own modules make, put together by hand:
dense Jacobians in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, Architecture
from networks import loaded
from torch import Tensor, nn

from attnscope.models import PARTS, Model

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
    with torch.no_grad(), model.plainly():
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
    model = loaded(case.build())
    inputs = model.sample(5)
    assert inputs is not None
    assert model.layers == case.options.get("num_hidden_layers", model.layers)
    block, stream, told = overheard(model, case, inputs)
    with model.plainly():
        parts = by_hand(case, block, told)
        assert set(parts) <= set(PARTS)
        for part, (before, own) in parts.items():
            x = model.tokens(inputs, case.layer, part)[0]
            with torch.no_grad():
                assert (x - before(stream)[0]).abs().max() < 1e-6 * x.abs().max(), part
            function = model.function(case.layer, part)
            expected = dense(lambda x: own(x[None])[0], x)  # noqa: B023
            found = dense(function, x)
            assert expected.abs().max() > 1e-3, part
            assert (found - expected).abs().max() < 1e-6 * expected.abs().max(), part
