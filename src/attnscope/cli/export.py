"""`attnscope export DIR`: the rows of a run as CSV or JSON lines."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from attnscope.cli._run import say
from attnscope.studies.export import FORMATS, export


def command(
    folder: str = typer.Argument(..., help="Folder of results, of a run that is over or not."),
    form: str = typer.Option("csv", "--format", help="csv or jsonl."),
) -> None:
    """Write the rows of a run as CSV or JSON lines, also while it goes on or after it was killed.

    Each table becomes one file in the folder. JSON knows no NaN and no infinity: they are null
    there, and nan and inf in CSV.
    """
    known = {name: name for name in FORMATS}
    if form not in known:
        raise ValueError(f"--format must be {' or '.join(FORMATS)}, got {form!r}.")
    files = export(Path(folder), known[form])
    say(Console(), f"In {folder}: " + (", ".join(files) or "no rows yet"))
