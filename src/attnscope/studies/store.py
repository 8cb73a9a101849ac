"""`Store`: the rows of a run in SQLite. A cell is wholly there or not, whatever happens.

Write-ahead mode lets two runs share a folder: each cell is one transaction, and rows that are
already there are left as they are, since equal cells have equal rows.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from attnscope.files import write_atomically
from attnscope.studies._packing import digest, packed, unpacked
from attnscope.studies.cell import Cell, canonical
from attnscope.studies.identity import Identity

FILE = "results.sqlite"
FORMAT = "1"
PATIENCE = 60.0
"""Seconds to wait for another process that writes."""

TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY, place INTEGER NOT NULL, fields TEXT NOT NULL,
    failure_probability REAL NOT NULL, seconds REAL NOT NULL, finished INTEGER NOT NULL,
    digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    cell TEXT NOT NULL REFERENCES cells (key), number INTEGER NOT NULL, kind TEXT NOT NULL,
    content TEXT NOT NULL, arrays BLOB, PRIMARY KEY (cell, number));
"""


class StoreError(ValueError):
    """A folder of results that cannot be used, in one sentence."""


class OtherResults(StoreError):
    """The folder holds results of something else; they are replaced only when this is asked for."""


class BadFolder(StoreError):
    """The folder cannot be written."""


class Damaged(StoreError):
    """The file is no store any more."""


