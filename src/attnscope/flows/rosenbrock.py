r"""One step of a Rosenbrock method on a stack of stiff systems, each with a step size of its own.

For $y' = f(y)$ with Jacobian $J = f'(y)$ a step of size $h$ solves one linear system per stage,
$$ \Big(\frac{1}{\gamma h} I - J\Big) u_i = f\Big(y + \sum_{j<i} a_{ij} u_j\Big)
   + \frac1h \sum_{j<i} c_{ij} u_j, \qquad y_1 = y + \sum_{j<6} a_{6j} u_j + u_6, $$
all six with the same matrix. The coefficients are RODAS, order 4 with an error estimate $u_6$ of
order 3, L-stable and stiffly accurate [hairer96, Sec. IV.7 and VI.4]. Its order needs the exact
Jacobian: differences of f lose it where rates differ by many orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

GAMMA = 0.25
A = (
    (),
    (1.544,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
)
C = (
    (),
    (-5.6688,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (
        8.083246795921522,
        -7.981132988064893,
        -31.52159432874371,
        16.31930543123136,
        -6.058818238834054,
    ),
)
ORDER = 4
SAFETY = 0.9
LEAST, MOST = 0.2, 6.0
"""By what a step size may change from one step to the next."""

Rows = Float64[Tensor, "members numbers"]
Each = Float64[Tensor, " members"]
Velocity = Callable[[Rows], Rows]


class Step(NamedTuple):
    """Where a step leads, and its estimated error in each number."""

    y: Rows
    error: Rows


def step(
    velocity: Velocity,
    jacobian: Float64[Tensor, "members numbers numbers"],
    y: Rows,
    h: Each,
) -> Step:
    """One step of each member with its own h; what cannot be computed comes out as NaN."""
    size = h[:, None]
    identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    lu, pivots, _ = torch.linalg.lu_factor_ex(identity / (GAMMA * size[..., None]) - jacobian)
    stages: list[Tensor] = []
    at = y
    for a, c in zip(A, C, strict=True):
        at = y + _sum(a, stages) if stages else y
        right = velocity(at) + _sum(c, stages) / size if stages else velocity(at)
        stages.append(torch.linalg.lu_solve(lu, pivots, right[..., None])[..., 0])
    return Step(at + stages[-1], stages[-1])


def error_norm(error: Rows, before: Rows, after: Rows, rtol: float, atol: float) -> Each:
    """The error of each member relative to what is allowed; infinite where it is not a number."""
    allowed = atol + rtol * torch.maximum(before.abs(), after.abs())
    norm = (error / allowed).square().mean(-1).sqrt()
    return torch.where(norm.isfinite(), norm, torch.inf)


def next_size(h: Each, norm: Each) -> Each:
    """The step size that would just be allowed, were the error a multiple of h to the order."""
    return h * (SAFETY * norm.clamp(min=1e-12) ** (-1 / ORDER)).clamp(LEAST, MOST)


def first_size(y: Rows, speed: Rows, rtol: float, atol: float) -> Each:
    """A hundredth of the time in which each member would move by its own size."""
    allowed = atol + rtol * y.abs()
    size, fast = (torch.linalg.vector_norm(part / allowed, dim=-1) for part in (y, speed))
    return 0.01 * torch.where((size > 0) & (fast > 0), size / fast, 1.0)


def _sum(numbers: tuple[float, ...], stages: list[Tensor]) -> Tensor:
    total = numbers[0] * stages[0]
    for number, stage in zip(numbers[1:], stages[1:], strict=True):
        total = total + number * stage
    return total
