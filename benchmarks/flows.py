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

N, TOLERANCE, REPEATS = 100_000, 1e-5, 3
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


def gaussian_flow(target: float = 1e-8, euler_target: float = 1e-3) -> dict[str, float]:
    """Right-hand sides that the flow needs for `target` and that projected Euler needs for `euler_target`, against the closed form."""
    generator = torch.Generator().manual_seed(0)
    q, z = (torch.randn(2, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    eye = torch.eye(2, dtype=torch.float64)
    attention = Softmax(Heads.from_matrices(-q.mT @ q, eye))
    start = Gaussian(torch.zeros(2, dtype=torch.float64), z @ z.mT)
    end, root = 5.0, start.factor()
    exact = root @ torch.linalg.inv(eye + 2 * end * root @ q.mT @ q @ root) @ root
    size = torch.linalg.matrix_norm(exact)
    rtol = 1e-6
    while True:
        got = flow(attention, start, [0, end], rtol=rtol, atol=rtol / 100, settle=None)
        error = float(torch.linalg.matrix_norm(got.final.cov - exact) / size)
        if error <= target:
            break
        rtol /= 2
    steps = 1
    while (euler_error := _projected_euler(attention, start, end, steps, exact)) > euler_target:
        steps = int(steps * 1.2) + 1
    return {
        "flow_calls": got.evaluations,
        "flow_error": error,
        "euler_calls": steps,
        "euler_error": euler_error,
        "ratio": steps / got.evaluations,
    }


def _projected_euler(attention: Softmax, start: Gaussian, end: float, steps: int, exact: torch.Tensor) -> float:
    """The relative error of explicit Euler on the covariance with negative eigenvalues set to zero after each step."""
    cov = start.cov
    for _ in range(steps):
        b = attention.affine(Gaussian(start.mean, cov)).matrix
        cov = cov + end / steps * (b @ cov + cov @ b.mT)
        values, vectors = torch.linalg.eigh((cov + cov.mT) / 2)
        cov = (vectors * values.clamp(min=0)) @ vectors.mT
    return float(torch.linalg.matrix_norm(cov - exact) / torch.linalg.matrix_norm(exact))


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
    calls = f"{gauss['ratio']:.0f}x ({gauss['flow_calls']} against {gauss['euler_calls']})"
    table.add_row("Gaussian flow to 1e-8, right-hand sides against projected Euler to 1e-3", calls, "20x", "100x")
    for n, one in numbers["cost_against_n"].items():
        table.add_row(f"interpolated step, n = {n:,}", f"{one['seconds']:.2f} s, error {one['error_at_200']:.0e}", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
