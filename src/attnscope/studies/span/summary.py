"""What a run on a span says: its constant, its pieces, who carries its top direction."""

from __future__ import annotations

from pathlib import Path

from attnscope.studies.span.rows import Carrier, LogitRow, PieceRow, SpanRow, ValueRow
from attnscope.studies.study import Sheet
from attnscope.studies.table import Table

SHOWN = 6
"""Tokens, logits and singular values in a line."""
LONGEST = 14
"""Letters of a token in a table."""


def sheets(table: Table) -> list[Sheet]:
    """The spans, then the pieces and the carriers of the first sequence of the longest length."""
    rows: list[SpanRow] = table.rows
    last = max(rows, key=lambda row: (row.n, -row.sequence))
    made = [_spans(rows, last)]
    values: list[ValueRow] = [row for row in table["values"] if here(row, last)]
    if values:
        made.append(_largest(values))
    pieces: list[PieceRow] = [row for row in table["pieces"] if here(row, last)]
    if pieces:
        made.append(_pieces(pieces, last))
    carriers: list[Carrier] = [row for row in table["directions"] if here(row, last)]
    made.append(_carriers(carriers, last))
    logits: list[LogitRow] = [row for row in table["logits"] if here(row, last)]
    if logits:
        made.append(_logits(logits))
    return made


def here(row: Carrier | LogitRow | PieceRow | ValueRow, last: SpanRow) -> bool:
    """Whether a row is about the sequence that is shown."""
    return (row.n, row.sequence) == (last.n, last.sequence)


def _spans(rows: list[SpanRow], last: SpanRow) -> Sheet:
    certified = any(row.upper is not None for row in rows)
    lines: list[tuple[str, ...]] = [
        (
            str(row.n),
            str(row.sequence),
            f"{row.lower:.5g}",
            "" if row.upper is None else f"{row.upper:.5g}",
            "" if row.product is None else f"{row.product:.3g}",
            "" if row.product is None else f"{row.product / row.lower:.3g}x",
            "" if row.largest is None else f"{row.largest:.4g}",
            row.largest_piece or "",
            "" if row.converged else "open",
        )
        for row in rows
    ]
    kind = "probable upper bound" if certified else "estimate"
    return Sheet(
        f"{Path(last.model).name}: from {last.start} to {last.stop}",
        ("n", "seq", "sigma >=", "<=", "product", "loose", "largest", "piece", ""),
        lines,
        "sigma: largest singular value of the span's Jacobian, between a lower bound and"
        + (" a probable upper one;" if certified else " nothing: its accuracy is an estimate;")
        + f" product: of the constants of its pieces, {kind}, and how loose; largest: of them.",
    )


def _largest(values: list[ValueRow]) -> Sheet:
    return Sheet(
        "The largest singular values, each a lower bound of its own",
        tuple(str(row.number) for row in values[:SHOWN]),
        [tuple(f"{row.value:.5g}" for row in values[:SHOWN])],
    )


def _pieces(pieces: list[PieceRow], last: SpanRow) -> Sheet:
    lines: list[tuple[str, ...]] = [
        (
            f"{row.start} to {row.stop}",
            f"{row.lower:.5g}",
            "" if row.upper is None else f"{row.upper:.5g}",
            "" if row.converged else "open",
        )
        for row in pieces
    ]
    return Sheet(f"Its pieces at n = {last.n}", ("piece", "sigma >=", "<=", ""), lines)


def _carriers(carriers: list[Carrier], last: SpanRow) -> Sheet:
    most = sorted(carriers, key=lambda row: -row.carried)[:SHOWN]
    lines: list[tuple[str, ...]] = [
        (
            str(row.token),
            repr(row.text)[:LONGEST],
            f"{row.carried:.3f}",
            "" if row.received is None else f"{row.received:.3f}",
        )
        for row in most
    ]
    return Sheet(
        f"Who carries the top direction at n = {last.n}",
        ("token", "text", "moves in", "moves out"),
        lines,
        "shares of the squared singular vectors, of the tokens that move most.",
    )


def _logits(logits: list[LogitRow]) -> Sheet:
    return Sheet(
        "Which logits of the next token it moves",
        tuple(repr(row.text)[:LONGEST] for row in logits[:SHOWN]),
        [tuple(f"{row.change:+.3f}" for row in logits[:SHOWN])],
        "entries of the left singular vector; their common sign means nothing.",
    )
