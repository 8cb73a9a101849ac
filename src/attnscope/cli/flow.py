"""`attnscope flow`: watch tokens, or a Gaussian of tokens, move through depth."""

from __future__ import annotations

import io
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from attnscope.attention import Attention
from attnscope.cli._matrices import MATRICES, attention_of_matrices, load_array
from attnscope.files import write_atomically
from attnscope.flows import (
    Ellipsoid,
    Sphere,
    Trajectory,
    anisotropy,
    clusters,
    energy,
    flow,
    spectral_gap_rank,
)
from attnscope.measures import Gaussian, Particles


def command(
    attention: str = typer.Option(
        "softmax", help="Which attention; `attnscope variants` lists them."
    ),
    heads: int = typer.Option(1, min=1, help="Number of heads, each with matrices of its own."),
    scores: str = typer.Option(
        "identity", help=f"Matrix A of the scores <Ax, y>: {', '.join(MATRICES)}, or a .npy file."
    ),
    values: str = typer.Option(
        "identity", help="Matrix V of the values, by name or .npy file like the scores."
    ),
    particles: int = typer.Option(
        64,
        min=1,
        help="Number of tokens, drawn from a standard normal law (then put on the surface).",
    ),
    gaussian: bool = typer.Option(
        False, "--gaussian", help="Move a Gaussian by its closed form instead of particles."
    ),
    dim: int = typer.Option(2, min=1, help="Dimension of the tokens."),
    time: float = typer.Option(5.0, help="How long to flow (depth times step)."),
    space: str = typer.Option(
        "euclidean", help='"euclidean", "sphere", or a .npy file of RMSNorm gains (an ellipsoid).'
    ),
    causal: bool = typer.Option(False, "--causal", help="Tokens read those before them only."),
    gap: float | None = typer.Option(
        None,
        help=(
            "Tokens this close belong to one cluster (default: a twentieth of the radius of the"
            " cloud at that time)."
        ),
    ),
    method: str = typer.Option("DOP853", help="Solver: DOP853, RK45, RK23, Radau, BDF or LSODA."),
    rtol: float = typer.Option(1e-6, help="Relative tolerance of the solver."),
    frames: int = typer.Option(
        60, min=2, help="Pictures in the animation, and states in the data."
    ),
    seed: int = typer.Option(0, min=0, help="Seed of tokens and random matrices."),
    out: str | None = typer.Option(None, help="Folder for results (default: flow-ATTENTION)."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace results that are already in the folder."
    ),
) -> None:
    """How do tokens flow with depth?

    Integrates x' = attention(x, mu) and leaves flow.npz (times and states), flow.png and flow.gif.
    Ctrl-C keeps what was computed.
    """
    if not 0 < time < float("inf"):
        raise ValueError(f"--time must be a finite number above 0, got {time}.")
    folder = Path(out or f"flow-{attention}")
    if (folder / "flow.npz").exists() and not overwrite:
        raise ValueError(
            f"{folder / 'flow.npz'} is already there. Pass --overwrite to replace it, or another"
            " --out."
        )
    generator = torch.Generator().manual_seed(seed)
    field = attention_of_matrices(attention, heads, scores, values, dim, causal, generator)
    surface = _space(space)
    start = _start(particles, gaussian, dim, surface, generator)
    console = Console()

    def run(end: float) -> Trajectory[Any]:
        with _watched(console, end) as progress:
            times = np.linspace(0, end, frames + 1).tolist()
            return flow(
                field, start, times, rtol, rtol / 100, surface, method=method, progress=progress
            )

    got = run(time)
    if got.status == "blew up" and len(got.states) < frames // 2 and particles <= 2000:
        got = run(got.stop_time)
    folder.mkdir(parents=True, exist_ok=True)
    _save(got, folder)
    console.print(_summary(got, field, surface, gap))
    console.print(f"Results in {folder}: flow.npz, flow.png, flow.gif", soft_wrap=True)


