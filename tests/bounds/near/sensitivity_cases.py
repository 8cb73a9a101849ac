"""Random layers of every kind that has a sensitivity bound, and attacks on the statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope import L2, Heads, Particles, Sigmoid, Softmax

Layer = Softmax | L2 | Sigmoid


@dataclass(frozen=True)
class Case:
    """F(X) = residual X + attention(X) at a stack of inputs, each with its own radius."""

    attention: Layer
    x: Tensor
    eps: Tensor
    residual: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.residual * x + self.attention.dense(x, Particles(x.detach()).at(x))


def random_case(seed: int, variant: type[Layer] = Softmax, stack: int = 4) -> Case:
    """Sizes, biases, mask, position bias, residual, scale of scores and tokens and a common offset,
    all by the seed.
    """
    g = torch.Generator().manual_seed(seed)

    def pick(*choices: float) -> float:
        return choices[int(torch.randint(len(choices), (1,), generator=g))]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    n, d, h, k = (
        int(pick(1, 2, 3, 5, 6)),
        int(pick(1, 2, 3, 4)),
        int(pick(1, 2, 3)),
        int(pick(1, 2, 3)),
    )
    scale = pick(0.1, 0.5, 1, 1, 3, 10)

    def bias(*shape: int) -> Tensor | None:
        return normal(*shape) * pick(0.3, 2) if pick(0, 1) else None

    query = normal(h, k, d) * scale
    key = query.clone() if variant is L2 and pick(0, 1) else normal(h, k, d)
    heads = Heads(
        query,
        key,
        normal(h, k, d) * pick(0, 1, 1, 1),
        normal(h, d, k) * pick(0.3, 1),
        query_bias=bias(h, k),
        key_bias=bias(h, k),
        value_bias=bias(h, k),
        output_bias=bias(d),
        position_bias=bias(h, n, n),
    )
    causal = bool(pick(0, 1))
    extra = (
        {"bias": pick(-2.0, 0.0), "tokens": n if pick(0, 1) else None} if variant is Sigmoid else {}
    )
    x = normal(stack, n, d) * pick(0.1, 1, 1, 5) + pick(0, 0, 10) * normal(d)
    eps = 10 ** (-2.5 + 3 * torch.rand(stack, generator=g, dtype=torch.float64))
    return Case(variant(heads, causal=causal, **extra), x, eps, pick(-1.0, 0.0, 1.0, 0.5))  # type: ignore[arg-type]


def climb(
    objective: Callable[[Tensor], Tensor], start: Tensor, radius: Tensor, steps: int = 60
) -> tuple[Tensor, Tensor]:
    """The largest value per problem that ascent on the sphere finds, and where: fixed-point steps,
    then gradient steps of falling size.
    """
    radius = radius[..., None, None]
    d = start * radius / torch.linalg.matrix_norm(start)[..., None, None]
    best, at = torch.full(start.shape[:-2], -torch.inf, dtype=start.dtype), d
    for step in range(steps + 1):
        d = d.detach().requires_grad_()
        value = objective(d)
        (slope,) = torch.autograd.grad(value.sum(), d)
        better = value.detach() > best
        best, at = (
            torch.where(better, value.detach(), best),
            torch.where(better[..., None, None], d.detach(), at),
        )
        length = torch.linalg.matrix_norm(slope)[..., None, None]
        slope = slope / length.clamp(min=1e-300)
        power = step < steps // 3
        moved = slope if power else d.detach() / radius + 0.5 * 0.9 ** (step - steps // 3) * slope
        moved = torch.where(length > 1e-200, moved, d.detach() / radius)
        d = radius * moved / torch.linalg.matrix_norm(moved)[..., None, None]
    return best, at


def largest_move(
    case: Case, restarts: int = 3, steps: int = 60, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The largest |F(X + D) - F(X)| found on the sphere of radius eps, and D."""
    clean, g = case(case.x), torch.Generator().manual_seed(seed)
    shape = (restarts, *case.x.shape)
    start = torch.randn(shape, generator=g, dtype=torch.float64)
    found, at = climb(
        lambda d: torch.linalg.matrix_norm(
            case((case.x + d).flatten(0, -3)).unflatten(0, shape[:-2]) - clean
        ),
        start,
        case.eps.expand(shape[:-2]),
        steps,
    )
    best = found.argmax(0)
    return found.amax(0), at.gather(0, best[None, ..., None, None].expand(1, *case.x.shape))[0]


def largest_remainder(case: Case, gradient: Tensor, steps: int = 40, seed: int = 0) -> Tensor:
    """The largest -<g, F(X + D) - F(X) - DF(X)D> found on the sphere of radius eps, one per
    direction and input.
    """
    clean, back = torch.func.vjp(case, case.x)
    slope = torch.stack([back(one)[0] for one in gradient])
    start = torch.randn(
        gradient.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )

    def loss(d: Tensor) -> Tensor:
        moved = case((case.x + d).flatten(0, -3)).unflatten(0, d.shape[:-2]) - clean
        return (slope * d).sum((-2, -1)) - (gradient * moved).sum((-2, -1))

    return climb(loss, start, case.eps.expand(start.shape[:-2]), steps)[0]
