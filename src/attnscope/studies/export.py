"""Rows as JSON lines, CSV and parquet, cell by cell, so that any number of them can be written."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from attnscope.files import replacing
from attnscope.studies.store import Store

Format = Literal["csv", "jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet")
TEXTS: tuple[Format, ...] = ("csv", "jsonl")
"""What every run leaves."""
BATCH = 10_000
"""Rows that are held in memory before they are written."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Filter:
    """Which rows: those of a model, of these layers, of these lengths. A kind of row that does not
    say what is asked for is left out.
    """

    model: str | None = None
    layers: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None

    def takes(self, row: Values) -> bool:
        if self.model is not None and row.get("model") != self.model:
            return False
        if self.layers is not None and row.get("layer") not in self.layers:
            return False
        return self.lengths is None or row.get("n") in self.lengths

    @property
    def label(self) -> str:
        """A part of the name of a file, so that some rows are not taken for all of them."""
        return "" if self == Filter() else "-some"


@runtime_checkable
class Sink(Protocol):
    """A file to write to."""

    def write(self, content: bytes, /) -> Any: ...


@runtime_checkable
class Writer(Protocol):
    """Writes rows in one format."""

    def rows(self, held: Sequence[Values]) -> None: ...

    def end(self) -> None: ...


def export(folder: Path, form: Format, chosen: Filter | None = None) -> list[str]:
    """Write every table of a folder of results as `TABLE.csv`, `TABLE.jsonl` or `TABLE.parquet`;
    their names. Of chosen rows the name is `TABLE-some.csv`.
    """
    chosen = Filter() if chosen is None else chosen
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError('parquet needs pyarrow: pip install "attnscope[table]".')
    with Store(folder) as store, ExitStack() as files:
        writers: dict[str, Writer] = {}

        def begun(kind: str) -> Writer:
            if kind not in writers:
                name = f"{kind}{chosen.label}.{form}"
                store.announce([name])  # a name that leads out of the folder ends here
                file = files.enter_context(replacing(folder / name))
                writers[kind] = WRITERS[form](file)
            return writers[kind]

        for kind, held in _batches(store.rows(), chosen):
            begun(kind).rows(held)
        for writer in writers.values():
            writer.end()
    return [f"{kind}{chosen.label}.{form}" for kind in writers]


def _batches(
    rows: Iterable[tuple[str, Values]], chosen: Filter
) -> Iterator[tuple[str, list[Values]]]:
    held: dict[str, list[Values]] = {}
    for kind, values in rows:
        if chosen.takes(values):
            held.setdefault(kind, []).append(values)
            if len(held[kind]) >= BATCH:
                yield kind, held[kind]
                held[kind] = []
    yield from ((kind, left) for kind, left in held.items() if left)


def texts(rows: Sequence[tuple[str, Values]], forms: Sequence[Format] = TEXTS) -> dict[str, str]:
    """The content of every file, by name, from rows as (kind, values)."""
    kinds: dict[str, list[Values]] = {}
    for kind, values in rows:
        kinds.setdefault(kind, []).append(values)
    write = {"csv": as_csv, "jsonl": as_json_lines}
    return {f"{kind}.{form}": write[form](held) for kind, held in kinds.items() for form in forms}


def as_json_lines(rows: Sequence[Values]) -> str:
    """One object per line. NaN and infinity are null, as JSON knows neither; arrays are left
    out.
    """
    return _written(JsonLines, rows)


def as_csv(rows: Sequence[Values]) -> str:
    """A header and one line per row; empty where there is no value, arrays left out. NaN and
    infinity are `nan` and `inf`.
    """
    return _written(Csv, rows)


def _written(writer: Callable[[Sink], Writer], rows: Sequence[Values]) -> str:
    file = io.BytesIO()
    made = writer(file)
    made.rows(rows)
    made.end()
    return file.getvalue().decode()


class JsonLines:
    def __init__(self, file: Sink) -> None:
        self._file, self._columns = file, list[str]()

    def rows(self, held: Sequence[Values]) -> None:
        self._columns = self._columns or _columns(held)
        for row in held:
            told = {name: _finite(row[name]) for name in self._columns}
            self._file.write((json.dumps(told, allow_nan=False) + "\n").encode())

    def end(self) -> None:
        """Every line is written."""


class Csv:
    def __init__(self, file: Sink) -> None:
        self._file, self._columns = file, list[str]()

    def rows(self, held: Sequence[Values]) -> None:
        text = io.StringIO()
        writer = csv.writer(text)
        if not self._columns:
            self._columns = _columns(held)
            writer.writerow(self._columns)
        writer.writerows(
            ["" if row[name] is None else row[name] for name in self._columns] for row in held
        )
        self._file.write(text.getvalue().encode())

    def end(self) -> None:
        """Every line is written."""


class Parquet:
    """Columns with the types of the first rows; a column of which these hold nothing is one of
    numbers.
    """

    def __init__(self, file: Sink) -> None:
        self._arrow = importlib.import_module("pyarrow")
        self._parquet = importlib.import_module("pyarrow.parquet")
        self._file, self._columns = file, list[str]()
        self._writer: Any = None
        self._schema: Any = None

    def rows(self, held: Sequence[Values]) -> None:
        self._columns = self._columns or _columns(held)
        columns = {name: [row[name] for row in held] for name in self._columns}
        if self._writer is None:
            first = self._arrow.table(columns).schema
            self._schema = self._arrow.schema(
                [
                    (field.name, self._arrow.float64())
                    if self._arrow.types.is_null(field.type)
                    else field
                    for field in first
                ]
            )
            self._writer = self._parquet.ParquetWriter(self._file, self._schema)
        self._writer.write_table(self._arrow.table(columns, schema=self._schema))

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


WRITERS: dict[str, Callable[[Sink], Writer]] = {
    "csv": Csv,
    "jsonl": JsonLines,
    "parquet": Parquet,
}


def _columns(rows: Sequence[Values]) -> list[str]:
    """The columns that hold no array in any row."""
    arrays = {name for row in rows for name, value in row.items() if isinstance(value, np.ndarray)}
    return [name for name in rows[0] if name not in arrays]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