def _space(name: str) -> Sphere | Ellipsoid | None:
    if name == "euclidean":
        return None
    if name == "sphere":
        return Sphere()
    if name.endswith(".npy"):
        return Ellipsoid.from_gains(
            torch.from_numpy(np.asarray(load_array(name), dtype=np.float64))
        )
    raise ValueError(
        f'--space must be "euclidean", "sphere" or a .npy file of gains, got {name!r}.'
    )


def _start(
    n: int, gaussian: bool, dim: int, space: Sphere | Ellipsoid | None, generator: torch.Generator
) -> Any:
    if gaussian:
        z = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
        return Gaussian(torch.zeros(dim, dtype=torch.float64), z @ z.mT / (z @ z.mT).trace())
    x = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    return Particles(x if space is None else space(x))


@contextmanager
def _watched(console: Console, end: float) -> Iterator[Callable[[float], bool]]:
    """A progress bar; the first Ctrl-C ends the flow after its current step, the second ends the
    program.
    """
    stopped: list[bool] = []

    def interrupt(number: int, frame: object) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(True)
        console.print("stopping after this step; Ctrl-C again to give up what was computed")

    columns = (
        TextColumn("flowing"),
        BarColumn(),
        TextColumn("t = {task.completed:.4g} of {task.total:.4g}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("flow", total=end)

        def progress(t: float) -> bool:
            bar.update(task, completed=t)
            return not stopped

        try:
            before = signal.signal(signal.SIGINT, interrupt)
        except ValueError:  # not in the main thread: Ctrl-C is someone else's
            yield progress
            return
        try:
            yield progress
        finally:
            signal.signal(signal.SIGINT, before)


def _save(got: Trajectory[Any], folder: Path) -> None:
    from attnscope.cli._flow_pictures import animation, still

    arrays: dict[str, Any] = {
        "times": got.times.numpy(),
        "status": np.array(got.status),
        "stop_time": np.array(got.stop_time),
    }
    if isinstance(got.final, Particles):
        arrays |= {"x": got.x.numpy(), "weights": got.final.weights.numpy()}
    else:
        arrays |= {"mean": got.mean.numpy(), "cov": got.cov.numpy()}
    data = io.BytesIO()
    np.savez(data, **arrays)
    write_atomically(folder / "flow.npz", data.getvalue())
    write_atomically(folder / "flow.png", still(got))
    write_atomically(folder / "flow.gif", animation(got))


def _summary(
    got: Trajectory[Any], field: Attention, space: Sphere | Ellipsoid | None, gap: float | None
) -> Table:
    table = Table(title=f"{field.name} flow", show_header=False)
    table.add_row("status", f"{got.status} at t = {got.stop_time:.6g}: {got.outcomes[0].reason}")
    first, last = got.states[0], got.final
    if isinstance(first, Particles):
        near, far = (float(state.radius()) / 20 if gap is None else gap for state in (first, last))
        shown = f"gap {gap:.3g}" if gap is not None else "gap: radius / 20"
        table.add_row(
            f"clusters ({shown})", f"{clusters(first, near).number} -> {clusters(last, far).number}"
        )
        table.add_row("radius", f"{float(first.radius()):.6g} -> {float(last.radius()):.6g}")
    else:
        table.add_row(
            "rank (widest gap)",
            f"{int(spectral_gap_rank(first.cov))} -> {int(spectral_gap_rank(last.cov))}",
        )
        table.add_row(
            "largest eigenvalue / trace",
            f"{float(anisotropy(first.cov)):.6g} -> {float(anisotropy(last.cov)):.6g}",
        )
        table.add_row("trace", f"{float(first.cov.trace()):.6g} -> {float(last.cov.trace()):.6g}")
    try:
        before, after = energy(field, first, space), energy(field, last, space)
        end = (
            f"{after.value:.6g} (change {after.value - before.value:+.3g})"
            if math.isfinite(after.value)
            else "beyond floating point"
        )
        table.add_row("energy", f"{before.value:.6g} -> {end}")
    except ValueError as reason:
        table.add_row("energy", f"none: {reason}")
    table.add_row("field evaluations", str(got.evaluations))
    if got.field_error > 0:
        table.add_row(
            "interpolated field", f"relative error up to {got.field_error:.1e} (estimate)"
        )
    return table
