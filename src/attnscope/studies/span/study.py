"""`Spans`: how sensitive is this model between two places, and what do its blocks say of it?"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar, cast

from jaxtyping import Int
from torch import Tensor

from attnscope.data.texts import windows
from attnscope.models import NAMED_PLACES, Model, Place, at_stream, pieces_of, streams
from attnscope.operators import LinearOperator, SpectralNorm, singular_values, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.measure.directions import shares
from attnscope.studies.measure.inputs import text_ids
from attnscope.studies.span import figures as drawn
from attnscope.studies.span.rows import (
    Carrier,
    LogitRow,
    PieceRow,
    SpanCell,
    SpanConfig,
    SpanRow,
    ValueRow,
)
from attnscope.studies.span.summary import sheets
from attnscope.studies.study import Sheet, Study
from attnscope.studies.table import Table
from attnscope.studies.workbench import DTYPES, Workbench, check_hash, hash_ids
from attnscope.validation import check_positive

MOST_LOGITS = 10
"""Of the next token, that are named."""


class Spans(Study):
    """The constant of a span beside the product of its blocks' constants and the largest one."""

    name = "span"
    Config = SpanConfig
    fast = SpanConfig(lengths=(32,), stop="2")
    tables: ClassVar[dict[str, type]] = {
        "results": SpanRow,
        "pieces": PieceRow,
        "values": ValueRow,
        "directions": Carrier,
        "logits": LogitRow,
    }

    def cells(self, config: SpanConfig, workbench: Workbench) -> Iterator[Cell]:
        _check_names(config)
        model = workbench.model(config.model, config.device, config.dtype)
        start, stop = place(config.start), place(config.stop)
        model.span(start, stop)  # says what is wrong with it
        ids = text_ids(workbench, model, config.text)
        if max(config.lengths) > model.positions:
            raise ValueError(
                f"{model.name} takes at most {model.positions} tokens, got a length of"
                f" {max(config.lengths)}."
            )
        windows(ids, max(config.lengths), config.samples)
        total = 0.0 if config.failure_probability is None else config.failure_probability
        for n in config.lengths:
            for sequence in range(config.samples):
                yield SpanCell(
                    model=config.model,
                    weights=workbench.weights(config.model, config.device, config.dtype),
                    device=config.device,
                    dtype=config.dtype,
                    text=config.text,
                    tokens=hash_ids(ids),
                    start=config.start,
                    stop=config.stop,
                    n=n,
                    sequence=sequence,
                    top=config.top,
                    pieces=config.pieces,
                    tol=config.tol,
                    certified=config.failure_probability is not None,
                    seed=config.seed,
                    failure_probability=total / (len(config.lengths) * config.samples),
                )

    def run(self, cell: SpanCell, workbench: Workbench) -> list[Any]:
        model = workbench.model(cell.model, cell.device, cell.dtype, cell.weights)
        ids = text_ids(workbench, model, cell.text)
        check_hash(f"the tokens of {cell.text!r}", hash_ids(ids), cell.tokens)
        ids = windows(ids, cell.n, cell.sequence + 1)[cell.sequence]
        start, stop = place(cell.start), place(cell.stop)
        parts = pieces_of(model, start, stop) if cell.pieces else []
        alone = len(parts) == 1  # a span of one block is its only piece
        parts = [] if alone else parts
        share = cell.failure_probability / (1 + len(parts)) if cell.certified else None
        begins = list(dict.fromkeys([start, *(first for first, _ in parts)]))
        entering = dict(zip(begins, streams(model, ids, begins), strict=True))

        def solved(first: Place, last: Place) -> tuple[LinearOperator, SpectralNorm]:
            op = at_stream(model, first, last, ids[None], entering[first])
            found = spectral_norm(op, cell.tol, failure_probability=share, seed=cell.seed)
            return op, found

        workbench.check(0.0, f"n = {cell.n}, {cell.start} to {cell.stop}")
        op, whole = solved(start, stop)
        rows: list[Any] = [*_values(cell, op), *_carriers(cell, model, ids, whole)]
        made = []
        for number, (first, last) in enumerate(parts, start=1):
            workbench.check(number / (1 + len(parts)), f"n = {cell.n}, {first} to {last}")
            found = solved(first, last)[1]
            made.append(
                PieceRow(str(first), str(last), cell.n, cell.sequence, *bracket_columns(found))
            )
        return [_row(cell, whole, made), *made, *rows]

    def supplies(self, cell: SpanCell, workbench: Workbench) -> dict[Hashable, Any]:
        """The ids of the text: a worker elsewhere needs neither it nor a tokenizer."""
        name = ("ids", cell.model, cell.text)
        ids = workbench.found(name)
        return {} if ids is None else {name: ids}

    def figures(self, table: Table) -> dict[str, Any]:
        return drawn.figures(table) if len(table) else {}

    def summary(self, table: Table) -> list[Sheet]:
        return sheets(table) if len(table) else []

    def remarks(self, table: Table) -> list[str]:
        left = sum(not row.converged for row in (*table.rows, *table["pieces"]))
        return [f"{left} brackets did not close to the tolerance."] if left else []


