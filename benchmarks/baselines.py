"""What people write first: eager attention differentiated by `torch.func`, and the power method on
J^T J.

P2 takes `jvp` and `vjp` afresh at every step; P2b keeps one graph and gets the forward product by
double backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnscope import Softmax

Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def eager(attention: Softmax) -> Callable[[Tensor], Tensor]:
    """Multi-head attention as models write it: one fused projection, a masked softmax, one output
    projection.
    """
    heads = attention.heads
    h, k, _ = heads.query.shape
    into = torch.cat([part.flatten(0, 1) for part in (heads.query, heads.key, heads.value)])
    assert heads.output is not None
    out = heads.output.transpose(0, 1).flatten(1)
    given = (heads.query_bias, heads.key_bias, heads.value_bias)
    none = torch.zeros_like(heads.query[..., 0])
    bias = torch.cat([(none if part is None else part).flatten() for part in given])
    biased = bool(bias.any())

    def function(x: Tensor) -> Tensor:
        n = x.shape[-2]
        projected = x @ into.mT + bias if biased else x @ into.mT
        q, key, v = projected.unflatten(-1, (3, h, k)).movedim(-3, 0).transpose(-2, -3)
        scores = q @ key.mT / math.sqrt(k)
        if attention.causal:
            hidden = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return (torch.softmax(scores, dim=-1) @ v).transpose(-2, -3).flatten(-2) @ out.mT

    return function


def with_norm(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A LayerNorm in front."""
    return lambda x: function(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def p2(function: Callable[[Tensor], Tensor], x: Tensor) -> Pair:
    """`jvp` and `vjp` of torch.func, the function run again at each product."""
    return (
        lambda u: torch.func.jvp(function, (x,), (u,))[1],
        lambda v: torch.func.vjp(function, x)[1](v)[0],
    )


def p2b(function: Callable[[Tensor], Tensor], x: Tensor) -> Pair:
    """One graph kept: backward for J^T v, and the derivative of that in v for J u."""
    x = x.detach().requires_grad_()
    y = function(x)
    probe = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, probe, create_graph=True)
    return (
        lambda u: torch.autograd.grad(pulled, probe, u, retain_graph=True)[0],
        lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0],
    )


def power_method(
    pair: Pair, shape: tuple[int, ...], dtype: torch.dtype, truth: float, tol: float, seed: int = 0
) -> tuple[float, int]:
    """Power iteration on J^T J until the value is within `tol` of the truth: the kindest stopping
    rule there is.
    """
    forward, backward = pair
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    sigma, pairs = 0.0, 0
    while abs(sigma - truth) > tol * truth and pairs < 5000:
        v = v / torch.linalg.vector_norm(v, dtype=torch.float64).to(dtype)
        u = forward(v)
        sigma = float(
            torch.linalg.vector_norm(u, dtype=torch.float64)
            / torch.linalg.vector_norm(v, dtype=torch.float64)
        )
        v = backward(u)
        pairs += 1
    return sigma, pairs
