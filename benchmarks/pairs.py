"""A pair of products at the rate of matrix multiplication: short inputs, single sequences, narrow
layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from attnscope import Heads, Particles, Softmax, jacobian
from benchmarks.timing import seconds

HEADS = 12
BARS = {
    (768, 1, 8): 0.4,
    (768, 1, 32): 0.75,
    (768, 10, 8): 0.71,
    (768, 10, 32): 0.71,
    (768, 10, 128): 0.71,
    (384, 1, 256): None,
    (384, 1, 512): None,
}
"""The share of the rate that must be reached, by width, sequences and length."""
SIDE = 1024
"""Of the matrices whose product says what the rate is."""
LEAST_SECONDS = 0.1


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    square = torch.randn(SIDE, SIDE, generator=draw)
    found: dict[str, Any] = {}
    for (d, stack, n), must in BARS.items():
        pair, often = _pair(d, stack, n, draw), 1
        while seconds(_times(pair, often), repeats=1)[0] < LEAST_SECONDS:
            often *= 2
        ours, theirs = seconds(_times(pair, often), _times(lambda: square @ square, 3), repeats=7)
        work = 16 * stack * n * d * (d + n) * often / (6 * SIDE**3)
        row = {"ratio": work * theirs / ours}
        name = f"pair, share of the GEMM rate, d = {d}, n = {n}, stack of {stack}"
        found[name] = row if must is None else row | {"must": must}
    return found


def _pair(d: int, stack: int, n: int, draw: torch.Generator) -> Callable[[], object]:
    """A product with the Jacobian of a layer and one with its adjoint; 16 n d (d + n) operations
    for each sequence.
    """
    k = d // HEADS
    parts = (torch.randn(HEADS, k, d, generator=draw) / math.sqrt(d) for _ in range(4))
    query, key, value, output = parts
    x, u = (torch.randn(stack, n, d, generator=draw) for _ in range(2))
    op = jacobian(Softmax(Heads(query, key, value, output.mT)), Particles(x))
    return lambda: op.rmv(op.mv(u))


def _times(action: Callable[[], object], often: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(often):
            action()

    return repeated
