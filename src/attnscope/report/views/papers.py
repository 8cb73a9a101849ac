"""The page of a figure of a paper: what it shows, and whether what the paper says holds."""

from __future__ import annotations

from attnscope.report.content import Number, Opening, Standing
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.papers import PaperFigure


class PaperView(View):
    kind = PaperFigure
    sheets = False

    def opening(self, table: Table) -> Opening:
        figure, verdicts = table.study, table.verdicts()
        assert isinstance(figure, PaperFigure)
        held = sum(verdict.holds is True for verdict in verdicts)
        words = [f"{figure.says()} ({figure.source}.)"]
        counted = Number("statements that hold", f"{held} of {len(verdicts)}", Standing.COUNTED)
        name = figure.figure[:1].upper() + figure.figure[1:]
        return Opening(name, words, [counted] if verdicts else [])
