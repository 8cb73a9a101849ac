"""Fused attention against the same formula written out densely: values, both derivatives and every
second derivative, for all that a model may ask of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

from attnscope.operators import _tiles, kernels
from attnscope.operators.fused import Form, Inputs, Tiled
from attnscope.operators.fused_autograd import fused_attention

Draw = Map = Callable[..., Tensor]


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention with the whole coupling."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    z = scale * q @ k.mT
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    if bias is not None:
        z = z + bias
    if mask is not None:
        if mask.dtype != torch.bool:
            at = torch.arange(k.shape[2])
            mask = (at >= mask[..., :1]) & (at < mask[..., 1:])
        z = z.masked_fill(~mask, -1e30)
    if sinks is not None:
        z = torch.cat([z, sinks.expand(*z.shape[:-1], 1)], -1)
    read = torch.softmax(z, -1)[..., : k.shape[2]]
    if mask is not None:
        read = read.masked_fill(~mask, 0.0)  # in a row without keys
    return read @ v


def intervals(*ends: Tensor) -> Tensor:
    return torch.stack(ends, -1)[None, None]


def cases(randn: Draw) -> dict[str, tuple[list[Tensor], dict[str, Any]]]:
    """Differentiable inputs (q, k, v and, where there are, bias and sinks) and the rest."""
    at = torch.arange(13)
    q, k, v = randn(2, 4, 13, 3), randn(2, 2, 13, 3), randn(2, 2, 13, 5)
    causal = intervals(torch.zeros_like(at), at + 1)
    padded = torch.stack([causal[0], causal[0].clamp(min=2)])
    padded[1, 0, :2] = 0  # rows that read nothing
    return {
        "plain": ([q, k, v], {}),
        "negative scale": ([q, k, v], {"scale": -1.3}),
        "causal": ([q, k, v], {"mask": causal}),
        "sliding": ([q, k, v], {"mask": intervals((at - 3).clamp(min=0), at + 1)}),
        "both sides": (
            [q, k, v],
            {"mask": intervals((at - 3).clamp(min=0), (at + 4).clamp(max=13))},
        ),
        "chunks": ([q, k, v], {"mask": intervals(at // 4 * 4, at + 1)}),
        "left padding": ([q, k, v], {"mask": padded}),
        "boolean": ([q, k, v], {"mask": randn(2, 1, 13, 13) > 0}),
        "boolean keys": ([q, k, v], {"mask": randn(2, 1, 1, 13) > -0.5}),
        "bias": ([q, k, v, randn(1, 4, 13, 13)], {}),
        "bias of keys": ([q, k, v, randn(2, 1, 1, 13)], {"mask": causal}),
        "sinks": ([q, k, v, None, randn(1, 4, 1, 1)], {"mask": causal}),
        "soft-cap": ([q, k, v], {"mask": causal, "softcap": 0.7}),
        "everything": (
            [q, k, v, randn(1, 4, 13, 13), randn(1, 4, 1, 1)],
            {"mask": causal, "softcap": 1.5, "scale": 0.8},
        ),
        "cross": ([randn(1, 2, 6, 3), randn(1, 1, 13, 3), randn(1, 1, 13, 2)], {}),
        "one query": (
            [randn(1, 2, 1, 3), randn(1, 2, 13, 3), randn(1, 2, 13, 3)],
            {"mask": intervals(torch.tensor([4]), torch.tensor([9]))},
        ),
    }


NAMES = list(cases(lambda *shape: torch.zeros(*shape)))


def both(name: str, randn: Draw) -> tuple[Map, Map, tuple[Tensor, ...]]:
    """The fused map, the dense one, and a point: functions of what is differentiable alone."""
    inputs, rest = cases(randn)[name]
    there = [index for index, part in enumerate(inputs) if part is not None]

    def of(attention: Map) -> Map:
        def function(*parts: Tensor) -> Tensor:
            full: list[Tensor | None] = [None] * 5
            for index, part in zip(there, parts, strict=True):
                full[index] = part
            q, k, v, bias, sinks = full
            named = {"scale": 0.5, **rest, "bias": bias, "sinks": sinks}
            return attention(q, k, v, **named)

        return function

    return of(fused_attention), of(dense), tuple(inputs[index] for index in there)


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same results when a head needs several strips and a strip few heads."""
    if request.param == "many tiles":
        monkeypatch.setattr(_tiles, "IN_CACHE", _tiles.Sizes(4, 3, 60))
        monkeypatch.setattr(_tiles, "LEAST_TILE_ROWS", 2)


