"""What is whole in a damaged store.

SQLite finds a cell by its number through pages that may be torn, so each number is asked for on its
own: cells behind a torn page are lost, the others come back, each checked by its digest. The first
page of a file holds only what every store has in common, so that one torn there gets another.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.studies._database import Database
from attnscope.studies._packing import digest
from attnscope.studies.identity import Identity
from attnscope.studies.store import FILE, FORMAT, TABLES, BadFolder, StoreError

LEAST_CELL = 100
"""Bytes that a cell takes at least, which bounds the numbers to ask for."""
MISSES = 100_000
"""Numbers in a row without a cell after which there is none any more."""
COLUMNS = (
    *("id", "key", "place", "fields", "failure_probability", "seconds", "finished", "count"),
    *("stored", "digest", "content"),
)
PAGE = 4096


class Recovered(NamedTuple):
    """How many cells are whole, and where the damaged file is now."""

    cells: int
    lost: int
    """Cells that are there in part only; others may have left no trace."""
    kept: Path


def recover(folder: Path) -> Recovered:
    """Make a store of what is whole; the damaged one is kept beside it under another name.

    Raises:
        StoreError: If nothing is whole, or if it is no longer known whose results these are.
    """
    path = folder / FILE
    if not path.is_file() or path.is_symlink():
        raise BadFolder(f"{str(folder)!r} holds no results: there is no {FILE} in it.")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made, lost = Path(place) / FILE, 0
        about, cells, failures, files = _whole(path)
        if not about:
            about, cells, failures, files = _with_another_head(path, Path(place) / "head.sqlite")
        if not {"format", *Identity._fields} <= about.keys():
            raise StoreError(
                f"nothing in {str(path)!r} can be recovered: whose results it holds is lost. Move"
                " it away and run the study again; what the cache of results knows is not computed"
                " anew."
            )
        if about["format"] != FORMAT:
            raise StoreError(f"{str(path)!r} was written by another version of attnscope.")
        base = Database(made, repr(str(made)), TABLES)
        with closing(base):
            with base.transaction():
                base.many("INSERT INTO about VALUES (?, ?)", iter(about.items()))
                base.many("INSERT OR IGNORE INTO files VALUES (?)", files)
                base.many("INSERT OR IGNORE INTO failures VALUES (?, ?, ?, ?, ?, ?)", failures)
                for cell in cells:
                    if cell is None:
                        lost += 1
                        continue
                    marks = ", ".join("?" * len(COLUMNS))
                    base.execute(f"INSERT OR IGNORE INTO cells VALUES ({marks})", cell)
            (count,) = base.one("SELECT COUNT(*) FROM cells")
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        kept = _free_name(folder)
        os.replace(path, kept)
        for suffix in ("-wal", "-shm"):  # they belong to the damaged file
            with suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{kept}{suffix}")
        os.replace(made, path)
    return Recovered(count, lost, kept)


Lines = Iterator[tuple[Any, ...]]
Found = tuple[dict[str, str], Iterator[tuple[Any, ...] | None], Lines, Lines]


def _whole(path: Path) -> Found:
    """What SQLite can still read: about, cells (None for a part of one), failures, files."""
    base = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)
    base.execute("PRAGMA trusted_schema=OFF")
    about: dict[str, str] = {}
    with suppress(sqlite3.Error):
        for line in base.execute("SELECT name, value FROM about"):
            about[line[0]] = line[1]
    failures = _lines(base, "SELECT key, place, fields, reason, seconds, stored FROM failures")
    cells = _cells(base, path.stat().st_size)
    return about, cells, failures, _lines(base, "SELECT name FROM files")


def _cells(base: sqlite3.Connection, size: int) -> Iterator[tuple[Any, ...] | None]:
    columns, misses = ", ".join(COLUMNS), 0
    for number in range(1, size // LEAST_CELL + 1):
        try:
            found = base.execute(f"SELECT {columns} FROM cells WHERE id = ?", (number,)).fetchone()
        except sqlite3.DatabaseError:
            yield None
            continue
        misses = 0 if found else misses + 1
        if misses > MISSES:
            return
        if found:
            whole = isinstance(found[-1], bytes) and digest(found[-1]) == found[-2]
            yield found if whole else None


def _lines(base: sqlite3.Connection, statement: str) -> Lines:
    """As many lines as can be read."""
    with suppress(sqlite3.DatabaseError):
        yield from base.execute(statement)


def _with_another_head(path: Path, copy: Path) -> Found:
    """The file with the first page of a new store: all stores begin alike."""
    with closing(Database(copy, repr(str(copy)), TABLES)) as fresh:
        fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    new = copy.read_bytes()
    head, content = bytearray(new[:PAGE]), path.read_bytes()
    content = content.ljust(len(new), b"\0")  # of a file that was cut off
    head[28:32] = (len(content) // PAGE).to_bytes(4, "big")  # how many pages there are
    copy.write_bytes(bytes(head) + content[PAGE:])
    return _whole(copy)


def _free_name(folder: Path) -> Path:
    names = (folder / f"damaged-{number}.sqlite" for number in range(1, 10_000))
    return next(name for name in names if not name.exists())
