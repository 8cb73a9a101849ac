"""`Store`: the rows of a run in SQLite. A cell is wholly there or not, whatever happens.

Each cell is one transaction, and rows that are already there are left as they are, since equal
cells have equal rows. Names that stand in a store never lead out of its folder.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, final

from attnscope.files import write_atomically
from attnscope.studies._database import BadFolder, Damaged, Database, OtherResults, StoreError
from attnscope.studies._packing import Packed, digest, unpack
from attnscope.studies.cell import Cell, canonical
from attnscope.studies.identity import Identity

__all__ = ["BadFolder", "Damaged", "OtherResults", "Store", "StoreError"]

FILE = "results.sqlite"
FORMAT = "2"
LONGEST_NAME = 120

TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS cells (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, place INTEGER NOT NULL,
    fields TEXT NOT NULL, failure_probability REAL NOT NULL, seconds REAL NOT NULL,
    finished INTEGER NOT NULL, count INTEGER NOT NULL, stored REAL NOT NULL,
    digest TEXT NOT NULL, content BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS places ON cells (place);
CREATE INDEX IF NOT EXISTS tally ON cells (stored, finished, count, seconds, failure_probability);
CREATE TABLE IF NOT EXISTS failures (
    key TEXT PRIMARY KEY, place INTEGER NOT NULL, fields TEXT NOT NULL, reason TEXT NOT NULL,
    seconds REAL NOT NULL, stored REAL NOT NULL);
"""


class Totals(NamedTuple):
    """What a store holds: finished cells, rows, seconds of work, and the sum of the failure
    probabilities of its cells.
    """

    finished: int
    rows: int
    seconds: float
    failure_probability: float


class Failure(NamedTuple):
    """Why there are no rows of a cell."""

    key: str
    fields: str
    reason: str


