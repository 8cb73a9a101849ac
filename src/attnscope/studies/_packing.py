"""The rows of a cell as they are stored and sent: one string of bytes, and a hash of it."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnscope.validation import parsed


class Packed(NamedTuple):
    """All rows of a cell. SQLite notices a torn page, not a changed letter: the digest does."""

    content: bytes
    digest: str
    size: int
    """How many rows."""


def pack(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Packed:
    """Rows as (kind, values): JSON, NaN and infinity included, and all arrays as one .npz."""
    plain, arrays = [], {}
    for number, (kind, values) in enumerate(rows):
        held = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        arrays.update({f"{number}.{name}": value for name, value in held.items()})
        plain.append([kind, {k: None if k in held else value for k, value in values.items()}])
    text = zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 1)
    data = io.BytesIO()
    if arrays:
        np.savez_compressed(data, allow_pickle=False, **arrays)
    content = len(text).to_bytes(8, "big") + text + data.getvalue()
    return Packed(content, digest(content), len(plain))


def unpack(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The rows again, bit for bit."""
    end = 8 + int.from_bytes(content[:8], "big")
    rows = [(kind, values) for kind, values in parsed(zlib.decompress(content[8:end]))]
    if len(content) > end:
        with np.load(io.BytesIO(content[end:]), allow_pickle=False) as held:
            for place in held.files:
                number, _, name = place.partition(".")
                rows[int(number)][1][name] = held[place]
    return rows


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
