"""`attnscope measure MODEL`: local Lipschitz constants of a model on a text."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from attnscope.bounds import Bounds
from attnscope.files import write_atomically
from attnscope.measure.fit import Fit
from attnscope.measure.store import Store, run_record
from attnscope.measure.summary import LayerSummary, proved_bounds, summarise
from attnscope.measure.sweep import Plan, Row, sweep

LATE = ("bounds.json", "heads-by-layers.png")
"""Files that not every run leaves."""


def command(
    model: str = typer.Argument(
        ..., help='"minilm", "gpt2-random", "bert-random", a folder, or a Hugging Face id.'
    ),
    text: str = typer.Option(
        "python-docs",
        help='A text file, "python-docs" (ships with Python) or "alice" (downloaded once).',
    ),
    layers: str = typer.Option(
        "all", help='Which layers: "all", or numbers and ranges such as 0,6 or 0:12:2.'
    ),
    heads: str = typer.Option(
        "longest",
        help='Single heads too: "longest" (at the longest length), "all", "none", or numbers.',
    ),
    lengths: str = typer.Option(
        "2:100:2", help="Sequence lengths: numbers and start:stop:step ranges (stop not included)."
    ),
    samples: int = typer.Option(
        10, min=1, help="Sequences per length: consecutive pieces of the text."
    ),
    part: str = typer.Option(
        "attention", help="What to differentiate: attention, norm+attention, residual or block."
    ),
    tol: float = typer.Option(
        1e-6, help="Relative accuracy of each constant (width of the bracket with --certify)."
    ),
    certify: float | None = typer.Option(
        None,
        help="Also give upper bounds that all hold together but with this probability, e.g. 1e-6.",
    ),
    released_estimator: bool = typer.Option(
        False,
        "--released-estimator",
        help="Also report sqrt(||J^T f(X)||), as the papers' scripts did.",
    ),
    bounds: bool = typer.Option(True, help="Evaluate every proved bound at the longest length."),
    device: str = typer.Option("cpu", help="Where to compute: cpu, cuda, mps."),
    dtype: str = typer.Option(
        "float32", help="float32 (lower bounds are finished in float64) or float64."
    ),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    seed: int = typer.Option(0, min=0, help="Seed of the random start vectors."),
    out: str | None = typer.Option(None, help="Folder for results (default: measure-MODEL)."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace results that are already in the folder."
    ),
) -> None:
    """How smooth is the attention of this model on this text?

    Measures the local Lipschitz constant (the largest singular value of the Jacobian) of each layer
    at sequences of growing length, next to every proved bound. Leaves a table, figures,
    results.jsonl and results.csv. Ctrl-C keeps what was measured.
    """
    options = {name: value for name, value in locals().items() if name != "model"} | {
        "model": model
    }
    console = Console()
    if threads is not None:
        torch.set_num_threads(threads)
    plan = _plan(console, options)
    folder = Path(out or "measure-" + re.sub(r"[^\w.-]+", "-", Path(model).name))
    begun = time.monotonic()
    found: dict[int, Bounds] = {}
    with Store(folder, overwrite) as store:
        finished = _measure(console, plan, store, found, bounds)
    if not store.rows:
        raise KeyboardInterrupt
    write_atomically(folder / "run.json", run_record(options, time.monotonic() - begun, finished))
    for name in LATE:
        (folder / name).unlink(missing_ok=True)  # of a run that is being replaced
    if found:
        write_atomically(folder / "bounds.json", _bounds_record(found))
    _show(console, plan, store.rows, found, folder)
    if not finished:
        console.print("Stopped early: the rows measured so far are kept.")
        raise typer.Exit(130)


def _plan(console: Console, options: dict[str, Any]) -> Plan:
    from attnscope.data.texts import text as read_text
    from attnscope.models import PARTS, load

    if options["part"] not in PARTS:
        raise ValueError(f"--part must be one of {', '.join(PARTS)}, got {options['part']!r}.")
    kinds = {"float32": torch.float32, "float64": torch.float64}
    if options["dtype"] not in kinds:
        raise ValueError(f"--dtype must be float32 or float64, got {options['dtype']!r}.")
    lengths = numbers("--lengths", options["lengths"])
    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Loading {options['model']} ..."),
    ):
        warnings.simplefilter("always")
        text = read_text(options["text"])
        model = load(options["model"], device=options["device"], dtype=kinds[options["dtype"]])
        ids = model.encode(text)
        coarse = (options["part"] == "block" or not model.rebuilt) and model.dtype != torch.float64
        double = (
            load(options["model"], device=options["device"], dtype=torch.float64)
            if coarse
            else None
        )
    for notice in {str(notice.message) for notice in notices}:
        console.print(f"Note: {notice}", markup=False, highlight=False, emoji=False)
    if not model.rebuilt and not notices:
        console.print(
            "Note: the heads of this model cannot be rebuilt, so single heads and proved bounds are"
            " left out."
        )
    heads = options["heads"]
    return Plan(
        model=model,
        ids=ids,
        layers=(
            range(model.layers)
            if options["layers"] == "all"
            else numbers("--layers", options["layers"])
        ),
        lengths=lengths,
        samples=options["samples"],
        part=options["part"],
        heads=heads if heads in ("all", "none", "longest") else numbers("--heads", heads),
        tol=options["tol"],
        failure_probability=options["certify"],
        released=options["released_estimator"],
        seed=options["seed"],
        double=double,
    )


def numbers(name: str, given: str) -> list[int]:
    """Whole numbers and start:stop:step ranges, separated by commas; sorted, each once."""
    found: set[int] = set()
    for piece in given.split(","):
        try:
            ends = [int(end) for end in piece.split(":")]
        except ValueError:
            raise ValueError(
                f"{name} takes whole numbers and start:stop:step ranges such as 2:100:2 or 0,6, got"
                f" {given!r}."
            ) from None
        if len(ends) > 3 or (len(ends) == 3 and ends[2] < 1):
            raise ValueError(
                f"{name} takes ranges start:stop:step with a step of at least 1, got {piece!r}."
            )
        found |= {ends[0]} if len(ends) == 1 else set(range(*ends))
    if not found:
        raise ValueError(f"{name} {given!r} holds no number: the stop of a range is not included.")
    return sorted(found)


def _measure(
    console: Console, plan: Plan, store: Store, found: dict[int, Bounds], bounds: bool
) -> bool:
    """Run the sweep and the bounds under one progress bar; False when the user stopped it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(
            "measuring", total=plan.calls + (len(plan.layers) if bounds else 0)
        )
        try:
            for rows in sweep(plan):
                store.add(rows)
                row = rows[0]
                head = "" if row.head is None else f" head {row.head}"
                progress.update(
                    task, advance=1, description=f"n = {row.n}, layer {row.layer}{head}"
                )
            for layer, proved in proved_bounds(plan) if bounds else ():
                found[layer] = proved
                progress.update(task, advance=1, description=f"bounds, layer {layer}")
        except KeyboardInterrupt:
            return False
        progress.update(task, completed=progress.tasks[0].total, description="measured")
    return True


