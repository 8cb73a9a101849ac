"""`Sweep`: many models, parts, texts and lengths in one table, each cell one of `measure`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

from attnscope.studies.cell import Cell
from attnscope.studies.measure import Measure
from attnscope.studies.measure.rows import Place
from attnscope.studies.span import SpanRow, Spans
from attnscope.studies.span.rows import SpanCell
from attnscope.studies.study import Sheet, Study
from attnscope.studies.sweep import figures as drawn
from attnscope.studies.sweep.plan import SweepConfig, Unavailable, cells
from attnscope.studies.sweep.summary import remarks, sheets, span_sheet
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench


class Sweep(Study):
    """Local Lipschitz constants of many models on many texts."""

    name = "sweep"
    Config = SweepConfig
    fast = SweepConfig(lengths=(8, 16), samples=2)
    tables: ClassVar[dict[str, type]] = {**Measure.tables, "spans": SpanRow}

    def cells(self, config: SweepConfig, workbench: Workbench) -> Iterator[Cell]:
        return cells(config, workbench)

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if isinstance(cell, Unavailable):
            raise ValueError(cell.reason)
        if isinstance(cell, SpanCell):
            rows = Spans().run(cell, workbench)
            return [row for row in rows if isinstance(row, SpanRow)]  # they say of which model
        return Measure().run(cell, workbench)

    def owner(self, cell: Any) -> str:
        return Measure.name if isinstance(cell, Place) else self.name

    def supplies(self, cell: Any, workbench: Workbench) -> dict[Hashable, Any]:
        if isinstance(cell, Unavailable):
            return {}
        study: Study = Spans() if isinstance(cell, SpanCell) else Measure()
        return dict(study.supplies(cell, workbench))

    def figures(self, table: Table) -> dict[str, Any]:
        return drawn.figures(table.rows) if len(table) else {}

    def summary(self, table: Table) -> list[Sheet]:
        made = sheets(table.rows, table["bounds"], table.config) if len(table) else []
        return [*made, *([span_sheet(table["spans"])] if table["spans"] else [])]

    def remarks(self, table: Table) -> list[str]:
        return remarks([*table.rows, *table["spans"]])
