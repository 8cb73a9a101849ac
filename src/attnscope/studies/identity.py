"""`Identity`: whose results a folder holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from attnscope.studies.cell import Cell, canonical, sha256


class Identity(NamedTuple):
    """What a folder of results belongs to: the same identity goes on, another one is refused."""

    study: str
    version: str
    config: str
    """Canonical JSON."""
    cells: str
    """A hash of the keys of all cells, in which weights and texts stand by their hash."""

    @classmethod
    def of(cls, study: str, version: str, config: Mapping[str, Any], cells: Iterable[Cell]) -> Self:
        keys = sha256(canonical([cell.key for cell in cells]))
        return cls(study, version, canonical(config), keys)

    def difference(self, wanted: Identity) -> str:
        """How results of this differ from those that are wanted, in a few words."""
        if self.study != wanted.study:
            return f"of {self.study!r}, not of {wanted.study!r}"
        if self.version != wanted.version:
            return f"of attnscope {self.version}, this is {wanted.version}"
        before, after = json.loads(self.config), json.loads(wanted.config)
        names = [name for name in after if before.get(name) != after[name]]
        if names:
            told = ", ".join(f"{name} {_short(before.get(name))}" for name in names[:3])
            return f"of other options ({told})"
        return "of other weights or another text under the same name"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
