"""`Table`: the rows of a run, for a notebook or a script."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from attnscope.studies import drawing
from attnscope.studies.study import Row, Sheet, Study, Verdict


@final
class Table:
    """The rows of a study, of one or several kinds. It is a sequence of the rows of the main kind.

    `table["bounds"]` gives the rows of another kind.
    """

    def __init__(self, study: Study, config: Any, rows: Mapping[str, Sequence[Row]]) -> None:
        self.study, self.config = study, config
        self._rows = {kind: list(rows.get(kind, ())) for kind in study.tables}

    @property
    def rows(self) -> list[Row]:
        """The rows of the main kind."""
        return self._rows[next(iter(self._rows))]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def __getitem__(self, kind: str) -> list[Row]:
        if kind not in self._rows:
            raise KeyError(f"there are rows of kind {', '.join(self._rows)}, got {kind!r}.")
        return self._rows[kind]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        counted = ", ".join(f"{len(rows)} {kind}" for kind, rows in self._rows.items())
        return f"Table({self.study.name}: {counted})"

    def summary(self) -> list[Sheet]:
        """What the command prints."""
        return self.study.summary(self) if any(self._rows.values()) else []

    def verdicts(self) -> list[Verdict]:
        """What the rows say about the statements of the papers."""
        return self.study.verdicts(self)

    def figures(self) -> dict[str, Any]:
        """Every figure that these rows allow, by name."""
        if not any(self._rows.values()):
            return {}
        with drawing.style():
            return self.study.figures(self)

    def plot(self, name: str | None = None) -> Any:
        """The figure of this name, or the first one: a `matplotlib.figure.Figure`."""
        made = self.figures()
        if not made:
            raise ValueError(f"there is no figure for {self!r}.")
        if name is not None and name not in made:
            raise KeyError(f"there are figures {', '.join(made)}, got {name!r}.")
        return made[next(iter(made)) if name is None else name]

    def to_pandas(self, kind: str | None = None) -> Any:
        """The rows as a `pandas.DataFrame`, one column per field."""
        if importlib.util.find_spec("pandas") is None:
            raise ImportError("a data frame needs pandas: pip install pandas.")
        pandas = importlib.import_module("pandas")
        kind = next(iter(self._rows)) if kind is None else kind
        fields = self.study.tables[kind]._fields  # type: ignore[attr-defined]
        return pandas.DataFrame([row._asdict() for row in self[kind]], columns=list(fields))

    def report(self, path: str | Path) -> Path:
        """Write the page of these rows, one HTML file that needs nothing else; where it is.

        Args:
            path: The file, or a folder, which gets a `report.html`.
        """
        return _pages().of_table(self, Path(path))

    def _repr_html_(self) -> str:
        return _pages().fragment(self)


def _pages() -> Any:
    """What makes pages: it stands below the studies, which work without it, so it is found by its
    name when a page is asked for.
    """
    return importlib.import_module("attnscope.report")
