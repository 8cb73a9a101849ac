"""`Trace`: tokens on their way through a trained network, and what the Gaussian theory says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from attnscope.data.texts import windows
from attnscope.models import streams
from attnscope.studies.cell import Cell
from attnscope.studies.measure.inputs import text_ids
from attnscope.studies.study import Sheet, Study, Verdict
from attnscope.studies.table import Table
from attnscope.studies.trace import figures as drawn
from attnscope.studies.trace.rows import (
    MOST_TOKENS,
    Absent,
    Reading,
    State,
    Step,
    TraceCell,
    TraceConfig,
)
from attnscope.studies.trace.states import common_axes, reading, state, step
from attnscope.studies.trace.summary import left_out, sheets, verdicts
from attnscope.studies.workbench import DTYPES, Workbench, check_hash, hash_ids
from attnscope.validation import check_positive


class Trace(Study):
    """Spectrum, rank, anisotropy, clusters and transport of the tokens from layer to layer, beside
    the Gaussian theory's step of each layer.
    """

    name = "trace"
    Config = TraceConfig
    fast = TraceConfig(n=64)
    tables: ClassVar[dict[str, type]] = {
        "results": State,
        "steps": Step,
        "attention": Reading,
        "absent": Absent,
    }

    def cells(self, config: TraceConfig, workbench: Workbench) -> Iterator[Cell]:
        check_positive("gap", config.gap)
        if config.dtype not in DTYPES:
            raise ValueError(f"dtype must be {' or '.join(DTYPES)}, got {config.dtype!r}.")
        model = workbench.model(config.model, config.device, config.dtype)
        ids = text_ids(workbench, model, config.text)
        n = min(len(ids), MOST_TOKENS, model.positions) if config.n is None else config.n
        if n < 2:
            raise ValueError(f"a trace needs a text of at least 2 tokens, got {n}.")
        if n > model.positions:
            raise ValueError(f"{model.name} takes at most {model.positions} tokens, got {n}.")
        windows(ids, n, config.samples)
        for sequence in range(config.samples):
            yield TraceCell(
                model=config.model,
                weights=workbench.weights(config.model, config.device, config.dtype),
                device=config.device,
                dtype=config.dtype,
                text=config.text,
                tokens=hash_ids(ids),
                n=n,
                sequence=sequence,
                gap=config.gap,
            )

    def run(self, cell: TraceCell, workbench: Workbench) -> list[Any]:
        model = workbench.model(cell.model, cell.device, cell.dtype, cell.weights)
        ids = text_ids(workbench, model, cell.text)
        check_hash(f"the tokens of {cell.text!r}", hash_ids(ids), cell.tokens)
        ids = windows(ids, cell.n, cell.sequence + 1)[cell.sequence]
        stream = streams(model, ids, [*range(model.layers), "last"])
        clouds = [x.double().cpu() for x in stream]
        axes, rows = common_axes(clouds), list[Any]()
        for depth, cloud in enumerate(clouds):
            if not workbench.going(depth / len(clouds), f"depth {depth}"):
                return rows
            before = clouds[depth - 1] if depth else None
            rows.append(state(cell.sequence, depth, cloud, before, cell.gap, axes))
            if depth < model.layers:
                rows.append(step(cell.sequence, model, depth, stream[depth]))
                rows.append(reading(cell.sequence, model, depth, ids))
        return rows

    def figures(self, table: Table) -> dict[str, Any]:
        return drawn.figures(table) if len(table) else {}

    def files(self, table: Table) -> dict[str, bytes]:
        return drawn.animations(table) if len(table) else {}

    def summary(self, table: Table) -> list[Sheet]:
        return sheets(table) if len(table) else []

    def verdicts(self, table: Table) -> list[Verdict]:
        return verdicts(table)

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)