def agree(one: object, other: object) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def changes(randn: Draw, point: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(randn(*part.shape) for part in point)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("name", NAMES)
def test_value_and_first_derivatives(name: str, randn: Draw) -> None:
    fused, textbook, point = both(name, randn)
    along = changes(randn, point)
    agree(jvp(fused, point, along), jvp(textbook, point, along))
    (ours, back), (theirs, their_back) = vjp(fused, *point), vjp(textbook, *point)
    g = randn(*ours.shape)
    agree((ours, back(g)), (theirs, their_back(g)))


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name: str, randn: Draw) -> None:
    fused, textbook, point = both(name, randn)
    along, g = changes(randn, point), randn(*textbook(*point).shape)
    every = tuple(range(len(point)))

    def scalar(function: Map) -> Map:
        return lambda *parts: (function(*parts).sin() * g).sum()

    def forward_over_reverse(function: Map) -> object:
        return jvp(grad(scalar(function), every), point, along)

    def reverse_over_reverse(function: Map) -> object:
        def paired(*parts: Tensor) -> Tensor:
            slopes = grad(scalar(function), every)(*parts)
            return torch.stack(
                [(slope * t).sum() for slope, t in zip(slopes, along, strict=True)]
            ).sum()

        return grad(paired, every)(*point)

    def reverse_over_forward(function: Map) -> object:
        return grad(lambda *parts: (jvp(function, parts, along)[1].sin() * g).sum(), every)(*point)

    def in_the_change(function: Map) -> object:
        return grad(lambda *t: (jvp(function, point, t)[1].sin() * g).sum(), every)(*along)

    for kind in (forward_over_reverse, reverse_over_reverse, reverse_over_forward, in_the_change):
        agree(kind(fused), kind(textbook))


@pytest.mark.parametrize("name", ["causal", "everything", "cross"])
def test_ordinary_autograd_once_and_twice(name: str, randn: Draw) -> None:
    fused, textbook, point = both(name, randn)

    def twice(function: Map) -> object:
        leaves = [part.clone().requires_grad_() for part in point]
        once = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
        total = torch.stack([part.cos().sum() for part in once]).sum()
        return once, torch.autograd.grad(total, leaves)

    agree(twice(fused), twice(textbook))


def test_dual_numbers(randn: Draw) -> None:
    fused, textbook, point = both("causal", randn)
    along = changes(randn, point)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(part, t) for part, t in zip(point, along, strict=True)]
        moved = forward_ad.unpack_dual(fused(*duals)).tangent
    agree(moved, jvp(textbook, point, along)[1])


@pytest.mark.parametrize("argument", [0, 1, 2])
@pytest.mark.parametrize("name", ["causal", "everything"])
def test_a_change_of_one_input_alone(name: str, argument: int, randn: Draw) -> None:
    fused, textbook, point = both(name, randn)
    along = randn(*point[argument].shape)

    def of(function: Map) -> Map:
        return lambda part: function(*point[:argument], part, *point[argument + 1 :])

    agree(
        jvp(of(fused), (point[argument],), (along,)),
        jvp(of(textbook), (point[argument],), (along,)),
    )
    agree(
        jvp(grad(lambda part: of(fused)(part).sin().sum()), (point[argument],), (along,)),
        jvp(grad(lambda part: of(textbook)(part).sin().sum()), (point[argument],), (along,)),
    )


@pytest.mark.parametrize("name", ["left padding", "everything", "bias of keys"])
def test_whole_jacobians_and_hessians(name: str, randn: Draw) -> None:
    fused, textbook, point = both(name, randn)
    t = randn(len(point))
    bases = [randn(*part.shape) for part in point]

    def of(function: Map) -> Map:
        def moved(t: Tensor) -> Tensor:  # a few numbers in, so that the Jacobians stay small
            at = [part + step * base for part, step, base in zip(point, t, bases, strict=True)]
            return function(*at)[:, :, ::7].sum(-1)[..., -1]

        return moved

    for kind in (jacfwd, jacrev):
        agree(kind(of(fused))(t), kind(of(textbook))(t))
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacfwd), (jacrev, jacrev)):
        agree(outer(inner(of(fused)))(t), outer(inner(of(textbook)))(t))


