"""Flows: a particle step against torch's fused attention, its cost against n, and the Gaussian flow
against projected Euler.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from attnscope import Gaussian, Heads, Particles, Softmax, flow
from attnscope.flows.fast import Interpolated
from benchmarks.timing import peak_memory, seconds

N, TOLERANCE, REPEATS, STATES = 100_000, 3e-6, 3, 20
SIZES = (10_000, 100_000, 1_000_000)


def main() -> dict[str, Any]:
    """One right-hand side of the PDE on particles, its cost against n, and the right-hand sides of
    the Gaussian flow; one thread.
    """
    torch.set_num_threads(1)
    return particle_step() | cost_against_n() | gaussian_flow()


def particle_step(n: int = N) -> dict[str, Any]:
    """The softmax PDE at n tokens in the plane: interpolated from scratch and as in a flow, against
    torch's fused attention in float32.
    """
    attention, mu = _problem(n)
    light, light_mu = attention.to(torch.float32), mu.to(torch.float32)
    kept = Interpolated(TOLERANCE)
    field, estimate = kept(attention, mu.x, mu)
    first, warm = seconds(
        lambda: Interpolated(TOLERANCE)(attention, mu.x, mu),
        lambda: kept(attention, mu.x, mu),
        repeats=REPEATS,
    )
    peak = peak_memory() / 1e9
    (fused,) = seconds(lambda: light(light_mu.x, light_mu), repeats=REPEATS)
    error = float((field - attention(mu.x, mu)).abs().max())
    size = f"n = {n:,}, d = 2"
    return {
        f"PDE step vs SDPA, {size}, first call": {
            "ratio": fused / first,
            "must": 30.0,
            "stretch": 60.0,
        },
        f"PDE step vs SDPA, {size}, next calls of a flow": {
            "ratio": fused / warm,
            "must": 30.0,
            "stretch": 60.0,
        },
        f"largest error of that step over all tokens, {size}": {
            "value": error,
            "at most": 2e-5,
            "relative estimate": estimate,
        },
        f"peak memory of the process at that step, {size}, in GB": {"value": peak, "at most": 2.0},
    }


def cost_against_n(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """One interpolated right-hand side (first call) relative to the smallest size, and the error at
    sampled queries.
    """
    found, base = {}, 0.0
    for n in sizes:
        attention, mu = _problem(n)
        (cost,) = seconds(lambda a=attention, m=mu: Interpolated(TOLERANCE)(a, m.x, m), repeats=1)
        field, _ = Interpolated(TOLERANCE)(attention, mu.x, mu)
        some = torch.randperm(n, generator=torch.Generator().manual_seed(1))[:200]
        error = float((field[some] - attention(mu.x[some], mu)).abs().max())
        base = base or cost
        found[f"cost of a PDE step at n = {n:,} in steps at n = {sizes[0]:,}"] = {
            "value": cost / base,
            "error at 200 tokens": error,
        }
    return found


def gaussian_flow(
    target: float = 1e-8, euler_target: float = 1e-3, seeds: int = 3
) -> dict[str, Any]:
    """Right-hand sides that keep a whole path within `target` (flow) and within `euler_target`
    (projected Euler) of the closed form.

    Two of the papers' figures from random unit-trace covariances: "to zero" (A = -Q^T Q) to t = 50,
    "explosion" (A = Q^T Q) to nine tenths of the blow-up time; medians over seeds.
    """
    found = {}
    for name, sign in (("to zero", -1.0), ("explosion", 1.0)):
        runs = [_calls(seed, sign, target, euler_target) for seed in range(seeds)]
        calls, steps = (statistics.median(run[place] for run in runs) for place in (0, 1))
        ratios = [run[1] / run[0] for run in runs]
        what = (
            f"Gaussian flow to 1e-8 vs projected Euler to 1e-3, right-hand sides, {name}, worst of"
            f" {seeds}"
        )
        found[what] = {
            "ratio": min(ratios),
            "must": 20.0,
            "stretch": 100.0,
            "calls": calls,
            "Euler steps": steps,
            "all": ratios,
        }
    return found


def _calls(seed: int, sign: float, target: float, euler_target: float) -> tuple[int, int]:
    generator = torch.Generator().manual_seed(seed)
    q, z = (torch.randn(2, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    eye, a = torch.eye(2, dtype=torch.float64), sign * q.mT @ q / 2**0.5
    start = Gaussian(torch.zeros(2, dtype=torch.float64), z @ z.mT / (z @ z.mT).trace())
    root = start.factor()
    m = root @ a @ root
    end = 50.0 if sign < 0 else 0.9 / (2 * float(torch.linalg.eigvalsh(m)[-1]))
    times = torch.linspace(0, end, STATES + 1, dtype=torch.float64)
    exact = root @ torch.linalg.inv(eye - 2 * times[:, None, None] * m) @ root

    def error(cov: torch.Tensor) -> float:
        return float(
            (torch.linalg.matrix_norm(cov - exact) / torch.linalg.matrix_norm(exact)).max()
        )

    rtol = 1e-6
    while (
        error(
            (
                got := flow(
                    Softmax(Heads.from_matrices(a, eye)),
                    start,
                    times,
                    rtol=rtol,
                    atol=rtol / 100,
                    settle=None,
                )
            ).cov
        )
        > target
    ):
        rtol /= 2
    between = 1
    while error(_projected_euler(a, start.cov, end, between)) > euler_target:
        between = int(1.2 * between) + 1
    return got.evaluations, STATES * between


def _projected_euler(a: torch.Tensor, cov: torch.Tensor, end: float, between: int) -> torch.Tensor:
    """Explicit Euler on S' = SAS + SA^TS with negative eigenvalues set to zero after each step;
    `between` steps between two states.
    """
    step, states = end / (STATES * between), [cov]
    for number in range(1, STATES * between + 1):
        cov = cov + step * cov @ (a + a.mT) @ cov
        values, vectors = torch.linalg.eigh((cov + cov.mT) / 2)
        if values[0] < 0:
            cov = (vectors * values.clamp(min=0)) @ vectors.mT
        if number % between == 0:
            states.append(cov)
    return torch.stack(states)


def _problem(n: int) -> tuple[Softmax, Particles]:
    generator = torch.Generator().manual_seed(0)
    eye = torch.eye(2, dtype=torch.float64)
    return Softmax(Heads.from_matrices(eye, eye)), Particles(
        torch.randn(n, 2, dtype=torch.float64, generator=generator)
    )
