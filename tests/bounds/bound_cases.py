"""Random attention of every shape, its local constant by a dense decomposition, and inputs that push it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from attnscope import L2, Attention, Heads, Particles, Sigmoid, Softmax


@dataclass(frozen=True)
class Case:
    attention: Attention
    mu: Particles


def jacobian(attention: Attention, mu: Particles) -> Tensor:
    """The Jacobian in L2(mu), blocks first: (n, n, d, d), particles without mass left out."""
    dense = torch.func.jacrev(lambda x: attention.dense(x, mu.at(x)))(mu.x).transpose(1, 2)
    keep = mu.weights > 0
    root = mu.weights[keep].sqrt()
    return dense[keep][:, keep] * (root[:, None] / root)[..., None, None]


def local_constant(attention: Attention, mu: Particles) -> Tensor:
    blocks = jacobian(attention, mu)
    n, _, d, _ = blocks.shape
    return torch.linalg.matrix_norm(blocks.transpose(1, 2).reshape(n * d, n * d), 2)


def ascend(objective: Callable[[Tensor], Tensor], start: Tensor, radius: float | None, steps: int = 40, rate: float = 0.05) -> Tensor:
    """The best point that Adam finds for `objective`, projected on the ball of this radius token by token."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=rate, maximize=True)
    best, found = start, float("-inf")
    for _ in range(steps):
        optimiser.zero_grad()
        value = objective(x)
        if float(value) > found:
            best, found = x.detach().clone(), float(value)
        value.backward()
        optimiser.step()
        if radius is not None:
            with torch.no_grad():
                x *= (radius / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).clamp(max=1)
    return best


def single(a: Tensor, v: Tensor | None = None, causal: bool = False) -> Softmax:
    return Softmax(Heads.from_matrices(a, torch.eye(len(a), dtype=a.dtype) if v is None else v), causal=causal)


@st.composite
def cases(draw: st.DrawFn, variants: tuple[type[Attention], ...] = (Softmax, L2, Sigmoid), positional: bool = True) -> Case:
    """Heads with or without output, biases, rotary embedding and position bias; a mask or none; weights, some of them zero."""
    variant = draw(st.sampled_from(variants))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    n, d, h = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    k = draw(st.sampled_from([1, 2, 4]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    output = draw(st.booleans())
    v = draw(st.integers(1, 3)) if output else d
    options: dict[str, object] = {}
    if draw(st.booleans()):
        options |= {"query_bias": normal(h, k), "key_bias": normal(h, k), "value_bias": normal(h, v), "output_bias": normal(d)}
    where = draw(st.sampled_from(["plain", "plain", "rotary", "bias"])) if positional and variant is Softmax else "plain"
    if where == "rotary" and k % 2 == 0:
        options["rotary"] = normal(k // 2)
    if where == "bias":
        options["position_bias"] = normal(h, n, n)
    tied = variant is L2 and draw(st.booleans())
    query = normal(h, k, d)
    value = normal(h, v, k) @ query if tied else normal(h, v, d)
    if tied and "query_bias" in options:
        options["key_bias"] = options["query_bias"]
    heads = Heads(query, query if tied else normal(h, k, d), value, normal(h, d, v) if output else None, **options)  # type: ignore[arg-type]
    weights = None
    if draw(st.booleans()):
        weights = torch.rand(n, generator=g, dtype=torch.float64)
        if n > 2 and draw(st.booleans()):
            weights[1] = 0
        weights = weights / weights.sum()
    scale = draw(st.sampled_from([0.05, 0.3, 1.0, 3.0]))
    return Case(variant(heads, causal=draw(st.booleans())), Particles(scale * normal(n, d), weights))
