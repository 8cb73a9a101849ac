"""The page of a span: how sensitive is a network between two places."""

from __future__ import annotations

from pathlib import Path

from attnscope.report.content import Block, Number, Opening, Standing
from attnscope.report.markup import number
from attnscope.report.tokens import tinted_text
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.span import Spans

NAMES = ("Who moves: the worst small change", "Who answers: the change at the end")


class SpanView(View):
    kind = Spans

    def opening(self, table: Table) -> Opening:
        row = max(table.rows, key=lambda row: (row.n, -row.sequence))
        model, text = Path(row.model).name, Path(row.text).name
        words = [
            f"How much can the stream of {model} at {row.stop} move when the stream at {row.start}"
            f" moves a little, on {text}, {row.n} tokens? At most σ times as far, to first order.",
        ]
        certain = row.upper is not None
        kind = Standing.PROBABLE if certain else Standing.ESTIMATE
        end = f", at most {number(row.upper)}" if certain else ""
        numbers = [Number("σ of the span", number(row.lower), kind, f"A lower bound{end}.")]
        if row.product is not None:
            told = f"{row.product / row.lower:.3g} times σ." if row.lower > 0 else ""
            numbers.append(Number("product of its pieces", number(row.product), kind, told))
        if row.largest is not None:
            told = f"From {row.largest_piece}." if row.largest_piece else ""
            numbers.append(Number("largest of its pieces", number(row.largest), kind, told))
        return Opening(f"{model} from {row.start} to {row.stop}", words, numbers)

    def blocks(self, table: Table) -> list[Block]:
        held = table["directions"]
        if not held:
            return []
        last = max(held, key=lambda row: (row.n, -row.sequence))
        shown = [row for row in held if (row.n, row.sequence) == (last.n, last.sequence)]
        shares = [[row.carried for row in shown]]
        if all(row.received is not None for row in shown):
            shares.append([row.received for row in shown])
        texts, count = [row.text for row in shown], len(shares)
        told = ("carries", "shows")[:count]
        body = tinted_text(texts, {0: shares}, 0, NAMES[:count], told, "directions")
        note = "Shares of the squared length of the top singular vectors, an estimate."
        return [Block("The most sensitive direction, on the text", body, note)]
