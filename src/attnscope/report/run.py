"""`Run`: what a folder of results holds, as far as it can be read; what is missing is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from attnscope import __version__
from attnscope.studies import Store, StoreError, Study, Table, named
from attnscope.studies.cell import tuples
from attnscope.studies.driver import MOST_ROWS, RECORD
from attnscope.studies.store import FILE
from attnscope.studies.study import config_fields
from attnscope.validation import parsed

FORMS = ("svg", "png")
MOST_FAILURES = 20


@final
@dataclass
class Run:
    """A run as a page shows it.

    Args:
        name: Of the study.
        table: Its rows; None when this version cannot read them.
        record: What run.json says: versions, options, seconds, what was left out.
        figures: Files by name with suffix; a figure that is not there is drawn from the rows.
        loose: Rows that have no table, as (kind, values).
        missing: Sentences on what a reader would expect and does not find.
    """

    name: str
    table: Table | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, bytes] = field(default_factory=dict)
    loose: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    folder: Path | None = None

    @classmethod
    def of_table(cls, table: Table) -> Run:
        """Rows that are in memory alone."""
        name, options = table.study.name, config_fields(table.config)
        return cls(name, table, {"attnscope": __version__, "study": name, "options": options})


def is_run(folder: Path) -> bool:
    """Whether a folder holds anything of a run."""
    return any((folder / name).is_file() for name in (FILE, RECORD))


def read(folder: Path, drawn: Collection[str] | None = None) -> Run:
    """Everything that can be read of a run, of this version or another, finished or not.

    Args:
        folder: Where `results.sqlite` and `run.json` are; one of them is enough.
        drawn: Names of files whose figures are taken as they are; None to draw them from the rows,
            or to take all that are there when the rows cannot be read.

    Raises:
        ValueError: There is nothing of a run in the folder.
    """
    if not folder.is_dir():
        raise ValueError(f"expected a folder of results, got {str(folder)!r}, which is none.")
    if not is_run(folder):
        raise ValueError(
            f"{str(folder)!r} holds no run: there is neither {FILE} nor {RECORD} in it. Give the"
            " folder that a command of attnscope wrote its results to."
        )
    run = Run("", folder=folder)
    run.record = _record(folder, run.missing)
    run.name = str(run.record.get("study", ""))
    _rows(folder, run)
    run.figures = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix[1:] in FORMS and path.is_file()
        if (run.table is None if drawn is None else path.name in drawn)
    }
    return run


def _record(folder: Path, missing: list[str]) -> dict[str, Any]:
    path = folder / RECORD
    if not path.is_file():
        missing.append(
            f"There is no {RECORD}: the run has not ended, or was killed. The rows below are those"
            " that were stored; versions and options are those that the store knows."
        )
        return {}
    try:
        told = parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        missing.append(f"{RECORD} cannot be read ({error}).")
        return {}
    if not isinstance(told, dict):
        missing.append(f"{RECORD} is not a record of a run.")
        return {}
    if told.get("finished") is False:
        cells = told.get("cells")
        count = (
            f" {cells.get('done')} of {cells.get('all')} cells" if isinstance(cells, dict) else ""
        )
        missing.append(
            f"The run was cut short:{count or ' not everything'} done. The same command again goes"
            " on where it stopped."
        )
    return told


def _rows(folder: Path, run: Run) -> None:
    """Put the rows into the run, as the table of its study if this version can read them."""
    try:
        with Store(folder) as store:
            identity, count, failures = store.identity, store.totals().rows, store.failures()
            rows = list(store.rows()) if count <= MOST_ROWS else []
    except StoreError as error:
        run.missing.append(f"The store of rows cannot be read: {error}")
        run.loose = _from_lines(folder)
        return
    run.name = identity.study
    if count > MOST_ROWS:
        run.missing.append(f"{count:,} rows are too many for a page: export some of them.")
    run.missing += [
        f"Failed: {failure.reason} ({_brief(failure.fields)})"
        for failure in failures[:MOST_FAILURES]
    ]
    if len(failures) > MOST_FAILURES:
        run.missing.append(f"{len(failures) - MOST_FAILURES} more cells failed.")
    if not run.record:
        run.record = {"attnscope": identity.version, "study": identity.study}
    if identity.version != __version__:
        run.missing.append(
            f"The run is of attnscope {identity.version}, this page was written by {__version__}:"
            " a number may be defined otherwise now."
        )
    study = named(identity.study)
    if study is None:
        run.missing.append(f"This version knows no study {identity.study!r}: rows are shown bare.")
        run.loose = rows
        return
    try:
        run.table = _table(study, _config(study, identity.config, run), rows)
    except (TypeError, ValueError, KeyError) as error:
        run.missing.append(
            f"The rows are not what this version of {identity.study} expects ({error}): they are"
            " shown bare."
        )
        run.loose = rows


def _config(study: Study, stored: str, run: Run) -> Any:
    """The config of the run: what the store knows, and what no row depends on from the record."""
    told = run.record.get("config")
    fields = parsed(stored) | {
        name: told[name] for name in study.aside if isinstance(told, dict) and name in told
    }
    known = {one.name for one in dataclasses.fields(study.Config)}
    unknown = sorted(set(fields) - known)
    if unknown:
        run.missing.append(f"Settings that this version does not know: {', '.join(unknown)}.")
    if not run.record.get("options"):
        run.record = {**run.record, "options": fields}
    return study.read_config({k: tuples(v) for k, v in fields.items() if k in known})


def _table(study: Study, config: Any, rows: list[tuple[str, dict[str, Any]]]) -> Table:
    made: dict[str, list[Any]] = {kind: [] for kind in study.tables}
    for kind, values in rows:
        made[kind].append(study.tables[kind](**values))
    return Table(study, config, made)


def _brief(fields: str) -> str:
    """A cell in a few words: hashes say nothing to a reader."""
    told = parsed(fields)
    return ", ".join(
        f"{name} {value}"
        for name, value in told.items()
        if value is not None and len(str(value)) < 40 and name != "failure_probability"
    )


def _from_lines(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The rows that were written as JSON lines; lines that are none are passed over."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                if isinstance(values := parsed(line), dict):
                    rows.append((path.stem, values))
    return rows[:MOST_ROWS]
