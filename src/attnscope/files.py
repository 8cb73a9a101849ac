"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write to a neighbour and rename it at the end: a reader sees the old file or the new one,
    never half of it, and a failed write leaves the old one and nothing else.
    """
    # a name of its own: two processes may write the same file at the same time
    handle, partial = tempfile.mkstemp(".partial", path.name + ".", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # a full disk may show itself only here
        os.chmod(partial, 0o666 & ~_mask())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write this content, whole or not at all."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _mask() -> int:
    """The permissions that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
