"""A file of SQLite that several processes may open; its complaints become sentences."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

PATIENCE = 60.0
"""Seconds to wait for another process that writes."""
CHECKED_AT_ONCE = 2**26
"""Bytes of a file that is read through when it is opened; in a larger one damage is found when a
cell is read, by its digest.
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
class Database:
    """One connection, in write-ahead mode: readers never wait, writers wait for each other.

    Args:
        path: The file; None for one in memory.
        name: What sentences call it.
        tables: Statements that make what is missing, separated by semicolons.
        check: Whether to look for damage now.
    """

    def __init__(self, path: Path | None, name: str, tables: str, check: bool = True) -> None:
        self.name = name
        if path is not None and path.is_symlink():
            # a folder from elsewhere could lead to a file of somebody else
            raise BadFolder(f"{str(path)!r} is a link: results are a file of their own folder.")
        with self.spoken():
            self._base = sqlite3.connect(
                ":memory:" if path is None else path, timeout=PATIENCE, isolation_level=None
            )
            try:
                self._base.execute("PRAGMA trusted_schema=OFF")  # foreign files run nothing
                self._write_ahead()
                if check and path is not None and path.stat().st_size <= CHECKED_AT_ONCE:
                    (state,) = self.one("PRAGMA quick_check(1)")
                    if state != "ok":
                        raise sqlite3.DatabaseError(state)
                with self.transaction():
                    for statement in tables.split(";"):
                        self.execute(statement)
            except BaseException:
                self._base.close()
                raise

    def _write_ahead(self) -> None:
        """Changing the mode does not wait for others by itself, so it is tried again."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.one("PRAGMA journal_mode=WAL")
                self.execute("PRAGMA synchronous=NORMAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._base.execute(statement, values)

    def many(self, statement: str, values: Iterator[Sequence[Any]]) -> None:
        self._base.executemany(statement, values)

    def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._base.execute(statement, values).fetchone()

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it, or nothing."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has ended it already
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """What SQLite and the disk complain about, as one sentence."""
        kept = "what was stored before is kept"
        try:
            yield
        except sqlite3.OperationalError as error:
            if "full" in str(error):
                raise StoreError(f"there is no room left for {self.name}; {kept}.") from error
            if "no such" in str(error):  # column or table: made by other code
                raise OtherResults(
                    f"{self.name} was written by another version of attnscope."
                ) from error
            if "locked" in str(error):
                raise StoreError(f"another program holds {self.name}; {kept}.") from error
            raise BadFolder(f"{self.name} cannot be written ({error}); {kept}.") from error
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"the results in {self.name} are damaged ({error}): `attnscope recover` keeps what"
                " is whole, overwriting starts afresh."
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise BadFolder(f"{self.name} cannot be written ({reason}); {kept}.") from error
