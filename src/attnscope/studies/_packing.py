"""A row as the store keeps it: JSON, and its arrays beside it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def packed(values: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """A row as JSON, NaN and infinity included, and its arrays as one .npz."""
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: None if name in arrays else value for name, value in values.items()}
    if not arrays:
        return json.dumps(plain), None
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    return json.dumps(plain), data.getvalue()


def unpacked(content: str, arrays: bytes | None) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(content)
    if arrays is not None:
        with np.load(io.BytesIO(arrays), allow_pickle=False) as held:
            values |= {name: held[name] for name in held.files}
    return values


def digest(rows: Iterable[tuple[str, str, bytes | None]]) -> str:
    """SQLite notices a torn page, not a changed letter: this does."""
    made = hashlib.sha256()
    for kind, content, arrays in rows:
        for part in (kind.encode(), content.encode(), arrays or b""):
            made.update(len(part).to_bytes(8, "big") + part)
    return made.hexdigest()
