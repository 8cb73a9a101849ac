"""One random layer: how far its output can move, proved and found."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attacks import pgd
from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import sensitivity
from attnscope.measures import Particles
from attnscope.studies.certify.rows import LayerRow, OneLayer

TOKENS, DIM = 16, 32
SMALLEST, FOUND = "smallest (proved)", "PGD (found)"


def layer_rows(cell: OneLayer) -> list[LayerRow]:
    """Every bound on a residual softmax layer (16 tokens of dimension 32, random weights), their
    minimum, and what an attack finds.
    """
    attention, x = random_layer(cell.heads, cell.seed)
    eps = torch.tensor(cell.eps, dtype=torch.float64)
    bound = sensitivity(attention, x.expand(len(eps), *x.shape), eps, residual=1.0)
    found = deviation(attention, x, eps, cell.steps, cell.restarts, cell.seed)
    moved = {**bound.candidates, SMALLEST: bound.value, FOUND: found}
    return [
        LayerRow(cell.heads, one, by, by != FOUND, float(far))
        for by, values in moved.items()
        for one, far in zip(cell.eps, values, strict=True)
    ]


def random_layer(heads: int, seed: int) -> tuple[Softmax, Float[Tensor, "n d"]]:
    r"""A softmax layer with $\|A_h\|$ near 1 and the tokens that it reads, all Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    k = DIM // heads

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    query, key, value = (gaussian(heads, k, DIM) / DIM**0.5 for _ in range(3))
    made = Heads(query, key, value, gaussian(heads, DIM, k) / DIM**0.5)
    return Softmax(made), gaussian(TOKENS, DIM)


def deviation(
    attention: Softmax,
    x: Float[Tensor, "n d"],
    eps: Float[Tensor, " e"],
    steps: int = 100,
    restarts: int = 5,
    seed: int = 0,
) -> Float[Tensor, " e"]:
    r"""The largest $\|F(X + D) - F(X)\|_F$ found over $\|D\|_F \le$ eps, $F(X) = X + \Gamma(X)$: a
    lower bound, one for each eps.

    The attack on classes is put to use: against a class with logit 0 it raises the other logit,
    which is the deviation.
    """

    def layer(at: Tensor) -> Tensor:
        return at + attention(at, Particles(at))

    before = layer(x)

    def logits(at: Tensor) -> Tensor:
        moved = torch.linalg.vector_norm((layer(at) - before).flatten(1), dim=1)
        return torch.stack([torch.zeros_like(moved), moved], dim=1)

    labels = torch.zeros(len(eps), dtype=torch.int64)
    start = x.expand(len(eps), *x.shape).clone()
    return -pgd(logits, start, labels, eps, steps, restarts, seed).gap
