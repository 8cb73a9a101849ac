"""Scores contracted with the tokens' own vectors, for short sequences: the same map as through
queries and keys.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor

import attnscope as asc

layers = importlib.import_module("attnscope.operators.attention")
H, K, V, D, N = 2, 3, 2, 24, 6


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.6 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def layer(causal: bool, biased: bool, summed: bool = False) -> asc.Softmax:
    wide = D if summed else V
    parts = [draw(H, size, D, seed=size + i) for i, size in enumerate((K, K, wide))]
    heads = asc.Heads(
        *parts,
        None if summed else draw(H, D, V, seed=9),
        *(draw(H, size, seed=20 + i) if biased else None for i, size in enumerate((K, K, wide))),
        position_bias=draw(H, N, N, seed=30) if biased else None,
    )
    return asc.Softmax(heads, causal=causal)


def measure(stack: tuple[int, ...], weighted: bool = False, placed: bool = False) -> asc.Particles:
    x = draw(*stack, N, D, seed=1)
    weights = torch.softmax(draw(*stack, N, seed=2), -1) if weighted else None
    places = draw(*stack, N, seed=3).sigmoid() if placed else None
    return asc.Particles(x, weights, places)


def matrix(attention: asc.Softmax, mu: asc.Particles) -> Tensor:
    size = mu.x.numel()
    return torch.func.jacrev(lambda x: attention.dense(x, mu.at(x)))(mu.x).reshape(size, size)


@pytest.fixture(params=[True, False], ids=["contracted", "projected"])
def contracted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(layers, "_is_short", lambda *_: False)
    return bool(request.param)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_both_ways_give_autograds_matrix(
    contracted: bool, causal: bool, biased: bool, summed: bool
) -> None:
    attention, mu = layer(causal, biased, summed), measure(())
    assert (layers._analytic(attention, mu).short) == contracted
    op, dense = asc.jacobian(attention, mu), matrix(attention, mu)
    torch.testing.assert_close(op.to_dense(), dense, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(op.adjoint().to_dense(), dense.mT, rtol=1e-12, atol=1e-12)


def test_weights_and_places(contracted: bool) -> None:
    attention, mu = layer(True, False), measure((), weighted=True, placed=True)
    op, dense = asc.jacobian(attention, mu), matrix(attention, mu)
    torch.testing.assert_close(op.to_dense(), dense, rtol=1e-12, atol=1e-12)
    mass = mu.weights.repeat_interleave(D)
    adjoint = dense.mT * mass[None] / mass[:, None]
    torch.testing.assert_close(op.adjoint().to_dense(), adjoint, rtol=1e-12, atol=1e-12)


def test_a_stack_and_a_part_of_it(contracted: bool) -> None:
    attention, mu = layer(True, True), measure((2, 3))
    op, x = asc.jacobian(attention, mu), mu.x.flatten(0, 1)
    alone = [asc.jacobian(attention, asc.Particles(one)) for one in x]
    u, which = draw(2, 3, N, D, seed=5), torch.tensor([4, 1])
    assert op.restrict is not None
    part = op.restrict(which)
    for product in ("mv", "rmv"):
        each = torch.stack(
            [getattr(one, product)(v) for one, v in zip(alone, u.flatten(0, 1), strict=True)]
        )
        together = getattr(op, product)(u).flatten(0, 1)
        torch.testing.assert_close(together, each, rtol=1e-12, atol=1e-12)
        some = getattr(part, product)(u.flatten(0, 1)[which])
        torch.testing.assert_close(some, each[which], rtol=1e-12, atol=1e-12)


def test_more_problems_than_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = importlib.import_module("attnscope.operators._tiles")
    attention, mu = layer(True, False), measure(())
    monkeypatch.setattr(tiles, "IN_CACHE", tiles.Sizes(2, 2, N))
    op, dense = asc.jacobian(attention, mu), matrix(attention, mu)
    torch.testing.assert_close(op.to_dense(), dense, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(op.adjoint().to_dense(), dense.mT, rtol=1e-12, atol=1e-12)


def test_only_where_it_is_cheaper_and_exists() -> None:
    mu = measure(())
    assert layers._analytic(layer(False, False), mu).short
    long = asc.Particles(draw(D // (2 * H) + 1, D, seed=1))
    assert not layers._analytic(layer(False, False), long).short
    heads = asc.Heads(
        *(draw(H, size, D, seed=size) for size in (4, 4, D)), rotary=torch.ones(2).double()
    )
    assert not layers._analytic(asc.Softmax(heads), mu).short
    assert not layers._analytic(asc.L2(heads=layer(False, False).heads), mu).short
