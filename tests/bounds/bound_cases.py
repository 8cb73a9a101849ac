"""Random attention of every shape, its local constant by a dense decomposition, and inputs that
push it up.
"""

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


def ascend(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    radius: float | None,
    steps: int = 40,
    rate: float = 0.05,
) -> Tensor:
    """The best point that Adam finds for `objective`, projected on the ball of this radius token by
    token.
    """
    x = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=rate, maximize=True)
    best, found = start, float("-inf")
    for _ in range(steps):
        optimiser.zero_grad()
        value = objective(x)
        if float(value.detach()) > found:
            best, found = x.detach().clone(), float(value.detach())
        value.backward()
        optimiser.step()
        if radius is not None:
            with torch.no_grad():
                x *= (radius / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).clamp(max=1)
    return best


def single(a: Tensor, v: Tensor | None = None, causal: bool = False) -> Softmax:
    return Softmax(
        Heads.from_matrices(a, torch.eye(len(a), dtype=a.dtype) if v is None else v), causal=causal
    )


@dataclass(frozen=True)
class Recipe:
    """What hypothesis draws; `build` makes the tensors."""

    variant: type[Attention]
    seed: int
    n: int
    d: int
    h: int
    k: int
    v: int | None
    biases: bool
    places: str
    tied: bool
    weights: str
    scale: float
    causal: bool

    def build(self) -> Case:
        g = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        n, d, h, k, v = self.n, self.d, self.h, self.k, self.v or self.d
        parts = {"query": normal(h, k, d), "key": normal(h, k, d), "value": normal(h, v, d)}
        if self.v is not None:
            parts["output"] = normal(h, d, v)
        if self.biases:
            parts |= {
                "query_bias": normal(h, k),
                "key_bias": normal(h, k),
                "value_bias": normal(h, v),
                "output_bias": normal(d),
            }
        if self.places == "rotary" and k % 2 == 0:
            parts["rotary"] = normal(k // 2)
        if self.places == "bias":
            parts["position_bias"] = normal(h, n, n)
        if self.tied:
            parts |= {"key": parts["query"], "value": normal(h, v, k) @ parts["query"]}
            parts |= {"key_bias": parts["query_bias"]} if self.biases else {}
        weights = None
        if self.weights != "equal":
            weights = torch.rand(n, generator=g, dtype=torch.float64) + 0.01
            if self.weights == "some zero" and n > 2:
                weights[1] = 0
            weights = weights / weights.sum()
        return Case(
            self.variant(Heads(**parts), causal=self.causal),
            Particles(self.scale * normal(n, d), weights),
        )


def recipes(
    variants: tuple[type[Attention], ...] = (Softmax, L2, Sigmoid),
) -> st.SearchStrategy[Recipe]:
    """Heads with or without output, biases, rotary embedding and position bias; a mask or none;
    weights, some of them zero.
    """
    return st.sampled_from(variants).flatmap(
        lambda variant: st.builds(
            Recipe,
            variant=st.just(variant),
            seed=st.integers(0, 2**32),
            n=st.integers(1, 5),
            d=st.integers(1, 4),
            h=st.integers(1, 3),
            k=st.sampled_from([1, 2, 4]),
            v=st.sampled_from([None, 1, 3]),
            biases=st.booleans(),
            places=(
                st.sampled_from(["none", "none", "rotary", "bias"])
                if variant is Softmax
                else st.just("none")
            ),
            tied=st.booleans() if variant is L2 else st.just(False),
            weights=st.sampled_from(["equal", "any", "some zero"]),
            scale=st.sampled_from([0.05, 0.3, 1.0, 3.0]),
            causal=st.booleans(),
        )
    )
