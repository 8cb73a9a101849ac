"""`attnscope variants`: the table of attention variants."""

from __future__ import annotations

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnscope.attention import Attention, variants

COLUMNS = ("variant", "closed form", "normalised", "globally Lipschitz", "reference")


def rows() -> list[tuple[str, ...]]:
    """One row per variant found in the folder, in the order of COLUMNS."""
    return [
        (
            name,
            "yes" if variant.on_gaussian is not Attention.on_gaussian else "no",
            "yes" if variant.normalised else "no",
            variant.lipschitz,
            variant.reference,
        )
        for name, variant in variants().items()
    ]


def as_markdown() -> str:
    """The table as docs/variants.md shows it."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def command(
    markdown: bool = typer.Option(
        False, "--markdown", help="Print the table as Markdown, as in the docs."
    ),
) -> None:
    """List the attention variants: closed form? normalised? globally Lipschitz? where from?"""
    if markdown:
        typer.echo(as_markdown())
        return
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption="closed form: on Gaussian measures; references: docs/references.bib",
    )
    for column in COLUMNS:
        table.add_column(column, no_wrap=column != "globally Lipschitz")
    for row in rows():
        table.add_row(*map(Text, row))  # brackets are no markup
    Console().print(table)
