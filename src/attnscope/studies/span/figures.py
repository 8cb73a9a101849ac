"""The picture of a span: its pieces beside the whole, and the tokens of its top direction."""

from __future__ import annotations

from typing import Any

from attnscope.studies.drawing import BLUE, GREY, RED, heading, new_figure
from attnscope.studies.span.rows import Carrier, PieceRow, SpanRow
from attnscope.studies.span.summary import here
from attnscope.studies.table import Table


def figures(table: Table) -> dict[str, Any]:
    """The longest length, first sequence."""
    last: SpanRow = max(table.rows, key=lambda row: (row.n, -row.sequence))
    pieces: list[PieceRow] = [row for row in table["pieces"] if here(row, last)]
    carriers: list[Carrier] = [row for row in table["directions"] if here(row, last)]
    figure = new_figure(9.2 if pieces else 5.6, 3.6)
    panels = figure.subplots(1, 2 if pieces else 1, squeeze=False)[0]
    if pieces:
        _pieces(panels[0], pieces, last)
    _tokens(panels[-1], carriers)
    about = f"from {last.start} to {last.stop}"
    figure.suptitle(heading(last.model, last.text, None, last.n, about), fontsize=11)
    return {"span": figure}


def _pieces(ax: Any, pieces: list[PieceRow], last: SpanRow) -> None:
    names = [f"{row.start}-{row.stop}" for row in pieces]
    ax.semilogy(range(len(pieces)), [row.lower for row in pieces], "o", color=BLUE, label="pieces")
    ax.axhline(last.lower, color=RED, label="the span")
    if last.product is not None:
        ax.axhline(last.product, color=GREY, linestyle="--", label="product of the pieces")
    ax.set_xticks(range(len(names)), names, rotation=60 if len(names) > 6 else 0, fontsize=7)
    ax.set(xlabel="piece", ylabel="largest singular value")
    ax.legend(fontsize=7)


def _tokens(ax: Any, carriers: list[Carrier]) -> None:
    places = [row.token for row in carriers]
    ax.vlines(places, 0, [row.carried for row in carriers], color=BLUE, label="moves in")
    if all(row.received is not None for row in carriers):
        below = [-(row.received or 0.0) for row in carriers]
        ax.vlines(places, below, 0, color=RED, label="moves out (downwards)")
    ax.axhline(0, color="black", linewidth=0.6)
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    ax.set(xlabel="token", ylabel="share of the top direction")
    ax.legend(fontsize=7)