def test_vmap_over_any_of_the_inputs(randn: Draw) -> None:
    q, k, v = randn(3, 1, 2, 7, 3), randn(1, 1, 7, 3), randn(1, 3, 1, 7, 2)
    bias, sinks = randn(3, 1, 1, 7, 7), randn(1, 2, 1, 1)

    def of(attention: Map) -> Tensor:
        def one(q: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            return attention(q, k, v, 0.6, bias=bias, sinks=sinks)

        return vmap(one, in_dims=(0, 1, 0), out_dims=1)(q, v, bias)

    agree(of(fused_attention), of(dense))


@pytest.mark.usefixtures("tiles")
def test_gradients_of_shared_biases_under_vmap(randn: Draw) -> None:
    q, k, v = randn(4, 2, 2, 5, 3), randn(2, 1, 5, 3), randn(2, 1, 5, 3)
    bias, sinks = randn(1, 2, 5, 5), randn(1, 2, 1, 1)

    def of(attention: Map) -> object:
        def one(q: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
            return attention(q, k, v, 0.6, bias=bias, sinks=sinks).sin().sum()

        return vmap(grad(one, (0, 1, 2)), in_dims=(0, None, None))(q, bias, sinks)

    agree(of(fused_attention), of(dense))


@pytest.mark.usefixtures("tiles")
def test_a_huge_finite_mask_gives_a_uniform_row(randn: Draw) -> None:
    """What an additive mask makes of a row without keys is the model's business, and is kept."""
    (q, k, v), bias = randn(3, 1, 1, 5, 3), torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    bias[..., 2, :] = torch.finfo(q.dtype).min
    ours, back = vjp(lambda q, k, v: fused_attention(q, k, v, 1.0, bias=bias), q, k, v)
    theirs, their_back = vjp(lambda q, k, v: dense(q, k, v, 1.0, bias=bias), q, k, v)
    agree(ours[0, 0, 2], v[0, 0].mean(0))
    agree((ours, back(torch.ones_like(ours))), (theirs, their_back(torch.ones_like(ours))))
    infinite = bias.masked_fill(bias < 0, float("-inf"))
    assert fused_attention(q, k, v, 1.0, bias=infinite)[0, 0, 2].isnan().all()


def test_two_forward_levels_are_refused(randn: Draw) -> None:
    """torch says nothing when a function without such a derivative is differentiated forward twice
    (the plant: the cube gives 0 for 12), so this one must.
    """

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * t

    def twice(function: Map, x: Tensor) -> Tensor:
        one = torch.ones_like(x)
        return jvp(lambda x: jvp(function, (x,), (one,))[1], (x,), (one,))[1]

    two = torch.tensor(2.0, dtype=torch.float64)
    assert twice(lambda x: x**3, two) == 12
    assert twice(Cube.apply, two) != 12
    fused, _, (q, k, v) = both("causal", randn)
    with pytest.raises(NotImplementedError, match="two levels"):
        twice(lambda q: fused(q, k, v), q)
    with pytest.raises(NotImplementedError, match="two levels"):
        jacfwd(jacfwd(lambda t: fused(t * q, k, v).sum()))(two)
    with pytest.raises(NotImplementedError, match="two levels"):
        jvp(lambda t: jvp(lambda q: fused(q, k, v), (q,), (t,))[1], (q,), (q,))
    with pytest.raises(NotImplementedError, match="third"):
        jacrev(jacrev(jacrev(lambda t: fused(t * q, k, v).sum())))(two)
    with pytest.raises(NotImplementedError, match="third"):
        jacfwd(jacrev(jacrev(lambda t: fused(t * q, k, v).sum())))(two)


@pytest.mark.parametrize(("softcap", "kept"), [(None, True), (2.0, False)])
def test_a_soft_cap_keeps_two_tiles_and_the_budget_counts_both(
    softcap: float | None, kept: bool, randn: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = randn(1, 2, 6, 3), randn(1, 2, 6, 3), randn(1, 2, 6, 3)
    monkeypatch.setattr(kernels, "STORED_BYTES", 2 * 36 * q.element_size())
    made = Tiled(q, k, v, None, None, None, Form(1.0, softcap), keep=True)
    assert (made.kept is not None) == kept
    o, rows = made.value()
    made.jvp(o, rows, Inputs(q, k, v))
    tiles = [part for one in (made.kept or {}).values() for part in (one.exp, one.steep)]
    held = {part.data_ptr(): part.nbytes for part in tiles}
    assert sum(held.values()) <= kernels.STORED_BYTES


def test_heads_that_do_not_share_evenly_are_refused(randn: Draw) -> None:
    with pytest.raises(ValueError, match="multiple"):
        fused_attention(randn(1, 3, 4, 2), randn(1, 2, 4, 2), randn(1, 2, 4, 2), 1.0)


MEMORY = """
import re, torch
from torch.func import grad, jvp
from attnscope.operators.fused_autograd import fused_attention

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 2**10

def of(x):
    at = torch.arange(x.shape[2])
    mask = torch.stack([at - at % 512, at + 1], -1)[None, None] if chunks else None
    return fused_attention(x, x, x, 0.5, mask=mask)

torch.set_num_threads(1)
for n in (64, 5120):
    before, x = peak(), torch.randn(1, 1, n, 2)
    for chunks in (True, False):
        jvp(grad(lambda x: of(x).square().sum()), (x,), (x,))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_no_derivative_holds_the_whole_coupling() -> None:
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-1000:]
    assert float(run.stdout) < 5120**2 * 4 / 2**20  # a dense derivative needs several such at once
