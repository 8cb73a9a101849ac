"""`Identity`: whose results a folder holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from attnscope.studies.cell import Cell, canonical, sha256
from attnscope.validation import parsed


class Identity(NamedTuple):
    """What a folder of results belongs to: the same identity goes on, another one is refused."""

    study: str
    version: str
    config: str
    """Canonical JSON."""
    cells: str
    """For each group of cells a hash of their keys, in which weights and texts stand by their hash;
    null while a group cannot be planned, as its model cannot be loaded. Canonical JSON.
    """

    @classmethod
    def of(cls, study: str, version: str, config: Mapping[str, Any], cells: Iterable[Cell]) -> Self:
        keys: dict[str, list[str] | None] = {}
        for cell in cells:
            held = keys.setdefault(cell.group, [])
            if held is not None:
                held.append(cell.key)
            if not cell.planned:
                keys[cell.group] = None
        hashes = {group: held and sha256(canonical(held)) for group, held in keys.items()}
        return cls(study, version, canonical(config), canonical(hashes))

    def accepts(self, wanted: Identity) -> bool:
        """Whether a run of the wanted identity may go on here."""
        return self[:3] == wanted[:3] and not self._changed(wanted)

    def joined(self, wanted: Identity) -> Identity:
        """What is known of the groups, before and now."""
        before, now = parsed(self.cells), parsed(wanted.cells)
        known = {group: key or before.get(group) for group, key in now.items()}
        return wanted._replace(cells=canonical(before | known))

    def _changed(self, wanted: Identity) -> list[str]:
        before, now = parsed(self.cells), parsed(wanted.cells)
        both = before.keys() & now.keys()
        return sorted(
            group for group in both if before[group] and now[group] and before[group] != now[group]
        )

    def difference(self, wanted: Identity) -> str:
        """How results of this differ from those that are wanted, in a few words."""
        if self.study != wanted.study:
            return f"of {self.study!r}, not of {wanted.study!r}"
        if self.version != wanted.version:
            return f"of attnscope {self.version}, this is {wanted.version}"
        before, after = parsed(self.config), parsed(wanted.config)
        names = [name for name in after if before.get(name) != after[name]]
        if names:
            told = ", ".join(f"{name} {_short(before.get(name))}" for name in names[:3])
            return f"of other options ({told})"
        return "of other weights, other code or another text under the same name"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