def place(name: str) -> Place:
    """A place by its name: digits are a layer."""
    if name.isascii() and name.isdecimal():
        return int(name)
    if name not in NAMED_PLACES:
        raise ValueError(f"a place is a layer number or {', '.join(NAMED_PLACES)}, got {name!r}.")
    return cast(Place, name)


def bracket_columns(found: SpectralNorm) -> tuple[float, float | None, float, int, bool]:
    """lower, upper, residual, pairs, converged of one problem."""
    upper = None if found.upper is None or math.isnan(found.upper) else float(found.upper)
    return (
        float(found.lower),
        upper,
        float(found.residual),
        int(found.pairs),
        bool(found.converged),
    )


def _row(cell: SpanCell, whole: SpectralNorm, pieces: list[PieceRow]) -> SpanRow:
    known = [row.upper if cell.certified else row.lower for row in pieces]
    bounds = [value for value in known if value is not None]
    product = math.prod(bounds) if pieces and len(bounds) == len(pieces) else None
    widest = max(pieces, key=lambda row: row.lower, default=None)
    return SpanRow(
        cell.model,
        cell.text,
        cell.start,
        cell.stop,
        cell.n,
        cell.sequence,
        *bracket_columns(whole),
        product,
        None if widest is None else widest.lower,
        None if widest is None else f"{widest.start} to {widest.stop}",
    )


def _values(cell: SpanCell, op: LinearOperator) -> list[ValueRow]:
    if cell.top < 2:
        return []
    found = singular_values(op, min(cell.top, *op.shape), tol=cell.tol / 10, seed=cell.seed)
    columns = zip(found.values.tolist(), found.residuals.tolist(), strict=True)
    return [
        ValueRow(cell.n, cell.sequence, number, value, residual, bool(found.converged))
        for number, (value, residual) in enumerate(columns, start=1)
    ]


def _carriers(
    cell: SpanCell, model: Model, ids: Int[Tensor, " n"], found: SpectralNorm
) -> list[Carrier | LogitRow]:
    carried = shares(found.right).tolist()
    left = found.left
    received = [None] * cell.n if left.ndim == 1 else shares(left).tolist()
    columns = zip(ids.tolist(), model.pieces(ids), carried, received, strict=True)
    rows: list[Carrier | LogitRow] = [
        Carrier(cell.n, cell.sequence, token, *row) for token, row in enumerate(columns)
    ]
    if left.ndim == 1:
        most = left.abs().topk(min(MOST_LOGITS, len(left))).indices
        words = zip(most.tolist(), model.pieces(most), left[most].tolist(), strict=True)
        rows += [
            LogitRow(cell.n, cell.sequence, rank, *word) for rank, word in enumerate(words, start=1)
        ]
    return rows


def _check_names(config: SpanConfig) -> None:
    check_positive("tol", config.tol)
    if config.dtype not in DTYPES:
        raise ValueError(f"dtype must be {' or '.join(DTYPES)}, got {config.dtype!r}.")
    chance = config.failure_probability
    if chance is not None and not 0 < chance < 1:
        raise ValueError(
            f"the failure probability must lie strictly between 0 and 1, got {chance}. Try 1e-6."
        )
    if not config.lengths or min(config.lengths) < 1 or config.top < 1:
        raise ValueError("there must be a length of at least 1 and at least one singular value.")
