"""Flows: a particle step against torch's fused attention, its cost against n, and the Gaussian flow against projected Euler."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from attnscope import Gaussian, Heads, Particles, Softmax, flow
from attnscope.flows.fast import Interpolated

N, TOLERANCE, REPEATS, STATES = 100_000, 3e-6, 3, 20
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def main() -> dict[str, Any]:
    """Run everything on one thread, print ratios, return the numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        numbers = {"particle_step": particle_step(), "cost_against_n": cost_against_n(), "gaussian_flow": gaussian_flow()}
    finally:
        torch.set_num_threads(threads)
    _report(numbers)
    return numbers


def particle_step(n: int = N, repeats: int = REPEATS) -> dict[str, float]:
    """One right-hand side of the softmax PDE at n tokens in the plane: interpolated from scratch and warm, fused in float32 and float64."""
    attention, mu = _problem(n)
    light, light_mu = attention.to(torch.float32), mu.to(torch.float32)
    first = _seconds(lambda: Interpolated(TOLERANCE)(attention, mu.x, mu), repeats)
    kept = Interpolated(TOLERANCE)
    field, estimate = kept(attention, mu.x, mu)
    warm = _seconds(lambda: kept(attention, mu.x, mu), repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sdpa = _seconds(lambda: light(light_mu.x, light_mu), repeats)
    begun = time.process_time()
    exact = attention(mu.x, mu)
    double = time.process_time() - begun
    return {
        "n": n,
        "seconds_first_call": first,
        "seconds_next_calls": warm,
        "seconds_sdpa_float32": sdpa,
        "seconds_sdpa_float64": double,
        "ratio_first_call": sdpa / first,
        "ratio_next_calls": sdpa / warm,
        "error": float((field - exact).abs().max()),
        "error_estimate_relative": estimate,
        "error_sdpa_float32": float((light(light_mu.x, light_mu).double() - exact).abs().max()),
        "peak_gib_before_sdpa": peak,
    }


def cost_against_n(sizes: tuple[int, ...] = SIZES) -> dict[int, dict[str, float]]:
    """Seconds of one interpolated right-hand side (first call) and the error at sampled queries."""
    found = {}
    for n in sizes:
        attention, mu = _problem(n)
        begun = time.process_time()
        field, estimate = Interpolated(TOLERANCE)(attention, mu.x, mu)
        seconds = time.process_time() - begun
        some = torch.randperm(n, generator=torch.Generator().manual_seed(1))[:200]
        error = float((field[some] - attention(mu.x[some], mu)).abs().max())
        found[n] = {"seconds": seconds, "error_at_200": error, "error_estimate_relative": estimate}
    return found


def gaussian_flow(target: float = 1e-8, euler_target: float = 1e-3, seeds: int = 3) -> dict[str, dict[str, float]]:
    """Right-hand sides that keep a whole path within `target` (flow) and within `euler_target` (projected Euler) of the closed form.

    Two of the papers' figures from random unit-trace covariances: "to zero" (A = -Q^T Q) to t = 50, "explosion" (A = Q^T Q) to
    nine tenths of the blow-up time; medians over seeds.
    """
    found = {}
    for name, sign in (("to zero", -1.0), ("explosion", 1.0)):
        runs = [_calls(seed, sign, target, euler_target) for seed in range(seeds)]
        calls, steps = (statistics.median(run[place] for run in runs) for place in (0, 1))
        ratios = [run[1] / run[0] for run in runs]
        found[name] = {"flow_calls": calls, "euler_calls": steps, "ratio": statistics.median(ratios), "smallest_ratio": min(ratios)}
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
        return float((torch.linalg.matrix_norm(cov - exact) / torch.linalg.matrix_norm(exact)).max())

    rtol = 1e-6
    while error((got := flow(Softmax(Heads.from_matrices(a, eye)), start, times, rtol=rtol, atol=rtol / 100, settle=None)).cov) > target:
        rtol /= 2
    between = 1
    while error(_projected_euler(a, start.cov, end, between)) > euler_target:
        between = int(1.2 * between) + 1
    return got.evaluations, STATES * between


def _projected_euler(a: torch.Tensor, cov: torch.Tensor, end: float, between: int) -> torch.Tensor:
    """Explicit Euler on S' = SAS + SA^TS with negative eigenvalues set to zero after each step; `between` steps between two states."""
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
    return Softmax(Heads.from_matrices(eye, eye)), Particles(torch.randn(n, 2, dtype=torch.float64, generator=generator))


def _seconds(work: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def _report(numbers: dict[str, Any]) -> None:
    step, gauss = numbers["particle_step"], numbers["gaussian_flow"]
    table = Table("flows", "measured", "bar", "stretch")
    table.add_row(f"PDE step, n = {step['n']:,}, d = 2, against SDPA (first call)", f"{step['ratio_first_call']:.0f}x", "30x", "60x")
    table.add_row("the same, next calls of a flow", f"{step['ratio_next_calls']:.0f}x", "30x", "60x")
    table.add_row("largest error over all tokens (SDPA float32)", f"{step['error']:.1e} ({step['error_sdpa_float32']:.1e})", "2e-5", "")
    table.add_row("peak memory", f"{step['peak_gib_before_sdpa']:.2f} GiB", "2 GiB", "")
    for name, one in gauss.items():
        calls = f"{one['ratio']:.0f}x ({one['flow_calls']:.0f} against {one['euler_calls']:.0f})"
        table.add_row(f"Gaussian flow to 1e-8 against projected Euler to 1e-3, right-hand sides: {name}", calls, "20x", "100x")
    for n, one in numbers["cost_against_n"].items():
        table.add_row(f"interpolated step, n = {n:,}", f"{one['seconds']:.2f} s, error {one['error_at_200']:.0e}", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
