"""Attention seen through a tap: token-wise maps that bend, soft-caps and sinks, against the dense
Jacobian.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnscope.bounds import Theorem
from attnscope.bounds.smooth.moves import Moves
from attnscope.bounds.smooth.tapped import Tapped
from theorem_cases import Case

WHERE = (Tapped,)
HEADS, N, D, K = 2, 5, 4, 3


def cases(theorem: Theorem) -> Iterator[Case]:
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        weights = torch.randn(3, HEADS, K, D, generator=g, dtype=torch.float64)
        output = torch.randn(HEADS, D, K, generator=g, dtype=torch.float64)
        x = (0.3, 1.0, 3.0)[seed % 3] * torch.randn(N, D, generator=g, dtype=torch.float64)
        layer = partial(
            tapped,
            weights=weights,
            output=output,
            cap=(None, 2.0)[seed % 2],
            sink=(-torch.inf, 0.5)[seed // 2 % 2],
            causal=seed % 4 == 3,
            bent=seed < 6,
        )
        dense = torch.func.jacrev(lambda x, layer=layer: written(layer(x)))(x)
        yield Case(
            f"{theorem.name}, layer {seed}",
            float(theorem(None, layer(x))),
            float(torch.linalg.matrix_norm(dense.reshape(N * D, N * D), 2)),
            (lambda s, layer=layer, x=x: theorem(None, layer(s * x, factor=s)))  # type: ignore[misc]
            if theorem.differentiable
            else None,
        )


def tapped(
    x: Tensor,
    weights: Tensor,
    output: Tensor,
    cap: float | None,
    sink: float,
    causal: bool,
    bent: bool,
    factor: Tensor | float = 1.0,
) -> Tapped:
    """Queries and keys are tanh of linear maps where they are bent, values linear."""
    linear = torch.einsum("phkd,nd->phnk", factor * weights, x)
    query, key, value = linear
    bend = torch.ones_like(linear[:2])
    if bent:
        query, key, bend = query.tanh(), key.tanh(), 1 - linear[:2].tanh().square()
    moves = bend[..., None] * (factor * weights)[:2, :, None]
    z = 1.7 * query @ key.mT
    scores = z if cap is None else cap * (z / cap).tanh()
    slope = torch.ones_like(z) if cap is None else 1 - (z / cap).tanh().square()
    if causal:
        scores = scores.masked_fill(~torch.ones(N, N).tril().bool(), -torch.inf)
    total = torch.cat([scores, torch.full_like(scores[..., :1], sink)], dim=-1)
    return Tapped(
        coupling=torch.softmax(total, dim=-1)[..., :-1],
        slope=slope,
        scale=1.7,
        query=query,
        key=key,
        value=value,
        query_moves=Moves.dense(moves[0]),
        key_moves=Moves.dense(moves[1]),
        value_moves=Moves.alike((factor * weights)[2]),
        output=output * factor,
    )


def written(at: Tapped) -> Tensor:
    return torch.einsum("hdv,hiv->id", at.output, at.mean)
