"""`attnscope recover DIR`: what is whole in a damaged folder of results."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from attnscope.cli._run import say
from attnscope.studies.recovery import recover


def command(folder: str = typer.Argument(..., help="Folder whose results are damaged.")) -> None:
    """Keep what is whole of damaged results; the damaged file stays beside it.

    Every cell that comes back is checked against the hash that was stored with it. The command that
    made the results then computes what is missing.
    """
    found = recover(Path(folder))
    lost = f", {found.lost} were found in part only" if found.lost else ""
    say(
        Console(),
        f"{found.cells} cells are whole{lost}. The damaged file is now {found.kept}; the command"
        " that made these results computes what is missing.",
    )