@final
class Store:
    """The rows of one run, in a folder or, without one, in memory.

    Args:
        folder: Where `results.sqlite` is or will be.
        identity: Whose results these are; without one, those that are there are opened.
        overwrite: Replace what is there, with all files that were written from it.
        check: Look for damage now, and not only when a cell is read.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: Identity | None = None,
        overwrite: bool = False,
        check: bool = True,
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
            self._base = Database(path, self.name, TABLES, check)
        except (Damaged, OtherResults):
            if not overwrite:
                raise
            assert path is not None
            self._refuse_strangers(path.parent, overwrite)
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            self._base = Database(path, self.name, TABLES)
        try:
            self.identity = self._settle(identity, overwrite)
        except BaseException:
            self._base.close()
            raise

    def _refuse_strangers(self, folder: Path, overwrite: bool) -> None:
        """Results without a store, as older versions left them."""
        there = [name for name in ("run.json", "results.jsonl") if (folder / name).exists()]
        if there and not overwrite:
            raise OtherResults(f"{str(folder)!r} already holds {there[0]} of another run.")
        for name in there:
            (folder / name).unlink(missing_ok=True)

    def _settle(self, identity: Identity | None, overwrite: bool) -> Identity:
        """Take the folder, go on in it, or refuse it."""
        with self._base.spoken(), self._base.transaction():
            held = None if overwrite else self._held()
            if identity is None:
                if held is None:
                    raise BadFolder(f"{self.name} holds no results yet.")
                return held
            if held is not None:
                if not held.accepts(identity):
                    told = held.difference(identity)
                    raise OtherResults(f"{self.name} already holds results {told}.")
                identity = held.joined(identity)
            else:
                names = [name for (name,) in self._base.execute("SELECT name FROM files")]
                for table in ("cells", "failures", "files", "about"):
                    self._base.execute(f"DELETE FROM {table}")
                for name in names:
                    if self.folder is not None and is_plain_name(name):
                        (self.folder / name).unlink(missing_ok=True)
            self._tell({"format": FORMAT, **identity._asdict()})
            return identity

    def _held(self) -> Identity | None:
        told = self.about()
        if not told:
            return None
        if told.get("format") != FORMAT:
            raise OtherResults(f"{self.name} was written by another version of attnscope.")
        return Identity(*(told[name] for name in Identity._fields))

    @property
    def name(self) -> str:
        return "the store in memory" if self.folder is None else repr(str(self.folder))

    # What is known about the run.

    def about(self) -> dict[str, str]:
        """Whose results these are, and what the last run noted."""
        with self._base.spoken():
            return dict(self._base.execute("SELECT name, value FROM about").fetchall())

    def note(self, **told: object) -> None:
        """Keep something about the run, such as how many cells it has."""
        with self._base.spoken(), self._base.transaction():
            self._check_mine()
            self._tell(told)

    def _tell(self, told: Mapping[str, object]) -> None:
        lines = ((name, str(value)) for name, value in told.items())
        self._base.many("INSERT OR REPLACE INTO about VALUES (?, ?)", lines)

    def arrange(self, cells: Sequence[Cell]) -> None:
        """Give what is there its place among these cells, and forget failures of others."""
        with self._base.spoken(), self._base.transaction():
            self._check_mine()
            places = ((place, cell.key, place) for place, cell in enumerate(cells))
            self._base.many("UPDATE cells SET place = ? WHERE key = ? AND place != ?", places)
            keys = {cell.key for cell in cells}
            known = [key for (key,) in self._base.execute("SELECT key FROM failures")]
            gone = ((key,) for key in known if key not in keys)
            self._base.many("DELETE FROM failures WHERE key = ?", gone)

    # Rows.

    def has(self, cell: Cell) -> bool:
        """Whether the rows of this cell are there, with a failure probability that is no larger."""
        with self._base.spoken():
            found = self._base.one(
                "SELECT failure_probability FROM cells WHERE key = ? AND finished", (cell.key,)
            )
        return found is not None and found[0] <= cell.failure_probability

    def put(
        self,
        cell: Cell,
        rows: Packed,
        place: int,
        seconds: float = 0.0,
        finished: bool = True,
        failure_probability: float | None = None,
    ) -> None:
        """Keep the rows of a cell: they are there when this returns.

        Rows that are there already stay, unless they are a part or less probable. What was taken
        from elsewhere has a failure probability of its own.
        """
        chance = cell.failure_probability if failure_probability is None else failure_probability
        with self._base.spoken(), self._base.transaction():
            self._check_mine()
            before = self._base.one(
                "SELECT finished, failure_probability FROM cells WHERE key = ?", (cell.key,)
            )
            if before is not None and before[0] and (not finished or before[1] <= chance):
                return
            told = (cell.key, place, canonical(cell.as_dict()), chance, seconds, int(finished))
            self._base.execute(
                "INSERT OR REPLACE INTO cells (key, place, fields, failure_probability, seconds,"
                " finished, count, stored, digest, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*told, rows.size, time.time(), rows.digest, rows.content),
            )
            self._base.execute("DELETE FROM failures WHERE key = ?", (cell.key,))

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All rows as (kind, values), in the order of the cells, one cell in memory at a time."""
        with self._base.spoken():
            order = self._base.execute("SELECT id FROM cells ORDER BY place, id").fetchall()
            for (number,) in order:
                found = self._base.one("SELECT digest, content FROM cells WHERE id = ?", (number,))
                if found is None:  # another run stored it anew meanwhile
                    continue
                expected, content = found
                if digest(content) != expected:
                    raise sqlite3.DatabaseError("the rows of a cell are not those that were stored")
                try:
                    rows = unpack(content)
                except Exception as error:  # a forged file may hold anything
                    raise sqlite3.DatabaseError("the rows of a cell cannot be read") from error
                yield from rows

    def totals(self) -> Totals:
        with self._base.spoken():
            return Totals(
                *self._base.one(
                    "SELECT COALESCE(SUM(finished), 0), COALESCE(SUM(count), 0), TOTAL(seconds),"
                    " TOTAL(failure_probability) FROM cells"
                )
            )

    def stored_since(self, moment: float) -> int:
        """Cells that were stored after this time."""
        with self._base.spoken():
            (count,) = self._base.one("SELECT COUNT(*) FROM cells WHERE stored > ?", (moment,))
        return int(count)

    # Failures.

    def fail(self, cell: Cell, reason: str, place: int, seconds: float = 0.0) -> None:
        """Keep the reason why there are no rows of a cell."""
        fields = canonical(cell.as_dict())
        with self._base.spoken(), self._base.transaction():
            self._check_mine()
            self._base.execute(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?)",
                (cell.key, place, fields, reason, seconds, time.time()),
            )

    def failures(self) -> list[Failure]:
        """Cells without rows, in their order."""
        with self._base.spoken():
            found = self._base.execute("SELECT key, fields, reason FROM failures ORDER BY place")
            return [Failure(*line) for line in found]

    # Files.

    def publish(self, files: Mapping[str, str | bytes]) -> None:
        """Write files beside the store, each whole or not at all; nothing for a store in memory.

        Their names are noted first, so that a run that replaces this one removes them. Nobody can
        replace the results meanwhile.
        """
        if self.folder is None:
            return
        self.announce(files)
        with self._base.spoken(), self._base.transaction():
            self._check_mine()
            for name, content in files.items():
                write_atomically(self.folder / name, content)

    def announce(self, names: Iterable[str]) -> None:
        """Note the names of files that are about to be written beside the store."""
        names = list(names)
        wrong = [name for name in names if not is_plain_name(name)]
        if wrong:
            raise Damaged(
                f"the results in {self.name} name a file {wrong[0][:LONGEST_NAME]!r}, which is no"
                " file of this folder: nothing was written."
            )
        with self._base.spoken(), self._base.transaction():
            self._check_mine()
            self._base.many("INSERT OR IGNORE INTO files VALUES (?)", ((name,) for name in names))

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


def is_plain_name(name: object) -> bool:
    """Whether a name is that of a file in the folder itself, and not of the store."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and not name.startswith(".")
        and not set(name) & set('/\\:*?"<>|')
        and not name.startswith(FILE)
    )


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
