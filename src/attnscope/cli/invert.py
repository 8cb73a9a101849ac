"""`attnscope invert`: send tokens through a stack of invertible attention layers and find them
again.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from attnscope.files import write_atomically
from attnscope.measure.store import run_record
from attnscope.nets.invertible import Inverse, Invertible
from attnscope.validation import check_positive

STACK: dict[str, Any] = {
    "attention": "softmax",
    "layers": 24,
    "tokens": 16,
    "dim": 8,
    "heads": 2,
    "radius": 1.0,
    "contraction": 0.9,
    "causal": False,
    "squash": False,
    "dtype": "float64",
}
"""What a stack is made of, and what it is when nothing else is said."""
KINDS = {"float32": torch.float32, "float64": torch.float64}


class Trip(NamedTuple):
    """What inverting with this many iterations per layer leaves: Frobenius norms over all
    tokens.
    """

    iterations: int
    error: float
    bound: float
    rounding: float


def command(
    attention: str | None = typer.Option(
        None, help="softmax (default), sigmoid or l2 (tied, on the whole space)."
    ),
    layers: int | None = typer.Option(None, min=1, help="Number of layers (default 24)."),
    tokens: int | None = typer.Option(None, min=1, help="Number of tokens (default 16)."),
    dim: int | None = typer.Option(None, min=1, help="Dimension of the tokens (default 8)."),
    heads: int | None = typer.Option(
        None, min=1, help="Heads per layer; they divide the dimension (default 2)."
    ),
    radius: float | None = typer.Option(
        None, help="Radius of the ball that tokens are drawn from (default 1)."
    ),
    contraction: float | None = typer.Option(
        None, help="Proved Lipschitz constant of every attention, at most 0.99 (default 0.9)."
    ),
    causal: bool | None = typer.Option(
        None, "--causal", help="Tokens read those before them only."
    ),
    squash: bool | None = typer.Option(
        None,
        "--squash",
        help="Attention reads tokens squashed into the ball, so that they may lie anywhere.",
    ),
    dtype: str | None = typer.Option(None, help="float64 (default) or float32."),
    file: str | None = typer.Option(
        None, help="A stack that `Invertible.save` wrote, instead of a random one."
    ),
    most: int = typer.Option(1000, min=1, help="Most iterations per layer to try."),
    seed: int = typer.Option(0, min=0, help="Seed of tokens and weights."),
    out: str = typer.Option("invert", help="Folder for results."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace results that are already in the folder."
    ),
) -> None:
    """Can attention layers be undone?

    Sends tokens through y = x + f(x), every f scaled to a proved contraction, and finds them again
    by fixed-point iteration: the error against the number of iterations, next to its proved bound.
    Leaves invert.npz, invert.png, network.npz and run.json. Ctrl-C keeps what was computed.
    """
    begun, folder = time.monotonic(), Path(out)
    if (folder / "invert.npz").exists() and not overwrite:
        raise ValueError(
            f"{folder / 'invert.npz'} is already there. Pass --overwrite to replace it, or another"
            " --out."
        )
    given = {name: value for name, value in locals().items() if name in STACK}
    generator = torch.Generator().manual_seed(seed)
    network = _network(given, file, generator)
    x = _tokens(network, STACK["radius"] if radius is None else radius, generator)
    console, done, finished = Console(), list[tuple[Trip, Inverse]](), True
    with torch.no_grad():
        y = network(x)
        try:
            for trip in _trips(console, network, x, y, most):
                done.append(trip)
        except KeyboardInterrupt:
            if not done:
                raise
            finished = False
    trips, found = [trip for trip, _ in done], done[-1][1]
    folder.mkdir(parents=True, exist_ok=True)
    options = given | {"file": file, "most": most, "seed": seed}
    _save(
        folder,
        network,
        trips,
        {"x": x, "y": y, "found": found.x},
        run_record(options, time.monotonic() - begun, finished),
    )
    console.print(_table(network, trips, found))
    console.print(
        f"Results in {folder}: invert.npz, invert.png, network.npz, run.json", soft_wrap=True
    )
    if not finished:
        console.print("Stopped early: what was computed is kept.")
        raise typer.Exit(130)


def _network(given: dict[str, Any], file: str | None, generator: torch.Generator) -> Invertible:
    if file is not None:
        extra = [
            f"--{name}" for name, value in given.items() if value is not None and name != "radius"
        ]
        if extra:
            raise ValueError(
                f"--file already says what the stack is: leave out {', '.join(extra)}."
            )
        network = Invertible.load(file)
        if (
            given["radius"] is not None
            and network.radius is not None
            and not network.squash
            and given["radius"] > network.radius
        ):
            raise ValueError(
                f"--radius must be at most that of the stack, {network.radius:g}, got"
                f" {given['radius']:g}."
            )
        return network
    chosen = {
        name: default if given[name] is None else given[name] for name, default in STACK.items()
    }
    if chosen["dtype"] not in KINDS:
        raise ValueError(f"--dtype must be float32 or float64, got {chosen['dtype']!r}.")
    variant, depth = chosen.pop("attention"), chosen.pop("layers")
    return Invertible.random(
        variant, depth, **chosen | {"dtype": KINDS[chosen["dtype"]]}, generator=generator
    )


def _tokens(network: Invertible, radius: float, generator: torch.Generator) -> Tensor:
    """Uniform in the ball, moved half-way to one side so that attention has a mean to move them
    by.
    """
    check_positive("--radius", radius)
    heads = network.attentions()[0].heads
    if network.radius is not None and not network.squash:
        radius = min(radius, network.radius)
    z = torch.randn(network.tokens, heads.dim, dtype=torch.float64, generator=generator)
    length = torch.rand(network.tokens, 1, dtype=torch.float64, generator=generator) ** (
        1 / heads.dim
    )
    ball = length * z / torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    side = torch.nn.functional.one_hot(torch.zeros(1, dtype=torch.long), heads.dim)
    return (radius / 2 * (ball + side)).to(heads.query)


def _trips(
    console: Console, network: Invertible, x: Tensor, y: Tensor, most: int
) -> Iterator[tuple[Trip, Inverse]]:
    """Inverses with 1, 2, ... iterations per layer until all layers have converged."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("inverting")
        for count in range(1, most + 1):
            found = network.inverse(y, most=count)
            error = float(torch.linalg.vector_norm((found.x - x).to(torch.float64)))
            bar.update(task, description=f"{count} iterations per layer: error {error:.2e}")
            yield Trip(count, error, float(found.error_bound), float(found.rounding)), found
            if found.converged:
                return


