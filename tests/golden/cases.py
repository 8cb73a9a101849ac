"""Fixed cases whose numbers are pinned in golden.json: proved bounds, certificates and constants.

`python tests/golden/cases.py` computes all of them and writes golden.json. A "bound" may only
become smaller, a "lower" bound and a "certificate" only larger, a "constant" must stay.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import golden_bounds
import golden_flows
import golden_maps
import golden_models
import golden_nets
import torch
from golden_source import Group, Kind, Value

FILE = Path(__file__).parent / "golden.json"

GROUPS: dict[str, Callable[[], Group]] = {
    "bounds on balls": golden_bounds.on_ball,
    "bounds at points": golden_bounds.smoothness,
    "constructions": golden_bounds.constructions,
    "sensitivity": golden_bounds.sensitivity,
    "remainders": golden_bounds.remainder,
    "limits": golden_bounds.limits,
    "fields": golden_maps.fields,
    "jacobians": golden_maps.jacobians,
    "closed forms": golden_maps.closed_forms,
    "transport": golden_maps.transport,
    "attacks": golden_maps.attacks,
    "stability": golden_flows.stability,
    "particle flows": golden_flows.particles,
    "gaussian flows": golden_flows.gaussians,
    "energies": golden_flows.energies,
    "shapes": golden_flows.shapes,
    "invertible": golden_nets.invertible,
    "layers": golden_nets.layers,
    "certificates": golden_nets.certificates,
    "digits": golden_nets.digits,
    "plain networks": golden_nets.plain,
    "models": golden_models.parts,
    "measured models": golden_models.measured,
}


class Number(NamedTuple):
    """A pinned number, or several of them under one key."""

    kind: Kind
    value: Value


def run(group: str) -> dict[str, Number]:
    """The numbers of a group, by key; each key once, none of them NaN."""
    found: dict[str, Number] = {}
    for key, kind, value in GROUPS[group]():
        if key in found:
            raise ValueError(f"{group}: the key {key!r} comes twice.")
        if any(math.isnan(one) for one in (value if isinstance(value, list) else [value])):
            raise ValueError(f"{group}: {key!r} is not a number.")
        found[key] = Number(kind, value)
    return found


def read() -> dict[str, dict[str, Number]]:
    """The pinned numbers, by group and key."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        group: {key: Number(kind, _decoded(value)) for key, (kind, value) in rows.items()}
        for group, rows in stored.items()
    }


def write(found: dict[str, dict[str, Number]]) -> None:
    """Pin these numbers: one line for each key, infinities as strings."""
    parts = []
    for group, rows in found.items():
        lines = [
            f"  {json.dumps(key)}: {json.dumps([kind, _encoded(value)])}"
            for key, (kind, value) in rows.items()
        ]
        parts.append(f" {json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n }")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _encoded(value: Value) -> object:
    if isinstance(value, list):
        return [_encoded(one) for one in value]
    return value if math.isfinite(value) else repr(value)


def _decoded(value: object) -> Value:
    return [float(one) for one in value] if isinstance(value, list) else float(value)  # type: ignore[arg-type]


def main() -> None:
    """Compute everything, write it, and say how many numbers of each kind there are."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, Number]] = {}
    for group in GROUPS:
        begun = time.monotonic()
        found[group] = run(group)
        print(f"{group}: {len(found[group])} keys, {time.monotonic() - begun:.1f} s")
    write(found)
    kinds = [number.kind for rows in found.values() for number in rows.values()]
    print({kind: kinds.count(kind) for kind in dict.fromkeys(kinds)})


if __name__ == "__main__":
    main()
