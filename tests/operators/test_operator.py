"""The Jacobian as an operator: equal to autograd's matrix, adjoint in L2(mu), the same alone or in
a stack.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.function import once_differentiable

import attnscope as asc
from attnscope.operators.norms import of_norm
from attnscope.operators.operator import LinearOperator

kernels = importlib.import_module("attnscope.operators.kernels")
_tiles = importlib.import_module("attnscope.operators._tiles")
layers = importlib.import_module("attnscope.operators.attention")
CASES = [
    (variant, causal)
    for variant in asc.variants().values()
    for causal in (False, True)
    if not (causal and variant.name == "sinkhorn")
]


def some_heads(
    d: int = 4, h: int = 2, k: int = 2, v: int = 3, seed: int = 0, summed: bool = False
) -> asc.Heads:
    generator = torch.Generator().manual_seed(seed)

    def r(*shape: int) -> Tensor:
        return 0.6 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    if summed:
        return asc.Heads(r(h, k, d), r(h, k, d), r(h, d, d), query_bias=r(h, k))
    return asc.Heads(
        r(h, k, d), r(h, k, d), r(h, v, d), r(h, d, v), r(h, k), r(h, k), r(h, v), r(d)
    )


def some_measure(
    n: int = 6,
    d: int = 4,
    seed: int = 1,
    stack: tuple[int, ...] = (),
    weighted: bool = True,
    placed: bool = False,
) -> asc.Particles:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*stack, n, d, generator=generator, dtype=torch.float64)
    w = (
        torch.softmax(torch.randn(*stack, n, generator=generator, dtype=torch.float64), -1)
        if weighted
        else None
    )
    places = torch.randint(1, 4, (*stack, n), generator=generator).double() / 3 if placed else None
    return asc.Particles(x, w, places)


def matrix(attention: asc.Attention, mu: asc.Particles) -> Tensor:
    """The Jacobian of one measure by reverse-mode autograd, an independent way."""
    size = mu.x.numel()
    return torch.func.jacrev(lambda x: attention.dense(x, mu.at(x)))(mu.x).reshape(size, size)


@pytest.mark.parametrize(("variant", "causal"), CASES)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), placed=st.booleans(), summed=st.booleans())
def test_products_are_those_of_the_matrix(
    variant: type[asc.Attention], causal: bool, seed: int, n: int, placed: bool, summed: bool
) -> None:
    attention = variant(some_heads(seed=seed, summed=summed), causal=causal)
    mu = some_measure(n=n, seed=seed + 1, placed=placed)
    op = asc.jacobian(attention, mu)
    expected = matrix(attention, mu)
    torch.testing.assert_close(op.to_dense(), expected, rtol=1e-8, atol=1e-9)
    mass = mu.weights.repeat_interleave(mu.dim)
    adjoint = torch.stack(
        [
            op.rmv(e.reshape(mu.x.shape)).flatten()
            for e in torch.eye(mu.x.numel(), dtype=torch.float64)
        ],
        dim=1,
    )
    torch.testing.assert_close(adjoint, expected.mT * mass / mass[:, None], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("variant", [asc.Softmax, asc.L2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    ("extra", "v"), [("rotary", 2), ("position_bias", 3), ("places", 2), ("none", 2), ("none", 3)]
)
def test_tiles_change_nothing(
    variant: type[asc.Attention],
    causal: bool,
    stored: bool,
    extra: str,
    v: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values as long as queries (2) let the products write over what they no longer need."""
    heads = some_heads(v=v)
    generator = torch.Generator().manual_seed(5)
    if extra == "rotary":
        heads = dataclasses.replace(
            heads, rotary=torch.rand(1, generator=generator, dtype=torch.float64)
        )
    if extra == "position_bias":
        heads = dataclasses.replace(
            heads, position_bias=torch.randn(2, 9, 9, generator=generator, dtype=torch.float64)
        )
    attention, mu = (
        variant(heads, causal=causal),
        some_measure(n=8, stack=(3,), placed=extra == "places"),
    )
    monkeypatch.setattr(_tiles, "IN_CACHE", _tiles.Sizes(3, 3, 50))
    monkeypatch.setattr(kernels, "STORED_BYTES", 2**30 if stored else 0)
    monkeypatch.setattr(layers, "ROWS_AT_ONCE", 5)
    op = asc.jacobian(attention, mu)
    parts = [
        asc.Particles(mu.x[b], mu.weights[b], None if mu.positions is None else mu.positions[b])
        for b in range(3)
    ]
    torch.testing.assert_close(
        op.to_dense(),
        torch.stack([matrix(attention, part) for part in parts]),
        rtol=1e-9,
        atol=1e-10,
    )
    mass = mu.weights.repeat_interleave(mu.dim, dim=-1)
    torch.testing.assert_close(
        op.adjoint().to_dense(),
        op.to_dense().mT * mass[:, None] / mass[..., None],
        rtol=1e-9,
        atol=1e-10,
    )
    assert op.restrict is not None
    torch.testing.assert_close(
        op.restrict(torch.tensor([2, 0])).to_dense(), op.to_dense()[[2, 0]], rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize(
    "heads", [some_heads(v=2), some_heads(h=1, k=4, v=4), some_heads(h=1, k=4, summed=True)]
)
@pytest.mark.parametrize("stack", [(), (3,)])
def test_products_leave_their_vectors_alone(
    heads: asc.Heads, stack: tuple[int, ...], randn: Callable[..., Tensor]
) -> None:
    op, u = (
        asc.jacobian(asc.Softmax(heads), some_measure(stack=stack, weighted=False)),
        randn(*stack, 6, 4),
    )
    before = u.clone()
    for product in (op.mv, op.rmv):
        first = product(u)
        kept = first.clone()
        assert torch.equal(u, before)
        assert torch.equal(product(u), kept)
        assert torch.equal(first, kept)


def test_jvp_is_the_limit_of_differences(randn: Callable[..., Tensor]) -> None:
    attention, mu = asc.Softmax(some_heads(), causal=True), some_measure()
    direction, step = randn(6, 4), 1e-5
    moved = [attention(x, mu.at(x)) for x in (mu.x + step * direction, mu.x - step * direction)]
    torch.testing.assert_close(
        asc.jacobian(attention, mu).mv(direction),
        (moved[0] - moved[1]) / (2 * step),
        rtol=1e-6,
        atol=1e-8,
    )


def test_functions_stacks_and_exact_forms(randn: Callable[..., Tensor]) -> None:
    m = randn(3, 4)
    x = randn(5, 4)
    op = asc.jacobian(lambda x: torch.tanh(x) @ m.mT, x, stack=1)
    expected = m * (1 - torch.tanh(x) ** 2)[:, None, :]
    torch.testing.assert_close(op.to_dense(), expected)
    assert (op.shape, op.stack) == ((3, 4), (5,))
    low = asc.jacobian(
        lambda x: torch.tanh(x) @ m.float().mT,
        x.float(),
        stack=1,
        double=lambda x: torch.tanh(x) @ m.mT,
    )
    assert low.exact is not None
    torch.testing.assert_close(low.exact().to_dense(), expected, rtol=1e-5, atol=1e-6)
    assert low.exact().dtype == torch.float64


def test_constant_and_scalar_functions(randn: Callable[..., Tensor]) -> None:
    x = randn(5)
    for constant in (lambda z: torch.ones(2, dtype=z.dtype), lambda z: 2 * z.detach()):
        found = asc.spectral_norm(asc.jacobian(constant, x), failure_probability=1e-3)
        assert (found.lower, found.upper) == (0.0, 0.0)
    total = asc.spectral_norm(asc.jacobian(lambda z: (z**2).sum(), x))
    assert total.lower == pytest.approx(float(2 * x.norm()), rel=1e-10)
    assert total.left.shape == ()
    assert asc.jacobian(lambda z: (z**2).sum(-1), randn(3, 5), stack=1).to_dense().shape == (
        3,
        1,
        5,
    )


def test_a_function_whose_backward_pass_has_no_derivative(randn: Callable[..., Tensor]) -> None:
    """Forward mode takes over."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * grad

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * tangent

    x = randn(4)
    op = asc.jacobian(Cube.apply, x)
    torch.testing.assert_close(op.to_dense(), torch.diag(3 * x**2))
    torch.testing.assert_close(op.adjoint().to_dense(), torch.diag(3 * x**2))
    assert asc.spectral_norm(asc.jacobian(Cube.apply, randn(2, 3, 4), stack=2)).lower.shape == (
        2,
        3,
    )
    del Cube.jvp
    with pytest.raises(ValueError, match="cannot be differentiated both ways"):
        asc.jacobian(Cube.apply, x)


def test_an_operator_may_hand_out_its_own_memory(randn: Callable[..., Tensor]) -> None:
    """What a product returns belongs to the operator: the solver does not write into it."""
    m, kept = randn(6, 6), torch.empty(6, dtype=torch.float64)

    def product(matrix: Tensor, u: Tensor) -> Tensor:
        kept.copy_(matrix @ u)
        return kept

    shape = (6,)
    op = LinearOperator(
        lambda u: product(m, u), lambda u: m.mT @ u, shape, shape, m.dtype, m.device
    )
    frozen = asc.spectral_norm(op, tol=1e-12)
    assert frozen.lower == pytest.approx(float(torch.linalg.matrix_norm(m, 2)), rel=1e-9)


def test_composition_residual_adjoint_scipy(randn: Callable[..., Tensor]) -> None:
    attention, mu = asc.Softmax(some_heads()), some_measure(weighted=False)
    norm = of_norm(mu.x, randn(4), 1e-5, centred=True)
    op = (asc.jacobian(attention, mu) @ norm).plus(1.0)
    dense = asc.jacobian(attention, mu).to_dense() @ norm.to_dense() + torch.eye(
        24, dtype=torch.float64
    )
    torch.testing.assert_close(op.to_dense(), dense)
    torch.testing.assert_close(op.adjoint().to_dense(), dense.mT)
    made = op.to_scipy()
    u = randn(24).numpy()
    np.testing.assert_allclose(made @ u, dense.numpy() @ u)
    np.testing.assert_allclose(made.H @ u, dense.numpy().T @ u)
    with pytest.raises(ValueError, match="shapes, stacks and dtypes must agree"):
        _ = op @ asc.jacobian(attention, some_measure(n=3))


@pytest.mark.parametrize("centred", [True, False])
def test_norm_layers(centred: bool, randn: Callable[..., Tensor]) -> None:
    x, gain = randn(2, 3, 5), randn(5)

    def norm(x: Tensor) -> Tensor:
        return (
            torch.nn.functional.layer_norm(x, (5,), gain, eps=0.1)
            if centred
            else torch.nn.functional.rms_norm(x, (5,), gain, eps=0.1)
        )

    op, expected = of_norm(x, gain, 0.1, centred), asc.jacobian(norm, x, stack=1)
    torch.testing.assert_close(op.to_dense(), expected.to_dense())
    torch.testing.assert_close(op.adjoint().to_dense(), expected.to_dense().mT)


def test_weights_reach_scipy_and_whitening() -> None:
    attention, mu = asc.Softmax(some_heads()), some_measure()
    op = asc.jacobian(attention, mu)
    root = mu.weights.repeat_interleave(4).sqrt()
    torch.testing.assert_close(op.whitened().to_dense(), root[:, None] * op.to_dense() / root)
    u = torch.ones(24).numpy()
    np.testing.assert_allclose(op.to_scipy() @ u, op.whitened().to_dense().numpy() @ u, rtol=1e-6)


def dropout(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.5, training=True)


def fused(x: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    )[0, 0]


@pytest.mark.usefixtures("unchecked")
def test_refusals(randn: Callable[..., Tensor]) -> None:
    attention, mu = asc.Softmax(some_heads()), some_measure()
    with pytest.raises(ValueError, match="answers differently when called twice"):
        asc.jacobian(dropout, randn(40, 4))
    with pytest.raises(ValueError, match='attn_implementation="eager"'):
        asc.jacobian(fused, randn(8, 4))
    with pytest.raises(TypeError, match=r"Use Particles\(x\)"):
        asc.jacobian(attention, mu.x)
    with pytest.raises(TypeError, match="must return one tensor"):
        asc.jacobian(lambda x: (x, x), mu.x)
    with pytest.raises(ValueError, match="drop the particles that carry no mass"):
        asc.jacobian(
            attention, asc.Particles(randn(2, 4), torch.tensor([1.0, 0.0], dtype=torch.float64))
        )
    with pytest.raises(ValueError, match="different weights"):
        _ = of_norm(mu.x, randn(4), 1e-5, centred=True) @ asc.jacobian(attention, mu)
    with pytest.raises(ValueError, match="stack must be a number of leading axes"):
        asc.jacobian(torch.tanh, randn(3, 4), stack=2)
    with pytest.raises(ValueError, match="must be finite"):
        asc.jacobian(lambda x: x * torch.nan, randn(3, 4))
    with pytest.raises(ValueError, match="too large"):
        LinearOperator(
            lambda u: u, lambda u: u, (10**5,), (10**5,), torch.float64, torch.device("cpu")
        ).to_dense()
    with pytest.raises(ValueError, match="equal shapes"):
        asc.jacobian(lambda x: x[:1], mu.x).plus(1.0)
    with pytest.raises(ValueError, match="scipy knows single maps"):
        asc.jacobian(attention, some_measure(stack=(2,))).to_scipy()


def test_a_stack_that_came_from_float32_can_be_cut(randn: Callable[..., Tensor]) -> None:
    """Its weights 1/7 sum to one in float32 only."""
    mu = asc.Particles(randn(3, 7, 4, dtype=torch.float32)).to(torch.float64)
    op = asc.jacobian(asc.Softmax(some_heads()), mu)
    assert op.restrict is not None
    u, index = randn(3, 7, 4), torch.tensor([2, 0])
    torch.testing.assert_close(op.restrict(index).mv(u[index]), op.mv(u)[index])
