"""`attnscope explore`: a page to play with the Transformer PDE."""

from __future__ import annotations

from pathlib import Path

import typer

from attnscope.files import write_atomically
from attnscope.report import explorer

FILE = "explorer.html"


def command(
    out: str = typer.Option(FILE, help="File to write, or a folder, which gets an explorer.html."),
    preset: str | None = typer.Option(
        None, help="Starting point that is shown first; an unknown name lists them."
    ),
) -> None:
    """Write a page on which tokens can be dragged, matrices turned and depth run forth and back.

    One HTML file that opens in any browser and asks no network for anything.
    """
    made = explorer.page(preset)
    path = Path(out) / FILE if Path(out).is_dir() else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, made)
    typer.echo(f"Open {path} in a browser.")
