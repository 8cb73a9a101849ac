"""One run at a time works in a folder; another one of the same study waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not every system has it: there, two runs share the store without waiting
    fcntl = None  # type: ignore[assignment]

LOOK = 0.2
"""Seconds between two looks."""


@contextmanager
def only_one(
    folder: Path | None, wait: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[bool]:
    """While inside, nobody else is; False when `wait` said to wait no longer.

    The lock is on the folder itself: it leaves no file, and ends with its process.
    """
    if folder is None or fcntl is None:
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        mine = _taken(handle)
        if not mine:
            say(f"Another run is at work in {folder}: waiting for it to end.")
        while not mine and wait():
            time.sleep(LOOK)
            mine = _taken(handle)
        yield mine
    finally:
        os.close(handle)


def at_work(folder: Path) -> bool:
    """Whether a run works in this folder now."""
    if fcntl is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        return not _taken(handle)
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
