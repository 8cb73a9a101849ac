"""`run`: any study from its config to rows, files and figures; the same call again goes on where it
stopped.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from attnscope.studies import drawing
from attnscope.studies.cell import Cell
from attnscope.studies.export import texts
from attnscope.studies.identity import Identity
from attnscope.studies.progress import Bar, shown
from attnscope.studies.stop import Stop
from attnscope.studies.store import Store, check_folder
from attnscope.studies.study import Study, check_row, config_fields
from attnscope.studies.table import Table
from attnscope.studies.workbench import Stopped, Workbench

RECORD = "run.json"
PACKAGES = ("torch", "numpy", "transformers")


class Outcome(NamedTuple):
    """How a run ended. `failure_probability` is the sum over its cells: with at most this
    probability some probable bound in the table is wrong.
    """

    table: Table
    finished: bool
    exit_code: int
    """0, or 128 + the signal that ended it early."""
    failure_probability: float
    seconds: float
    taken_up: int
    """Cells that were there already."""
    files: list[str]
    remarks: list[str]


def run(
    study: Study,
    config: Any,
    *,
    folder: Path | None = None,
    overwrite: bool = False,
    workbench: Workbench | None = None,
    options: Mapping[str, Any] | None = None,
    console: Console | None = None,
    stop: Stop | None = None,
    pictures: bool = True,
) -> Outcome:
    """Run the cells that are not there yet; then write tables, figures and the record of the run.

    Args:
        folder: Where results are kept; without one nothing is written and no figure is drawn.
        overwrite: Replace results of other options, which are refused otherwise.
        workbench: What holds models that cannot be loaded by their name.
        options: What the record says was asked for; the config if left out.
        console: Where progress is shown; nowhere if left out.
        stop: What ends the run early; without one signals do what they always do.
        pictures: Whether to draw.

    Returns:
        The outcome, also after a stop: the cells that were done, and their table.
    """
    from attnscope import __version__

    begun = time.monotonic()
    workbench = Workbench() if workbench is None else workbench
    stop = Stop() if stop is None else stop
    if folder is not None:
        check_folder(folder)
    cells = list(study.cells(config, workbench))
    if len({cell.key for cell in cells}) < len(cells):
        raise ValueError(f"{study.name}: two cells of this run are the same.")
    told = {name: value for name, value in config_fields(config).items() if name not in study.aside}
    identity = Identity.of(study.name, __version__, told, cells)
    with Store(folder, identity, overwrite) as store, stop.listening():
        there = sum(store.has(cell) for cell in cells)
        with shown(console, len(cells)) as bar:
            finished = _all_cells(study, cells, store, workbench, stop, bar)
        table = read(store, study, config)
        done, cell_seconds, failure_probability = store.totals()
        record_of_run = {
            "options": dict(options) if options is not None else config_fields(config),
            "seconds": round(time.monotonic() - begun, 3),
            "finished": finished,
            "cells": {"all": len(cells), "done": done, "taken_up": there},
            "cell_seconds": round(cell_seconds, 3),
            "failure_probability": failure_probability,
        }
        files, remarks = _written(store, study, table, record_of_run, pictures)
    return Outcome(
        table,
        finished,
        0 if finished else stop.exit_code,
        failure_probability,
        time.monotonic() - begun,
        there,
        files,
        remarks,
    )


def read(store: Store, study: Study, config: Any) -> Table:
    """The table of what a store holds."""
    rows: dict[str, list[Any]] = {kind: [] for kind in study.tables}
    for kind, values in store.rows():
        rows[kind].append(study.tables[kind](**values))
    return Table(study, config, rows)


def _all_cells(
    study: Study, cells: Sequence[Cell], store: Store, workbench: Workbench, stop: Stop, bar: Bar
) -> bool:
    """Run every cell that is not there; False when a signal ended it early."""

    def watch(part: float, what: str) -> bool:
        bar.part(part, what)
        return not stop.asked

    workbench.watch = watch
    for place, cell in enumerate(cells):
        # another process may have stored it meanwhile
        if not store.has(cell):
            if stop.asked:
                return False
            begun, workbench.cut = time.monotonic(), False
            with suppress(Stopped):
                rows = study.run(cell, workbench)
                for row in rows:
                    check_row(row)
                store.put(
                    cell,
                    [(study.kind(row), row._asdict()) for row in rows],
                    place,
                    time.monotonic() - begun,
                    finished=not workbench.cut,
                )
            if workbench.cut:
                return False
        bar.next()
    return True


def _written(
    store: Store, study: Study, table: Table, told: Mapping[str, Any], pictures: bool
) -> tuple[list[str], list[str]]:
    """Write the files of a run, tables first: what comes later may fail, and they are there."""
    if store.folder is None or not any(table[kind] for kind in table.kinds):
        return [], study.remarks(table) if len(table) else []
    remarks = study.remarks(table)
    files: dict[str, str | bytes] = dict(texts(store.rows()))
    files[RECORD] = record(study, {**told, "left_out": remarks})
    files |= study.files(table)
    store.publish(files)
    if pictures and not drawing.available():
        remarks = [*remarks, 'Figures need matplotlib: pip install "attnscope[plot]".']
    elif pictures:
        drawn = {
            f"{name}.{form}": save(figure)
            for name, figure in table.figures().items()
            for form, save in (("svg", drawing.as_svg), ("png", drawing.as_png))
        }
        store.publish(drawn)
        files |= drawn
    return list(files), remarks


def record(study: Study, told: Mapping[str, Any]) -> str:
    """What a reader needs to run it again: versions, options (the seed among them), seconds."""
    from attnscope import __version__

    made = {
        "attnscope": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES if find_spec(name) is not None},
        "study": study.name,
        **told,
    }
    return json.dumps(made, indent=2, default=str) + "\n"
