"""`run`: any study from its config to rows, files and figures; the same call again goes on where it
stopped.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from attnscope.studies import drawing
from attnscope.studies.cache import Cache
from attnscope.studies.cell import Cell
from attnscope.studies.dispatch import Dispatch, Errand
from attnscope.studies.engines.engine import Engine, engine_of
from attnscope.studies.export import texts
from attnscope.studies.identity import Identity
from attnscope.studies.lock import only_one
from attnscope.studies.progress import Meter, shown
from attnscope.studies.stop import Stop
from attnscope.studies.store import Damaged, Failure, Store, check_folder
from attnscope.studies.study import Study, config_fields
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

RECORD = "run.json"
MOST_ROWS = 1_000_000
"""Of which tables and figures are made, as they are held in memory for it."""
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
    """Cells that were there already, or known from other folders."""
    failures: list[Failure]
    """Cells without rows, and why."""
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
    meter: Callable[[int], Meter] | None = None,
    engine: Engine | Executor | None = None,
    cache: Cache | None = None,
    keep_going: bool = False,
    retry: bool = False,
    cells: Sequence[Cell] | None = None,
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
        meter: Told the number of cells, gives what progress is told to instead of a bar of its own.
        engine: Where cells run: anything that speaks `concurrent.futures.Executor`; in this process
            if left out.
        cache: Rows of earlier runs in other folders. Only for models that are loaded by name.
        keep_going: Keep a cell that fails with its reason and go on; otherwise its error is raised.
        retry: Try cells again that failed before.
        cells: Those of the study, where they were planned already.

    Returns:
        The outcome, also after a stop: the cells that were done, and their table.
    """
    from attnscope import __version__

    begun = time.monotonic()
    workbench = Workbench() if workbench is None else workbench
    stop = Stop() if stop is None else stop
    if folder is not None:
        check_folder(folder)
    cells = planned(study, config, workbench) if cells is None else cells
    told = {name: value for name, value in config_fields(config).items() if name not in study.aside}
    identity = Identity.of(study.name, __version__, told, cells)
    with (
        Store(folder, identity, overwrite) as store,
        stop.listening(),
        only_one(folder, lambda: not stop.asked, _speaker(console)) as mine,
    ):
        finished, there = False, 0
        if mine:
            store.arrange(cells)
            todo, there = _missing(study, cells, store, cache, retry)
            store.note(planned=len(cells), begun=time.time())
            own = shown(console, len(cells)) if meter is None else nullcontext(meter(len(cells)))
            with own as bar:
                bar.skip(len(cells) - len(todo))
                runner = engine_of(engine)
                dispatch = Dispatch(study, store, runner, workbench, stop, bar, cache, keep_going)
                finished = dispatch.run(todo)
        stop.step_ended()
        exit_code = 0 if finished else stop.exit_code
        cells_told = {"all": len(cells), "taken_up": there}
        return _end(study, config, store, cells_told, finished, exit_code, options, pictures, begun)


def planned(study: Study, config: Any, workbench: Workbench) -> list[Cell]:
    """The cells of a run; everything wrong with the config is said here."""
    cells = list(study.cells(config, workbench))
    if len({cell.key for cell in cells}) < len(cells):
        raise ValueError(f"{study.name}: two cells of this run are the same.")
    return cells


def _missing(
    study: Study, cells: Sequence[Cell], store: Store, cache: Cache | None, retry: bool
) -> tuple[list[Errand], int]:
    """The cells that are to run, and how many are known. What the cache knows is stored."""
    failed = set() if retry else {failure.key for failure in store.failures()}
    todo, there = [], 0
    for place, cell in enumerate(cells):
        known = None
        if not store.has(cell):
            known = None if cache is None else cache.get(study.owner(cell), cell)
            if known is None:
                if cell.key not in failed:
                    todo.append(Errand(place, cell))
                continue
            rows, chance, seconds = known
            store.put(cell, rows, place, seconds, failure_probability=chance)
        there += 1
    return todo, there


def _end(
    study: Study,
    config: Any,
    store: Store,
    cells: Mapping[str, int],
    finished: bool,
    exit_code: int,
    options: Mapping[str, Any] | None,
    pictures: bool,
    begun: float,
) -> Outcome:
    """Tables, figures and the record of what there is."""
    totals, failures = store.totals(), store.failures()
    small = totals.rows <= MOST_ROWS
    table = read(store, study, config) if small else Table(study, config, {})
    record_of_run = {
        "options": dict(options) if options is not None else config_fields(config),
        "config": config_fields(config),
        "seconds": round(time.monotonic() - begun, 3),
        "finished": finished,
        "cells": {**cells, "done": totals.finished},
        "failures": [{"cell": json.loads(f.fields), "reason": f.reason} for f in failures],
        "cell_seconds": round(totals.seconds, 3),
        "failure_probability": totals.failure_probability,
    }
    files, remarks = _written(store, study, table, record_of_run, pictures)
    if not small:
        remarks = [*remarks, f"{totals.rows:,} rows are too many for tables here: export some."]
    return Outcome(
        table,
        finished,
        exit_code,
        totals.failure_probability,
        time.monotonic() - begun,
        cells["taken_up"],
        failures,
        files,
        remarks,
    )


def _speaker(console: Console | None) -> Callable[[str], None]:
    def say(sentence: str) -> None:
        if console is not None:
            console.print(sentence, markup=False, highlight=False, emoji=False, soft_wrap=True)

    return say


def read(store: Store, study: Study, config: Any) -> Table:
    """The table of what a store holds."""
    rows: dict[str, list[Any]] = {kind: [] for kind in study.tables}
    for kind, values in store.rows():
        if kind not in rows:
            raise Damaged(f"{store.name} holds rows of a kind that {study.name} does not have.")
        rows[kind].append(study.tables[kind](**values))
    return Table(study, config, rows)


def _written(
    store: Store, study: Study, table: Table, told: Mapping[str, Any], pictures: bool
) -> tuple[list[str], list[str]]:
    """Write the files of a run, tables first: what comes later may fail, and they are there."""
    if store.folder is None or not any(table[kind] for kind in table.kinds):
        return [], study.remarks(table) if len(table) else []
    remarks = study.remarks(table)
    files: dict[str, str | bytes] = dict(texts(list(store.rows())))
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
