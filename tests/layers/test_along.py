"""What layers leave beyond second order, against attacks on the first order and on what is beside
it; and a bound of half the size would be passed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.layers import (
    GELU,
    SLL,
    Centre,
    FeedForward,
    Follows,
    LayerNorm,
    QuadraticReLU,
    ReLU,
    ResidualAttention,
    ResidualMLP,
    RMSNorm,
    SelfAttention,
    SiLU,
    Softplus,
    Tangent,
    Tanh,
    TanhGELU,
)
from attnscope.layers.along import dense_norm

P, N, D = 3, 3, 4


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=g)


def attention(g: torch.Generator) -> SelfAttention:
    shapes = (2, 3, D), (2, 3, D), (2, 2, D), (2, D, 2)
    return SelfAttention(Heads(*(normal(g, *shape) for shape in shapes), normal(g, 2, 3)))


def mlp(g: torch.Generator) -> FeedForward:
    return FeedForward(normal(g, 5, D), normal(g, 5), GELU(), normal(g, 5, D), None)


def residual_attention(g: torch.Generator) -> ResidualAttention:
    heads = Heads(*(normal(g, *shape) for shape in ((2, 3, D), (2, 3, D), (2, 2, D), (2, D, 2))))
    biased = dataclasses.replace(heads, query_bias=normal(g, 2, 3), output_bias=normal(g, D))
    return ResidualAttention(Softmax, {}, biased, False, None, -0.5).double()


MAKERS: dict[str, Callable[[torch.Generator], Follows]] = {
    "layer norm": lambda g: LayerNorm(D).double(),
    "rms norm": lambda g: RMSNorm(D).double(),
    "attention": attention,
    "mlp": mlp,
    "gelu": lambda g: GELU(),
    "gelu, tanh": lambda g: TanhGELU(),
    "silu": lambda g: SiLU(),
    "tanh": lambda g: Tanh(),
    "relu": lambda g: ReLU(),
    "softplus": lambda g: Softplus(2.0),
    "quadratic relu": lambda g: QuadraticReLU(0.7),
    "sll": lambda g: SLL(D, 5, QuadraticReLU(0.7), None, g).double(),
    "residual mlp": lambda g: ResidualMLP(D, 5, ReLU(), Centre(), g).double(),
    "residual attention": residual_attention,
}


def beyond(layer: Follows, x: Tensor, first: Tensor, beside: Tensor) -> Tensor:
    """f(x + s + E) - f(x) - Df(s + E) - D^2f[s, s]/2 for a stack of moves."""
    f: Callable[[Tensor], Tensor] = layer  # type: ignore[assignment]
    at = x.expand(first.shape).clone()
    slope = torch.func.jvp(f, (at,), (first + beside,))[1]
    bend = torch.func.jvp(lambda z: torch.func.jvp(f, (z,), (first,))[1], (at,), (first,))[1]
    return f(at + first + beside) - f(at) - slope - bend / 2


def closest(name: str, seed: int, eps: float, share: float) -> tuple[float, float]:
    """The largest shares of both bounds that an ascent reaches: in norm of a token, against g."""
    g = torch.Generator().manual_seed(seed)
    layer, x, jacobian = MAKERS[name](g), 1.5 * normal(g, 1, N, D), normal(g, P, N, D)
    rest = share * eps * torch.rand(N, dtype=torch.float64, generator=g)
    tangent = Tangent(jacobian, eps, rest, rest.norm(), dense_norm(jacobian))
    found, direction = layer.along(x, tangent), normal(g, 1, N, D)
    bound = float(found.third(direction)[0].detach())
    free = [normal(g, 12, P), normal(g, 12, N, D)]
    best = 0.0
    for _ in range(25):
        free = [part.detach().requires_grad_() for part in free]
        delta = eps * free[0] / free[0].norm(dim=1, keepdim=True)
        beside = rest[:, None] * free[1] / free[1].norm(dim=-1, keepdim=True)
        left = beyond(layer, x, torch.einsum("sp,pnd->snd", delta, jacobian), beside)
        value = (left * direction).sum((1, 2)).abs()
        assert (left.norm(dim=-1) <= found.tokens * (1 + 1e-9) + 1e-9).all()
        best = max(best, float(value.detach().max()))
        slopes = torch.autograd.grad(value.sum(), free, allow_unused=True)
        free = [
            part
            + (
                0.0
                if slope is None
                else 0.3
                * slope
                / slope.flatten(1)
                .norm(dim=1)
                .clamp(min=1e-30)
                .reshape(-1, *(1,) * (slope.ndim - 1))
                * part.norm()
            )
            for part, slope in zip(free, slopes, strict=True)
        ]
    return best, bound


@pytest.mark.parametrize("name", MAKERS)
def test_no_attack_leaves_more_beyond_second_order(name: str) -> None:
    reached = 0.0
    for seed, (eps, share) in enumerate(((0.02, 0.0), (0.02, 0.3), (0.15, 0.05), (0.4, 0.5))):
        value, bound = closest(name, seed, eps, share)
        assert value <= bound * (1 + 1e-9) + 1e-9
        reached = max(reached, value / bound if bound > 0 else 0.0)
    assert reached > 0.02, "the bound is empty"


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("known", [False, True], ids=["plain", "entries known"])
def test_forms_hold_at_every_perturbation(name: str, known: bool) -> None:
    """Against both signs of a direction, at each perturbation by itself, on the sphere and inside;
    also where more is known of the entries beside the first order than of their tokens.
    """
    reached = 0.0
    for seed, (eps, share) in enumerate(((0.02, 0.0), (0.02, 0.3), (0.15, 0.05), (0.4, 0.5))):
        g = torch.Generator().manual_seed(seed)
        layer, x, jacobian = MAKERS[name](g), 1.5 * normal(g, 1, N, D), normal(g, P, N, D)
        rest = share * eps * torch.rand(N, dtype=torch.float64, generator=g)
        along = 0.1 * normal(g, D) if known else normal(g, 4000, N, D)
        beside = along / along.norm(dim=-1, keepdim=True) * normal(g, 4000, N, 1).clamp(-1, 1)
        beside = beside * rest[:, None]

        def entries(weight: Tensor, rest: Tensor = rest, along: Tensor = along) -> Tensor:
            return rest[:, None] * (weight @ along / along.norm()).abs()

        tangent = Tangent(
            jacobian, eps, rest, rest.norm(), dense_norm(jacobian), entries if known else None
        )
        found = layer.along(x, tangent)
        if found.forms is None:
            return
        delta = normal(g, 4000, P)
        delta = eps * delta / delta.norm(dim=1, keepdim=True) * normal(g, 4000, 1).clamp(-1, 1)
        first = torch.einsum("sp,pnd->snd", delta, jacobian)
        left = beyond(layer, x, first, beside).detach()
        directions = normal(g, 3, N, D)
        for direction in (directions, -directions):
            form, spent = (part.detach() for part in found.forms(direction))
            fall = -torch.einsum("snd,cnd->cs", left, direction)
            bound = torch.einsum("sp,cpq,sq->cs", delta, form, delta) + spent[:, None]
            assert (fall <= bound * (1 + 1e-9) + 1e-9).all()
            reached = max(reached, float((fall / (bound + 1e-12)).max()))
    assert reached > 0.03, "the bound is empty"


@pytest.mark.parametrize("centred", [True, False])
def test_the_constants_of_a_norm_layer_are_attained(centred: bool) -> None:
    """Half of the slope, of the curvature or of the third derivative would be passed."""
    layer = (LayerNorm(D) if centred else RMSNorm(D)).double()
    g, best = torch.Generator().manual_seed(0), [0.0, 0.0, 0.0]
    for _ in range(60):
        x, h = normal(g, 2, 20, D)
        x, h = (part - part.mean(-1, keepdim=True) for part in (x, h)) if centred else (x, h)
        h = h / h.norm(dim=-1, keepdim=True)
        size = (x.square().sum(-1) + D * layer.eps).sqrt()
        f: Callable[[Tensor], Tensor] = layer
        for order in range(3):
            inner = f
            f = lambda z, inner=inner, h=h: torch.func.jvp(inner, (z,), (h,))[1]  # noqa: E731
            value = f(x).detach().norm(dim=-1) * size ** (order + 1) / D**0.5
            best[order] = max(best[order], float(value.max()))
    for value, constant in zip(best, (1.0, 2 / 3**0.5, 3.0), strict=True):
        assert 0.8 * constant < value <= constant * (1 + 1e-9)
