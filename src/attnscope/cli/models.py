"""`attnscope models`: what can be done with each architecture, found out by trying."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnscope.studies.progress import shown


def command(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(help="Hugging Face model types, such as qwen3. All known ones by default."),
    ] = None,
    markdown: bool = typer.Option(False, "--markdown", help="Print the table as Markdown."),
) -> None:
    """List the architectures: behind the door? single heads? bounds? which parts?

    Each row is made on a tiny random network of that type, so it is what this version of
    transformers does.
    """
    from attnscope.models import ARCHITECTURES, COLUMNS, table

    kinds, rows = architectures or ARCHITECTURES, []
    with shown(Console(stderr=True), len(kinds)) as bar:
        for row in table(kinds):
            rows.append(row)
            bar.next(row[0])
    if markdown:
        for line in (COLUMNS, ("---",) * len(COLUMNS), *rows):
            typer.echo("| " + " | ".join(line) + " |")
        return
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        made.add_column(column)
    for row in rows:
        made.add_row(*map(Text, row))
    Console().print(made)