@final
class Store:
    """The rows of one run, in a folder or, without one, in memory.

    Args:
        folder: Where `results.sqlite` is or will be.
        identity: Whose results these are; without one, those that are there are opened.
        overwrite: Replace what is there, with all files that were written from it.
    """

    def __init__(
        self, folder: Path | None, identity: Identity | None = None, overwrite: bool = False
    ) -> None:
        self.folder = folder
        if folder is None and identity is None:
            raise ValueError("a store in memory needs an identity, as it holds nothing yet.")
        if folder is not None and identity is not None:
            check_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
        path = None if folder is None else folder / FILE
        if path is not None and identity is None and not path.is_file():
            raise BadFolder(f"{str(folder)!r} holds no results: there is no {FILE} in it.")
        if path is not None and identity is not None and not path.exists():
            self._refuse_strangers(path.parent, overwrite)
        try:
            self._open(path)
        except Damaged:
            if not overwrite:
                raise
            assert path is not None
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            self._open(path)
        try:
            self.identity = self._settle(identity, overwrite)
        except BaseException:
            self._base.close()
            raise

    def _open(self, path: Path | None) -> None:
        with self._spoken():
            self._base = sqlite3.connect(
                ":memory:" if path is None else path, timeout=PATIENCE, isolation_level=None
            )
            try:
                self._write_ahead()
                (state,) = self._base.execute("PRAGMA quick_check(1)").fetchone()
                if state != "ok":
                    raise sqlite3.DatabaseError(state)
                with self._transaction():
                    for statement in TABLES.split(";"):
                        self._base.execute(statement)
            except BaseException:
                self._base.close()
                raise

    def _write_ahead(self) -> None:
        """Changing the mode does not wait for others by itself, so it is tried again."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._base.execute("PRAGMA journal_mode=WAL").fetchone()
                self._base.execute("PRAGMA synchronous=NORMAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _refuse_strangers(self, folder: Path, overwrite: bool) -> None:
        """Results without a store, as older versions left them."""
        there = [name for name in ("run.json", "results.jsonl") if (folder / name).exists()]
        if there and not overwrite:
            raise OtherResults(f"{str(folder)!r} already holds {there[0]} of another run.")
        for name in there:
            (folder / name).unlink(missing_ok=True)

    def _settle(self, identity: Identity | None, overwrite: bool) -> Identity:
        """Take the folder, go on in it, or refuse it."""
        with self._spoken(), self._transaction():
            held = self._held()
            if identity is None:
                if held is None:
                    raise BadFolder(f"{self.name} holds no results yet.")
                return held
            if held is not None and held != identity and not overwrite:
                told = held.difference(identity)
                raise OtherResults(f"{self.name} already holds results {told}.")
            if held is None or overwrite:
                names = [name for (name,) in self._base.execute("SELECT name FROM files")]
                for table in ("rows", "cells", "files", "about"):
                    self._base.execute(f"DELETE FROM {table}")
                about = {"format": FORMAT, **identity._asdict()}
                self._base.executemany("INSERT INTO about VALUES (?, ?)", about.items())
                for name in names if self.folder is not None else ():
                    (self.folder / name).unlink(missing_ok=True)
            return identity

    def _held(self) -> Identity | None:
        told = dict(self._base.execute("SELECT name, value FROM about"))
        if not told:
            return None
        if told.get("format") != FORMAT:
            raise OtherResults(f"{self.name} was written by another version of attnscope.")
        return Identity(*(told[name] for name in Identity._fields))

    @property
    def name(self) -> str:
        return "the store in memory" if self.folder is None else repr(str(self.folder))

    # Rows.

    def has(self, cell: Cell) -> bool:
        """Whether the rows of this cell are there, with a failure probability that is no larger."""
        with self._spoken():
            found = self._base.execute(
                "SELECT failure_probability FROM cells WHERE key = ? AND finished", (cell.key,)
            ).fetchone()
        return found is not None and found[0] <= cell.failure_probability

    def put(
        self,
        cell: Cell,
        rows: Iterable[tuple[str, Mapping[str, Any]]],
        place: int,
        seconds: float = 0.0,
        finished: bool = True,
    ) -> None:
        """Keep the rows of a cell, as (kind, values): they are on disk when this returns.

        Rows that are there already stay, unless they are a part or less probable.
        """
        made = [(kind, *packed(values)) for kind, values in rows]
        with self._spoken(), self._transaction():
            self._check_mine()
            before = self._base.execute(
                "SELECT finished, failure_probability FROM cells WHERE key = ?", (cell.key,)
            ).fetchone()
            kept = before is not None and before[0]
            if kept and (not finished or before[1] <= cell.failure_probability):
                return
            self._base.execute("DELETE FROM rows WHERE cell = ?", (cell.key,))
            self._base.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    cell.key,
                    place,
                    canonical(cell.as_dict()),
                    cell.failure_probability,
                    seconds,
                    int(finished),
                    digest(made),
                ),
            )
            self._base.executemany(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?)",
                [(cell.key, number, *row) for number, row in enumerate(made)],
            )

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """All rows as (kind, values), in the order of the cells."""
        with self._spoken(), self._transaction("DEFERRED"):
            cells = self._base.execute(
                "SELECT key, digest FROM cells ORDER BY place, key"
            ).fetchall()
            found = {
                key: self._base.execute(
                    "SELECT kind, content, arrays FROM rows WHERE cell = ? ORDER BY number", (key,)
                ).fetchall()
                for key, _ in cells
            }
            for key, expected in cells:
                if digest(found[key]) != expected:
                    raise sqlite3.DatabaseError("the rows of a cell are not those that were stored")
        return [
            (kind, unpacked(content, arrays))
            for rows in found.values()
            for kind, content, arrays in rows
        ]

    def totals(self) -> tuple[int, float, float]:
        """Finished cells, the seconds of all, and the sum of their failure probabilities."""
        with self._spoken():
            return self._base.execute(
                "SELECT COALESCE(SUM(finished), 0), TOTAL(seconds), TOTAL(failure_probability)"
                " FROM cells"
            ).fetchone()

    # Files.

    def publish(self, files: Mapping[str, str | bytes]) -> None:
        """Write files beside the store, each whole or not at all; nothing for a store in memory.

        Their names are noted first, so that a run that replaces this one removes them. Nobody can
        replace the results meanwhile.
        """
        if self.folder is None:
            return
        with self._spoken():
            with self._transaction():
                self._check_mine()
                self._base.executemany(
                    "INSERT OR IGNORE INTO files VALUES (?)", [(name,) for name in files]
                )
            with self._transaction():
                self._check_mine()
                for name, content in files.items():
                    write_atomically(self.folder / name, content)

    def _check_mine(self) -> None:
        if self._held() != self.identity:
            raise OtherResults(f"another run has replaced the results in {self.name}.")

    # Life.

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _transaction(self, mode: str = "IMMEDIATE") -> Iterator[None]:
        self._base.execute(f"BEGIN {mode}")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has ended it already
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """What SQLite and the disk complain about, as one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            kept = "what was stored before is kept"
            if "full" in str(error):
                raise StoreError(f"there is no room left for {self.name}; {kept}.") from error
            if "locked" in str(error):
                raise StoreError(f"another program holds {self.name}; {kept}.") from error
            raise BadFolder(f"{self.name} cannot be written ({error}); {kept}.") from error
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"the results in {self.name} are damaged ({error}): move {FILE} away to keep it, or"
                " ask to overwrite it."
            ) from error
        except OSError as error:
            raise BadFolder(
                f"{self.name} cannot be written ({error.strerror or error}); what was stored before"
                " is kept."
            ) from error


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before anything is computed; nothing is left."""
    place = folder
    while not place.exists() and place.parent != place:
        place = place.parent
    try:
        tempfile.TemporaryDirectory(dir=place).cleanup()  # as root, permissions tell nothing
    except OSError as error:
        reason = error.strerror or error
        raise BadFolder(f"the folder {str(folder)!r} cannot be written ({reason}).") from error
