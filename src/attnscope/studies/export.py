"""Rows as JSON lines and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnscope.studies.store import Store

Format = Literal["csv", "jsonl"]
FORMATS: tuple[Format, ...] = ("csv", "jsonl")


def export(folder: Path, form: Format) -> list[str]:
    """Write every table of a folder of results as `TABLE.csv` or `TABLE.jsonl`; their names."""
    with Store(folder) as store:
        files = texts(store.rows(), (form,))
        store.publish(files)
    return list(files)


def texts(
    rows: Sequence[tuple[str, Mapping[str, Any]]], forms: Sequence[Format] = FORMATS
) -> dict[str, str]:
    """The content of every file, by name, from rows as (kind, values)."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for kind, values in rows:
        kinds.setdefault(kind, []).append(values)
    write = {"csv": as_csv, "jsonl": as_json_lines}
    return {f"{kind}.{form}": write[form](held) for kind, held in kinds.items() for form in forms}


def as_json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """One object per line. NaN and infinity are null, as JSON knows neither; arrays are left
    out.
    """
    return "".join(
        json.dumps({name: _finite(row[name]) for name in _columns(rows)}, allow_nan=False) + "\n"
        for row in rows
    )


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and one line per row; empty where there is no value, arrays left out. NaN and
    infinity are `nan` and `inf`.
    """
    columns, made = _columns(rows), io.StringIO()
    writer = csv.writer(made)
    writer.writerow(columns)
    writer.writerows(["" if row[name] is None else row[name] for name in columns] for row in rows)
    return made.getvalue()


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that hold no array in any row."""
    arrays = {name for row in rows for name, value in row.items() if isinstance(value, np.ndarray)}
    return [name for name in rows[0] if name not in arrays]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