def _bounds_record(found: dict[int, Bounds]) -> str:
    """Every bound; a value that is infinite in floating point is null, as JSON knows no
    infinity.
    """
    record = [
        {"layer": layer, **vars(bound)} for layer, bounds in found.items() for bound in bounds
    ]
    finite = [
        row | {"value": row["value"] if math.isfinite(row["value"]) else None} for row in record
    ]
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


def _show(
    console: Console, plan: Plan, rows: list[Row], found: dict[int, Bounds], folder: Path
) -> None:
    summaries = summarise(rows)
    sequences = f"{plan.samples} sequence{'s' * (plan.samples > 1)} per length"
    name = Path(plan.model.name).name
    console.print(
        f"{name}: local Lipschitz constant of {plan.part}, {sequences}",
        markup=False,
        highlight=False,
        emoji=False,
    )
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for name in ("layer", "n", "sigma", "exponent in n", "R", "proved bound", "open"):
        table.add_column(name, justify="right", no_wrap=True)
    released, certified = (
        any(line.released_fit for line in summaries),
        any(line.width is not None for line in summaries),
    )
    if certified:
        table.add_column("bracket", justify="right", no_wrap=True)
    for line in summaries:
        table.add_row(
            *_cells(line, found.get(line.layer)),
            *[f"+{line.width:.0e}" if line.width is not None else ""] * certified,
        )
    console.print(table)
    if released:
        _show_released(console, summaries)
    console.print(
        "sigma: a lower bound within the tolerance, median over the sequences; exponent: an"
        " estimate with its 95 % bootstrap interval; open: problems that did not converge."
        + " bracket: widest relative gap to the probable upper bound."
        * certified,
        markup=False,
        highlight=False,
    )
    try:
        from attnscope.measure.figures import draw_all

        pictures = [path.name for path in draw_all(rows, folder)]
    except ImportError:
        pictures = []
        console.print('Figures need matplotlib: pip install "attnscope[plot]".', markup=False)
    files = ["results.jsonl", "results.csv", "run.json", *["bounds.json"] * bool(found), *pictures]
    console.print(f"In {folder}: " + ", ".join(files), markup=False, highlight=False, emoji=False)


def _show_released(console: Console, summaries: list[LayerSummary]) -> None:
    console.print(
        "The quantity of the papers' scripts, sqrt(||J^T f(X)||):", markup=False, highlight=False
    )
    table = Table("layer", "exponent in n", box=box.SIMPLE_HEAD, padding=0)
    for line in summaries:
        table.add_row(str(line.layer), _exponent(line.released_fit))
    console.print(table)


def _cells(line: LayerSummary, bounds: Bounds | None) -> list[str]:
    tightest = bounds.tightest if bounds else None
    loose = (
        f" ({tightest.value / line.first:.1f}x)" if tightest is not None and line.first > 0 else ""
    )
    return [
        str(line.layer),
        str(line.n),
        f"{line.median:.4g}",
        _exponent(line.fit),
        f"{line.radius:.3g}",
        "" if tightest is None else f"{tightest.value:.3g} {tightest.name}{loose}",
        str(line.unconverged),
    ]


def _exponent(fit: Fit | None) -> str:
    return "" if fit is None else f"{fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f})"
