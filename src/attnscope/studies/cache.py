"""`Cache`: rows of earlier runs, in whatever folder these were, so that nothing is computed twice.

What is known here has the key of its cell and the versions that matter: of the packages, and a hash
of the source of attnscope itself, since equal versions may hide other code. A damaged or full cache
is no mistake of anybody: the run goes on without it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self, final

from attnscope.studies._database import Database, StoreError
from attnscope.studies._packing import Packed, digest
from attnscope.studies.cell import Cell, canonical, sha256
from attnscope.studies.engines.worker import versions

FILE = "known-results.sqlite"
NAMED_BY = "ATTNSCOPE_CACHE"
OFF = "off"
LARGEST_CELL = 2**20
"""Bytes of a cell that is kept; trajectories and pictures are not."""
LARGEST = 2**30
"""Bytes of all cells; beyond, those that were not used for longest are dropped."""

TABLES = """
CREATE TABLE IF NOT EXISTS known (
    key TEXT PRIMARY KEY, failure_probability REAL NOT NULL, seconds REAL NOT NULL,
    used REAL NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL, digest TEXT NOT NULL,
    content BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS ages ON known (used, size);
"""


class Known(NamedTuple):
    """Rows of an earlier run, and the failure probability that they have."""

    rows: Packed
    failure_probability: float
    seconds: float


@final
class Cache:
    """Rows by the study and the key of their cell, and by the versions that matter.

    Args:
        folder: Where it is or will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base: Database | None = None
        with suppress(StoreError, OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._base = Database(folder / FILE, repr(str(folder)), TABLES, check=False)
            self._shrink()

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The folder that ATTNSCOPE_CACHE names, by default ~/.cache/attnscope; None if it says
        off.
        """
        named = environment.get(NAMED_BY, "")
        if named.lower() == OFF:
            return None
        usual = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnscope"
        return cls(Path(named) if named else usual)

    def get(self, owner: str, cell: Cell) -> Known | None:
        """What is known of a cell, with a failure probability that is no larger."""
        with suppress(sqlite3.Error):
            key = _key(owner, cell)
            found = self._base and self._base.one(
                "SELECT content, digest, count, failure_probability, seconds FROM known"
                " WHERE key = ?",
                (key,),
            )
            if found and found[3] <= cell.failure_probability and digest(found[0]) == found[1]:
                assert self._base is not None
                self._base.execute("UPDATE known SET used = ? WHERE key = ?", (time.time(), key))
                return Known(Packed(*found[:3]), *found[3:])
        return None

    def put(self, owner: str, cell: Cell, rows: Packed, seconds: float) -> None:
        """Keep what a finished cell gave; what has a smaller failure probability stays."""
        if self._base is None or len(rows.content) > LARGEST_CELL:
            return
        told = (_key(owner, cell), cell.failure_probability, seconds, time.time())
        with suppress(sqlite3.Error):
            self._base.execute(
                "INSERT INTO known VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
                " failure_probability = excluded.failure_probability, seconds = excluded.seconds,"
                " used = excluded.used, count = excluded.count, size = excluded.size,"
                " digest = excluded.digest, content = excluded.content"
                " WHERE excluded.failure_probability < failure_probability",
                (*told, rows.size, len(rows.content), rows.digest, rows.content),
            )

    def close(self) -> None:
        if self._base is not None:
            self._base.close()

    def _shrink(self) -> None:
        """Drop what was not used for longest, down to half, once it is too much."""
        assert self._base is not None
        with suppress(sqlite3.Error):
            (total,) = self._base.one("SELECT TOTAL(size) FROM known")
            if total > LARGEST:
                self._base.execute(
                    "DELETE FROM known WHERE key IN (SELECT key FROM (SELECT key, SUM(size) OVER"
                    " (ORDER BY used DESC, key) AS newer FROM known) WHERE newer > ?)",
                    (LARGEST / 2,),
                )
                self._base.execute("VACUUM")


def _key(owner: str, cell: Cell) -> str:
    return sha256(
        canonical({"study": owner, "cell": cell.key, "source": source_hash(), **versions()})
    )


@functools.cache
def source_hash() -> str:
    """sha256 of the Python files of this package."""
    package, made = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        made.update(f"{path.relative_to(package)} {len(content)}\n".encode() + content)
    return made.hexdigest()
