"""Searches for estimates take the heads before their output projection W, measured by W^T W."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.operators.deflation import deflated
from attnscope.operators.lanczos import Cancellation, Lanczos
from attnscope.operators.operator import LinearOperator

D, H, K, N = 24, 3, 8, 6


def draw(*shape: int, seed: int) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made / shape[-1] ** 0.5


def layer(wide: int = K, size: float = 1.0) -> asc.Softmax:
    heads = asc.Heads(
        draw(H, K, D, seed=1), draw(H, K, D, seed=2),
        draw(H, wide, D, seed=3), size * draw(H, D, wide, seed=4),
    )  # fmt: skip
    return asc.Softmax(heads, causal=True)


def measure(*stack: int, weighted: bool = False) -> asc.Particles:
    x = D**0.5 * draw(*stack, N, D, seed=7)
    weights = torch.softmax(draw(*stack, N, seed=8), -1) if weighted else None
    return asc.Particles(x, weights)


def lighter(op: LinearOperator) -> LinearOperator:
    assert op.lighter is not None
    return op.lighter()


@pytest.mark.parametrize("wide", [K, 5, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_singular_values_and_right_vectors_are_those_of_the_map(wide: int, weighted: bool) -> None:
    whole = asc.jacobian(layer(wide), measure(weighted=weighted)).flat()
    light = lighter(whole)
    assert light.gram is not None
    dense, small = whole.to_dense()[0], light.to_dense()[0]
    gram = torch.kron(torch.eye(N, dtype=torch.float64), light.gram.matrix)
    torch.testing.assert_close(small.mT @ gram @ small, dense.mT @ dense, rtol=1e-11, atol=1e-12)
    y = draw(1, N * H * wide, seed=9)
    kept = y.clone()
    torch.testing.assert_close(light.rmv(y)[0], small.mT @ y[0], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(light.gram(y)[0], gram @ y[0], rtol=1e-11, atol=1e-12)
    assert y.equal(kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_searches_find_the_same(dtype: torch.dtype) -> None:
    op = asc.jacobian(layer().to(dtype), measure(4, weighted=True).to(dtype))
    found = asc.spectral_norm(op)
    without = asc.spectral_norm(dataclasses.replace(op, lighter=None))
    truth = torch.linalg.matrix_norm(
        asc.jacobian(layer(), measure(4, weighted=True)).whitened().to_dense(), 2
    )
    assert op.lighter is not None
    torch.testing.assert_close(found.lower, truth, rtol=2e-6, atol=0)
    torch.testing.assert_close(found.lower, without.lower, rtol=1e-6, atol=0)
    assert (torch.as_tensor(found.pairs) - torch.as_tensor(without.pairs)).abs().max() <= 2
    moved = op.exact().mv(found.right) if op.exact is not None else op.mv(found.right)
    size = torch.as_tensor(found.lower)[:, None, None]
    torch.testing.assert_close(moved / size, found.left, rtol=0, atol=1e-6)


def cancelling() -> asc.Softmax:
    """What heads return lies where the output projection is a thousand times smaller than
    elsewhere.
    """
    turn = torch.linalg.qr(draw(K, K, seed=5))[0]
    value, output = draw(H, K, D, seed=3), draw(H, D, K, seed=4)
    value[:, K // 2 :] = 0
    output[..., K // 2 :] *= 1e3
    heads = asc.Heads(draw(H, K, D, seed=1), draw(H, K, D, seed=2), turn @ value, output @ turn.mT)
    return asc.Softmax(heads, causal=True)


def test_where_the_gram_matrix_cancels_the_whole_map_is_searched() -> None:
    attention, mu = cancelling(), measure(2)
    rough = asc.jacobian(attention.to(torch.float32), mu.to(torch.float32))
    light = lighter(rough.flat())
    start = draw(2, N * D, seed=11).float()
    with pytest.raises(Cancellation):
        Lanczos(light, start / start.norm(dim=1, keepdim=True)).step()
    found = asc.spectral_norm(rough)
    assert rough.exact is not None
    truth = torch.linalg.matrix_norm(rough.exact().to_dense(), 2)
    torch.testing.assert_close(found.lower, truth, rtol=1e-4, atol=0)


def test_a_part_of_a_stack() -> None:
    light = lighter(asc.jacobian(layer(), measure(3)))
    assert light.restrict is not None
    some, which = light.restrict(torch.tensor([2, 0])), torch.tensor([2, 0])
    u, y = draw(3, N, D, seed=12), draw(3, N, H * K, seed=13)
    for product, vectors in (("mv", u), ("rmv", y)):
        part = getattr(some, product)(vectors[which])
        torch.testing.assert_close(part, getattr(light, product)(vectors)[which])


def test_other_maps_do_not_take_it_over() -> None:
    op = asc.jacobian(layer(), measure(2))
    flat = op.flat()
    assert flat.lighter is not None
    found = torch.eye(N * D, dtype=torch.float64)[None, :1].expand(2, 1, -1)
    for other in (op.plus(1.0), op.adjoint(), op @ op, deflated(flat, found)):
        assert other.lighter is None


def test_brackets_do_without() -> None:
    op = asc.jacobian(layer(), measure(2))

    def refused() -> LinearOperator:
        raise AssertionError("a bracket follows from the coefficients of the map itself")

    alone = dataclasses.replace(op, lighter=refused, coarse=None)
    assert asc.spectral_norm(alone, failure_probability=1e-6).upper is not None
    with pytest.raises(AssertionError, match="bracket"):
        asc.spectral_norm(alone)


def test_only_where_it_pays_and_is_safe() -> None:
    assert asc.jacobian(layer(), measure()).lighter is not None
    assert asc.jacobian(layer(wide=2 * D // H), measure()).lighter is None  # wider than two d
    assert asc.jacobian(layer(), asc.Particles(draw(1, D, seed=1))).lighter is None
    assert asc.jacobian(layer(size=1e12), measure()).lighter is None
    summed = asc.Heads(draw(H, K, D, seed=1), draw(H, K, D, seed=2), draw(H, D, D, seed=3))
    assert asc.jacobian(asc.Softmax(summed), measure()).lighter is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sequence_that_ends_early_leaves_the_others_alone(dtype: torch.dtype) -> None:
    """Tokens that are all the same leave a map of low rank, which breaks down: the lengths of the
    others are the Gram matrix's, and not those of the vectors before it.
    """
    x = measure(3).x
    x[0] = x[0, :1]
    op = asc.jacobian(layer(5), asc.Particles(x))
    true = torch.linalg.matrix_norm(op.to_dense(), 2)
    op = asc.jacobian(layer(5).to(dtype), asc.Particles(x.to(dtype)))
    for seed in range(20):
        estimate = asc.spectral_norm(op, tol=1e-3, seed=seed).lower
        torch.testing.assert_close(estimate, true, rtol=2e-3, atol=0)
        bracket = asc.spectral_norm(op, tol=1e-2, failure_probability=1e-9, seed=seed)
        assert (bracket.upper >= true * (1 - 1e-6)).all()
