"""Files of a run: rows are kept as they are measured, everything else is written whole or not at
all.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attnscope.files import write_atomically


class Store:
    """A folder of results. Rows, named tuples of one kind, go to a partial file at once, which
    becomes NAME.jsonl on leaving, however that happens.
    """

    def __init__(self, folder: Path, overwrite: bool, name: str = "results") -> None:
        self.folder, self.name = folder, name
        self.rows: list[Any] = []
        if (folder / f"{name}.jsonl").exists() and not overwrite:
            raise ValueError(
                f"{str(folder)!r} already holds results: choose another --out, or pass --overwrite"
                " to replace them."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._partial = (folder / f"{name}.jsonl.partial").open("w")
        except OSError as error:
            raise ValueError(
                f"the folder {str(folder)!r} cannot be written ({error.strerror or error}): choose"
                " another --out."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._partial.close()
        if self.rows:
            os.replace(self._partial.name, self.folder / f"{self.name}.jsonl")
            write_atomically(self.folder / f"{self.name}.csv", as_csv(self.rows))
        else:
            os.unlink(self._partial.name)

    def add(self, rows: Iterable[Any]) -> None:
        """Keep these rows: they are on disk when this returns."""
        for row in rows:
            self.rows.append(row)
            self._partial.write(json.dumps(row._asdict()) + "\n")
        self._partial.flush()


def as_csv(rows: Sequence[Any]) -> str:
    """The rows as CSV with a header; empty cells where there is no value."""
    made = io.StringIO()
    writer = csv.writer(made)
    writer.writerow(rows[0]._fields)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return made.getvalue()


def run_record(options: Mapping[str, Any], seconds: float, finished: bool) -> str:
    """What a reader needs to run it again: versions, options (the seed among them), seconds."""
    from attnscope import __version__

    packages = ("torch", "numpy", "transformers")
    record = {
        "attnscope": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages if find_spec(name) is not None},
        "options": dict(options),
        "seconds": round(seconds, 3),
        "finished": finished,
    }
    return json.dumps(record, indent=2, default=str) + "\n"