def _save(
    folder: Path, network: Invertible, trips: list[Trip], tokens: dict[str, Tensor], record: str
) -> None:
    from attnscope.cli._invert_picture import picture

    columns = {
        name: np.array(values)
        for name, values in zip(Trip._fields, zip(*trips, strict=True), strict=True)
    }
    content = io.BytesIO()
    arrays: dict[str, Any] = columns | {name: part.numpy() for name, part in tokens.items()}
    np.savez(content, **arrays)
    network.save(folder / "network.npz")
    write_atomically(folder / "invert.npz", content.getvalue())
    write_atomically(folder / "invert.png", picture(trips, network))
    write_atomically(folder / "run.json", record)


def _table(network: Invertible, trips: list[Trip], found: Inverse) -> Table:
    steps, last = network.steps(), trips[-1]
    name = steps[0].attention.name
    table = Table(title=f"{len(steps)} layers of {name} attention, {network.tokens} tokens")
    for heading in ("iterations per layer", "error", "proved bound", "rounding (estimate)"):
        table.add_column(heading, justify="right")
    shown = {trips[place] for place in range(0, len(trips), max(1, len(trips) // 8))} | {last}
    for trip in sorted(shown):
        table.add_row(
            str(trip.iterations), f"{trip.error:.3e}", f"{trip.bound:.3e}", f"{trip.rounding:.1e}"
        )
    first, final = steps[0].ball, steps[-1].ball
    where = (
        "inputs anywhere"
        if first is None or final is None
        else f"inputs in balls of radius {first:.3g} to {final:.3g}"
    )
    state = "converged" if found.converged else "not converged"
    table.caption = (
        f"{state}; proved Lipschitz constants up to {max(step.constant for step in steps):.3g};"
        f" {where}"
    )
    return table
