"""`attnscope sweep STUDY.toml`: many models, parts and texts, on every core or a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from attnscope.cli._engine import CACHE, ENGINE, SCHEDULER, WORKERS, cache_of, engine_of
from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of, say, spoken
from attnscope.cli._study_file import read_study
from attnscope.studies import Cell, Workbench
from attnscope.studies.driver import planned
from attnscope.studies.engines import Engine, Local
from attnscope.studies.sweep import Sweep, SweepConfig, Unavailable
from attnscope.studies.sweep.estimate import expected_seconds


def command(
    study: str = typer.Argument(..., help='A TOML file: at least models = ["minilm"].'),
    engine: str = typer.Option("local", help=ENGINE),
    workers: int | None = typer.Option(None, min=1, help=WORKERS),
    scheduler: str | None = typer.Option(None, help=SCHEDULER),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say how many cells there are and how long they may take."
    ),
    retry: str | None = typer.Option(None, help='"failed": try cells again that failed before.'),
    cache: str | None = typer.Option(None, help=CACHE),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: sweep-STUDY.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """Measure every model on every text, in every part, at every length that a study names.

    Cells run on every core, or on the workers of a Dask scheduler. A cell that fails is kept with
    its reason and the others go on; what is known is not computed again. Leaves tables, figures and
    a page. Ctrl-C keeps what was measured, and the same command again goes on.
    """
    options = dict(locals())
    if retry not in (None, "failed"):
        raise ValueError(f"--retry takes the word failed, got {retry!r}.")
    path, console, workbench = Path(study), Console(), Workbench()
    config = read_study(path)
    if dry_run:
        _say_plan(console, config, _planned(console, config, workbench), workbench, None)
        return
    runner = engine_of(engine, workers, scheduler)
    cells = _planned(console, config, workbench)
    _say_plan(console, config, cells, workbench, runner)
    folder = folder_of(out, "sweep", path.stem)
    outcome = execute(
        Sweep(),
        config,
        folder=folder,
        overwrite=overwrite,
        options=options,
        workbench=workbench,
        console=console,
        engine=runner,
        cache=cache_of(cache),
        keep_going=True,
        retry=retry == "failed",
        cells=cells,
    )
    if failures := outcome.failures:
        count = (
            "One cell failed," if len(failures) == 1 else f"{len(failures)} cells failed, the first"
        )
        say(
            console,
            f"{count} because {failures[0].reason.rstrip('.')}. `attnscope status {folder}` has all"
            " reasons, --retry failed tries them again.",
        )
    if not outcome.finished or outcome.failures:
        raise typer.Exit(outcome.exit_code or 1)


def _planned(console: Console, config: SweepConfig, workbench: Workbench) -> list[Cell]:
    """The cells, with every model loaded once; what a reader should know is printed."""
    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Looking at {len(config.models)} models ..."),
    ):
        warnings.simplefilter("always")
        cells = planned(Sweep(), config, workbench)
    for notice in dict.fromkeys(str(notice.message) for notice in notices):
        say(console, f"Note: {notice}")
    return cells


def _say_plan(
    console: Console,
    config: SweepConfig,
    cells: Sequence[Cell],
    workbench: Workbench,
    engine: Engine | None,
) -> None:
    """How much there is to do."""
    counts: dict[str, Any] = {
        "model": len(config.models),
        "map": len(config.parts) + len(config.spans),
        "text": len(config.texts),
        "length": len(config.lengths),
        "sample": config.samples,
    }
    product = " x ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    say(console, f"{len(cells)} cells: {product}.")
    for cell in cells:
        if isinstance(cell, Unavailable):
            say(console, f"Cannot be measured: {cell.model}, {cell.part}: {cell.reason}")
    workers = engine.workers if isinstance(engine, Local) else 1
    seconds = expected_seconds(cells, workbench)
    shared = f", {spoken(seconds / workers)} on {workers} workers" * (workers > 1)
    say(console, f"A rough estimate: {spoken(seconds)} of one core{shared}.")
