"""`status`: how far the run in a folder is, from the outside, while it runs or after it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from attnscope.studies.lock import at_work
from attnscope.studies.store import Store

RECENT = 600.0
"""Seconds over which the rate is taken."""


class Status(NamedTuple):
    """What a folder holds. `rate` is cells per second of the last minutes, while it is at work."""

    study: str
    at_work: bool
    planned: int
    finished: int
    rows: int
    failed: int
    reasons: list[tuple[str, int]]
    """Why cells failed, and how many of them, the most common first."""
    seconds: float
    failure_probability: float
    rate: float

    @property
    def left(self) -> int:
        return max(0, self.planned - self.finished - self.failed)

    @property
    def seconds_left(self) -> float | None:
        """None when it cannot be told."""
        return self.left / self.rate if self.rate > 0 else None


def status(folder: Path) -> Status:
    """How far the run in this folder is."""
    with Store(folder, check=False) as store:
        about, totals, failures = store.about(), store.totals(), store.failures()
        working, now = at_work(folder), time.time()
        since = max(now - RECENT, float(about.get("begun", 0.0)))
        recent = store.stored_since(since) if working else 0
    return Status(
        about["study"],
        working,
        int(about.get("planned", totals.finished)),
        totals.finished,
        totals.rows,
        len(failures),
        Counter(failure.reason for failure in failures).most_common(),
        totals.seconds,
        totals.failure_probability,
        recent / max(now - since, 1e-9),
    )
