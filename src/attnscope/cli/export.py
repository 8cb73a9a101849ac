"""`attnscope export DIR`: the rows of a run as CSV, JSON lines or parquet."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from attnscope.cli._options import numbers
from attnscope.cli._run import say
from attnscope.studies.export import FORMATS, Filter, export


def command(
    folder: str = typer.Argument(..., help="Folder of results, of a run that is over or not."),
    form: str = typer.Option("csv", "--format", help="csv, jsonl or parquet."),
    model: str | None = typer.Option(None, help="Only rows of this model."),
    layer: str | None = typer.Option(None, help="Only these layers, such as 0,6 or 0:12:2."),
    length: str | None = typer.Option(None, help="Only these lengths, such as 8,16 or 8:65:8."),
) -> None:
    """Write the rows of a run as CSV, JSON lines or parquet, also while it goes on or after it was
    killed.

    Each table becomes one file in the folder; of some rows only, its name ends with -some. JSON
    knows no NaN and no infinity: they are null there, and nan and inf in CSV.
    """
    known = {name: name for name in FORMATS}
    if form not in known:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, got {form!r}.")
    chosen = Filter(
        model,
        None if layer is None else tuple(numbers("--layer", layer)),
        None if length is None else tuple(numbers("--length", length)),
    )
    files = export(Path(folder), known[form], chosen)
    none = "no rows yet" if chosen == Filter() else "no such rows"
    say(Console(), f"In {folder}: " + (", ".join(files) or none))
