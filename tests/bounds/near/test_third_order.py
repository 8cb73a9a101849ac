"""T4: the second derivative exactly, the third over a ball, and movements within a span."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import jvp

from attnscope import Heads, Softmax, bounds
from attnscope.bounds.near import third_order
from attnscope.bounds.near.place import Near
from attnscope.bounds.near.softmax import ball
from attnscope.bounds.near.third_order import variance_weights
from attnscope.measures import Particles

N, D, K = 3, 4, 2


def layer(seed: int, sharp: float = 1.0) -> tuple[Softmax, Tensor, Tensor]:
    """Two heads with every bias, tokens, and a span of two directions."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    heads = Heads(
        sharp * normal(2, 2, D),
        normal(2, 2, D),
        normal(2, 2, D),
        normal(2, D, 2),
        query_bias=normal(2, 2),
        position_bias=normal(2, N, N),
    )
    return Softmax(heads), 0.6 * normal(1, N, D), torch.linalg.qr(normal(D, K)).Q


def moved(attention: Softmax, x: Tensor, span: Tensor):  # type: ignore[no-untyped-def]
    """What attention makes of a movement in the coordinates of the span."""

    def at(u: Tensor) -> Tensor:
        tokens = x + u.reshape(*u.shape[:-1], N, K) @ span.mT
        held = Particles(x.detach().expand(*u.shape[:-1], N, D)).at(tokens)
        return tokens + attention.dense(tokens, held)

    return at


def derivative(function, u: Tensor, v: Tensor, order: int) -> Tensor:  # type: ignore[no-untyped-def]
    for _ in range(order):
        function = (lambda f: lambda w: jvp(f, (w,), (v.expand_as(w),))[1])(function)
    return function(u)


def test_the_second_derivative_is_exact() -> None:
    r"""$U^TT^TTU = \sum_e|D^2F[U, e]|^2$ over unit vectors e, by polarisation."""
    attention, x, span = layer(0)
    f, g = moved(attention, x, span), torch.Generator().manual_seed(1)
    gram = third_order._second(Near(attention, x, torch.ones(1).double(), 1.0, span=span))[0]
    zero = torch.zeros(N * K, N * K, dtype=torch.float64)
    for _ in range(3):
        u = torch.randn(N * K, generator=g, dtype=torch.float64)
        unit = torch.eye(N * K, dtype=torch.float64)
        mixed = (derivative(f, zero, u + unit, 2) - derivative(f, zero, u - unit, 2)) / 4
        expected = mixed.square().sum()
        assert float(u @ gram @ u) == pytest.approx(float(expected), rel=1e-9)


def third_derivatives(attention: Softmax, x: Tensor, span: Tensor, eps: float) -> Tensor:
    """The third derivative at random points of the ball over its bound."""
    f, g = moved(attention, x, span), torch.Generator().manual_seed(0)
    near = Near(attention, x, torch.tensor([eps], dtype=torch.float64), 1.0, span=span)
    forms = torch.stack(third_order._Third.of(ball(near), third_order._slopes(near)).forms(), 1)[0]
    u, away = torch.randn(2, 60, N * K, generator=g, dtype=torch.float64)
    u[:N] = torch.eye(N * K, dtype=torch.float64)[::K]
    u = u / torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    away = eps * away / torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    found = derivative(f, away, u, 3)
    bound = torch.einsum("sa,fab,sb->sf", u, forms, u).clamp(min=0).sqrt().sum(-1)
    return torch.linalg.vector_norm(found.flatten(1), dim=-1) / bound


def test_the_third_derivative_stays_below_its_forms_over_the_ball() -> None:
    reached = [
        float(third_derivatives(*layer(seed, sharp), eps).max())
        for seed, (sharp, eps) in enumerate([(0.3, 1e-3), (1.0, 1e-3), (1.0, 0.3), (3.0, 0.05)])
    ]
    assert max(reached) <= 1
    assert max(reached) > 0.12  # forms of an eighth of their size would be caught


@pytest.mark.parametrize("part", ["gain", "weights", "scores"])
def test_a_planted_fault_in_a_part_of_the_forms_is_caught(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = third_order._Third.of.__func__  # type: ignore[attr-defined]

    def smaller(cls: type, over: object, slopes: Tensor) -> object:
        made = true(cls, over, slopes)
        object.__setattr__(made, part, getattr(made, part) * 0.02)
        return made

    monkeypatch.setattr(third_order._Third, "of", classmethod(smaller))
    if part == "weights":  # these alone bound attention whose scores have no first derivative
        assert float(third_derivatives(*flat_scores(), 1e-6).max()) > 1
    else:
        assert max(float(third_derivatives(*layer(s), 1e-3).max()) for s in range(3)) > 1


def flat_scores() -> tuple[Softmax, Tensor, Tensor]:
    """Equal tokens and no query bias: $3C\\,k(u, \\ddot s)$ is all there is."""
    attention, x, span = layer(0)
    h = attention.heads
    return Softmax(Heads(h.query, h.key, h.value, h.output)), torch.zeros_like(x), span


def test_weights_of_a_variance_hold_for_every_row_between_the_ends() -> None:
    g = torch.Generator().manual_seed(0)
    p = torch.softmax(4 * torch.randn(200, 5, generator=g, dtype=torch.float64), dim=-1)
    wide = torch.rand(200, 5, generator=g, dtype=torch.float64) * 0.2
    for low, high in ((p, p), (p * (1 - wide), (p * (1 + wide)).clamp(max=1))):
        weights = variance_weights(low, high)
        left = torch.diag_embed(weights) - torch.diag_embed(p) + p[:, :, None] * p[:, None]
        assert float(torch.linalg.eigvalsh(left).min()) > -1e-12
        assert bool((weights.amax(-1) <= high.amax(-1) * (1 + 1e-9)).all())


@pytest.mark.parametrize("seed", range(3))
def test_no_attack_within_the_span_exceeds_any_bound_and_others_do(seed: int) -> None:
    """Ascent on movements within the span, and on all: the latter shows that the span counts."""
    attention, x, span = layer(seed, 0.5)
    reached = []
    for eps in (0.01, 0.5):
        bound = bounds.sensitivity(attention, x, eps, 1.0, span=span)
        least = min(float(value) for value in bound.candidates.values())
        for directions, k in ((span, K), (torch.eye(D, dtype=torch.float64), D)):
            found = largest(attention, x, directions, k, eps, seed)
            if k == K:
                assert found <= least
                assert eps > 0.1 or found > 0.8 * float(bound.candidates["T4"])
            else:
                reached.append(found / least)
    assert max(reached) > 1


def largest(attention: Softmax, x: Tensor, span: Tensor, k: int, eps: float, seed: int) -> float:
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(8, N, k, generator=g, dtype=torch.float64)
    clean = x + attention.dense(x, Particles(x))
    for _ in range(25):
        u = (eps * u / torch.linalg.matrix_norm(u)[:, None, None]).requires_grad_()
        tokens = x + u @ span.mT
        change = tokens + attention.dense(tokens, Particles(tokens)) - clean
        size = torch.linalg.matrix_norm(change)
        (u,) = torch.autograd.grad(size.sum(), u)
    return float(size.detach().max())
