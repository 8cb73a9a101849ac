"""The page of `invert`: tokens go through a stack of layers and are found again."""

from __future__ import annotations

from attnscope.report.content import Number, Opening, Standing
from attnscope.report.markup import number
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.invert import Invert


class InvertView(View):
    kind = Invert

    def opening(self, table: Table) -> Opening:
        last, rungs, (tokens,) = table.rows[-1], table["layers"], table["tokens"]
        words = [
            f"{len(tokens.x)} tokens went through {len(rungs)} layers of the form y = x + f(x), f a"
            f" proved contraction, moved by {number(tokens.moved)} in all, and were found again"
            " from where they arrived.",
        ]
        numbers = [
            Number(
                "distance to the input",
                number(last.error),
                Standing.COUNTED,
                f"After {last.iterations} iterations per layer, in Frobenius norm.",
            ),
            Number(
                "it cannot be more than",
                number(last.bound),
                Standing.PROVED,
                f"In exact arithmetic; rounding adds about {number(last.rounding)} (an estimate).",
            ),
            Number(
                "largest Lipschitz constant of a layer",
                number(max(rung.constant for rung in rungs)),
                Standing.PROVED,
                "Below 1, so that every layer can be undone.",
            ),
        ]
        return Opening("Attention, undone", words, numbers)
