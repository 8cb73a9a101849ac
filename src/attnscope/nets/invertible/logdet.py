r"""$\log\det(I + J)$: exact from dense Jacobians, or estimated from the series $\sum_k
(-1)^{k+1}\mathrm{tr}(J^k)/k$ [chen19].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.nets.invertible.step import Step
from attnscope.validation import brief

REMAINDER = 1e-3
"""Size of the truncation bound of each layer that the default number of terms reaches."""
MOST_TERMS = 200


@final
@dataclass(frozen=True, eq=False)
class LogDeterminant:
    """The log-determinant of the Jacobian of a stack. `kind` is "exact" (dense, up to rounding) or
    "estimate" (random probes).

    Of an estimate `standard_error` is the spread of its mean over the probes, itself an estimate,
    and `truncation` a proved bound on the part of the series left out; an exact value has zeros
    there. `y` is the image, which comes with it.
    """

    y: Float[Tensor, "*stack n d"]
    value: Float[Tensor, "*stack"]
    kind: Literal["exact", "estimate"]
    standard_error: Float[Tensor, "*stack"]
    truncation: float
    probes: int
    terms: tuple[int, ...]

    __repr__ = brief


def exact(steps: list[Step], x: Float[Tensor, "*stack n d"]) -> LogDeterminant:
    """By the dense Jacobian of every layer; differentiable."""
    total = torch.zeros(x.shape[:-2], dtype=x.dtype, device=x.device)
    for step in steps:
        total = total + torch.linalg.slogdet(dense_jacobian(step, x)).logabsdet
        x = x + step.move(x)
    return LogDeterminant(x, total, "exact", torch.zeros_like(total).detach(), 0.0, 0, ())


def dense_jacobian(step: Step, x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack m m"]:
    r"""$I + Df(x)$ as matrices."""
    # One pull-back serves the whole stack: an iteration inside the field cannot be mapped over.
    stack, shape, entries = x.shape[:-2], x.shape[-2:], x.shape[-2] * x.shape[-1]
    pull = torch.func.vjp(lambda z: step.move(z, dense=True), x)[1]
    identity = torch.eye(entries, dtype=x.dtype, device=x.device)
    basis = identity.reshape(entries, *[1] * len(stack), *shape).expand(entries, *x.shape)
    rows = torch.func.vmap(lambda u: pull(u)[0])(basis).reshape(entries, *stack, entries)
    return identity + rows.movedim(0, -2)


def estimated(
    steps: list[Step],
    x: Float[Tensor, "*stack n d"],
    probes: int,
    terms: int | None,
    generator: torch.Generator,
) -> LogDeterminant:
    """By random signs and the truncated series; unbiased up to the truncation, differentiable."""
    entries = x.shape[-2] * x.shape[-1]
    total = torch.zeros(probes, *x.shape[:-2], dtype=x.dtype, device=x.device)
    left_out, used = 0.0, []
    for step in steps:
        count = terms or enough_terms(step.constant, entries)
        total = total + _series(step, x, probes, count, generator)
        left_out += remainder(step.constant, entries, count)
        used.append(count)
        x = x + step.move(x)
    error = total.detach().std(0) / math.sqrt(probes)
    return LogDeterminant(x, total.mean(0), "estimate", error, left_out, probes, tuple(used))


def remainder(constant: float, entries: int, terms: int) -> float:
    r"""$\sum_{k>K}|\mathrm{tr}J^k|/k \le nd\sum_{k>K}L^k/k \le nd\,L^{K+1}/((K+1)(1-L))$."""
    return entries * constant ** (terms + 1) / ((terms + 1) * (1 - constant))


def enough_terms(constant: float, entries: int) -> int:
    """The fewest terms whose remainder is below REMAINDER, MOST_TERMS at most."""
    return next(
        (
            count
            for count in range(1, MOST_TERMS)
            if remainder(constant, entries, count) <= REMAINDER
        ),
        MOST_TERMS,
    )


def _series(
    step: Step, x: Tensor, probes: int, terms: int, generator: torch.Generator
) -> Float[Tensor, "many ..."]:
    r"""$\sum_{k\le K}(-1)^{k+1}\langle v, (J^T)^kv\rangle/k$ for each probe of random signs."""
    signs = torch.randint(
        0, 2, (probes, *x.shape), generator=generator, device=generator.device
    ).to(x)
    v = 2 * signs - 1
    pull = torch.func.vjp(lambda z: step.move(z, dense=True), x)[1]
    together = torch.func.vmap(lambda u: pull(u)[0])
    total, power = torch.zeros(probes, *x.shape[:-2], dtype=x.dtype, device=x.device), v
    for k in range(1, terms + 1):
        power = together(power)
        total = total + (1 if k % 2 else -1) / k * (v * power).sum((-2, -1))
    return total
