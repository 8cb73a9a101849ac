"""`attnscope compare RUN RUN...`: models or checkpoints in one table and one figure."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from attnscope.cli._run import say, show
from attnscope.files import write_atomically
from attnscope.report import FILE
from attnscope.report.comparison import html_of_comparison
from attnscope.studies import drawing
from attnscope.studies.compare import compare
from attnscope.studies.export import as_csv


def command(
    runs: list[str] = typer.Argument(  # noqa: B008  the parser reads the default
        ..., help="Folders of runs of measure (spans too) or trace, on the same text."
    ),
    out: str = typer.Option("compare", help="Folder for the table and the figure."),
) -> None:
    """How do two models, or two checkpoints, differ?

    Puts runs of one study side by side, the first as A: constants layer by layer with their ratio,
    or shapes of the tokens depth by depth. Leaves a page, compare.csv, compare.svg and compare.png.
    Runs that cannot be compared say why.
    """
    console, found = Console(), compare(runs)
    for sheet in found.sheets():
        show(console, sheet)
    files: dict[str, bytes] = {"compare.csv": as_csv(found.lines()).encode()}
    if drawing.available():
        with drawing.style():
            figure = found.figure()
            files |= {
                "compare.svg": drawing.as_svg(figure),
                "compare.png": drawing.as_png(figure),
            }
    files[FILE] = html_of_comparison(found, files.get("compare.svg")).encode()
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(place / name, content)
    say(console, f"In {place}: " + ", ".join(files))
    say(console, f"To look at: {place / FILE}")
