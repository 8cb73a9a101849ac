"""`attnscope theorems`: the table of proved bounds."""

from __future__ import annotations

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnscope.attention import Attention
from attnscope.bounds import Theorem, theorems

COLUMNS = ("theorem", "statement", "where", "variant", "source")


def rows() -> list[tuple[str, ...]]:
    """One row per theorem found in the folders of `bounds`, in the order of COLUMNS."""
    return [
        (known.name, known.statement, known.where.__name__, variant(known), known.source)
        for known in theorems()
    ]


def variant(known: Theorem) -> str:
    """Of which attention a theorem speaks."""
    if not known.variants:
        return "-"
    names = ("any" if one is Attention else one.name for one in known.variants)
    return ", ".join(names) + {None: "", True: ", causal", False: ", no mask"}[known.causal]


def as_markdown() -> str:
    """The table as Markdown; bars inside formulas would end a cell."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows()]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines
    )


def command(
    markdown: bool = typer.Option(False, "--markdown", help="Print the table as Markdown."),
) -> None:
    """List the proved bounds: what they say, where, for which attention, and where from."""
    if markdown:
        typer.echo(as_markdown())
        return
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption="proofs: docs/theorems.md; references: docs/references.bib",
    )
    for column in COLUMNS:
        table.add_column(column, no_wrap=column in ("theorem", "where"), overflow="fold")
    for row in rows():
        table.add_row(*map(Text, row))  # brackets are no markup
    Console().print(table)
