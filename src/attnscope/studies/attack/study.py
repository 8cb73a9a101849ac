"""`Attack`: which inputs does attention stretch most, and does splitting tokens help?"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from attnscope.attacks.search import check_call
from attnscope.attacks.splitting import check_splittable
from attnscope.bounds import check_covered
from attnscope.studies.attack import figures as drawn
from attnscope.studies.attack.rows import (
    AttackConfig,
    CurveBoundRow,
    CurvePoint,
    CurveRow,
    FiniteRow,
    Law,
    Source,
    SplitRow,
    Worst,
    WorstRow,
)
from attnscope.studies.attack.searches import curve_point, law, worst
from attnscope.studies.attack.summary import curve_sheet, split_sheets, worst_sheet
from attnscope.studies.attack.target import Target, hash_target, target_of
from attnscope.studies.cell import Cell
from attnscope.studies.study import Sheet, Study
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

ONLY = ("both", "worst", "split")
BUDGETS = (0.001, 0.01, 0.1, 1.0)
"""Default budgets of the finite attacks, in units of the root mean square norm of the tokens."""


class Attack(Study):
    """The worst input in a ball next to the proved bound, the law of mass splitting with finite
    attacks, and the curves L(n, R).
    """

    name = "attack"
    Config = AttackConfig
    fast = AttackConfig(
        dim=4, tokens=8, starts=6, steps=30, lengths=(2, 4), radii=(0.5, 1.0), radius=1.0
    )
    tables: ClassVar[dict[str, type]] = {
        "worst": WorstRow,
        "split": SplitRow,
        "attacks": FiniteRow,
        "curves": CurveRow,
        "curve_bounds": CurveBoundRow,
    }

    def cells(self, config: AttackConfig, workbench: Workbench) -> Iterator[Cell]:
        if config.only not in ONLY:
            raise ValueError(f"only must be one of {', '.join(ONLY)}, got {config.only!r}.")
        target = target_of(config, workbench)
        search = {"starts": config.starts, "steps": config.steps}
        budgets, grid = _budgets(config, target), _grid(config, target.radius)
        if config.only != "split":
            check_call(target.attention, config.tokens, target.radius, config.weighted, **search)
        if config.only != "worst":
            check_splittable(target.attention, target.mu)
        for n, radius in ((n, radius) for n in grid[0] for radius in grid[1]):
            check_covered(target.attention)
            check_call(target.attention, n, radius, False, **search)
        yield from _cells(config, target, budgets, grid)

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if isinstance(cell, Worst):
            return list(worst(cell, workbench))
        if isinstance(cell, Law):
            return list(law(cell, workbench))
        return list(curve_point(cell, workbench))

    def figures(self, table: Table) -> dict[str, Any]:
        text = None if table.config.model is None else table.config.text
        made = {}
        if table["worst"]:
            made["worst"] = drawn.worst(table["worst"][0], text)
        if table["attacks"]:
            made["split"] = drawn.split(table["split"][0], table["attacks"], text)
        if table["curves"]:
            made["curves"] = drawn.curves(table["curves"], table["curve_bounds"])
        return made

    def summary(self, table: Table) -> list[Sheet]:
        made = [worst_sheet(row) for row in table["worst"]]
        for row in table["split"]:
            made += split_sheets(row, table["attacks"])
        if table["curves"]:
            made.append(curve_sheet(table["curves"], table["curve_bounds"]))
        return made

    def remarks(self, table: Table) -> list[str]:
        return [
            "The law of mass splitting did not converge: both of its numbers are lower bounds."
            for row in table["split"]
            if not row.converged
        ]

    def files(self, table: Table) -> dict[str, bytes]:
        """Every number in one file, and the worst input."""
        made: dict[str, Any] = {}
        files: dict[str, bytes] = {}
        for row in table["worst"]:
            made["worst"] = _worst_record(row)
            data = io.BytesIO()
            np.savez(data, tokens=row.tokens, weights=row.weights, history=row.history)
            files["worst.npz"] = data.getvalue()
        for row in table["split"]:
            told = row._asdict() | {
                "direction": row.direction.tolist(),
                "apart": row.apart.tolist(),
            }
            told["gain"] = row.gain if math.isfinite(row.gain) else None
            made["split"] = told | {"attacks": [one._asdict() for one in table["attacks"]]}
        if table["curves"]:
            made["curves"] = [
                {
                    "n": row.n,
                    "radius": row.radius,
                    "found": row.found,
                    "bounds": {
                        one.name: one.value if math.isfinite(one.value) else None
                        for one in table["curve_bounds"]
                        if (one.n, one.radius) == (row.n, row.radius)
                    },
                }
                for row in table["curves"]
            ]
        if not made:
            return {}
        text = json.dumps(made, indent=1, allow_nan=False) + "\n"
        return {"attack.json": text.encode(), **files}


def _cells(
    config: AttackConfig,
    target: Target,
    budgets: tuple[float, ...],
    grid: tuple[tuple[int, ...], tuple[float, ...]],
) -> Iterator[Cell]:
    place = {field.name: getattr(config, field.name) for field in dataclasses.fields(Source)}
    place["made"] = hash_target(target)
    search: dict[str, Any] = {"starts": config.starts, "steps": config.steps}
    if config.only != "split":
        yield Worst(
            **place, n=config.tokens, ball=target.radius, weighted=config.weighted, **search
        )
    if config.only != "worst":
        yield Law(**place, budgets=budgets)
    lengths, radii = grid
    for i in range(len(lengths)):
        for j in range(len(radii)):
            yield CurvePoint(**place, lengths=lengths[: i + 1], radii=radii[: j + 1], **search)


def _budgets(config: AttackConfig, target: Target) -> tuple[float, ...]:
    if config.eps is not None:
        for eps in config.eps:
            check_positive("eps", eps)
        return tuple(sorted(set(config.eps)))
    typical = float(target.mu.x.square().sum(-1).mean().sqrt())
    return tuple(typical * factor for factor in BUDGETS)


def _grid(config: AttackConfig, radius: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Lengths and radii of the curves, sorted; none without lengths."""
    if config.lengths is None:
        if config.radii is not None:
            raise ValueError("the radii of the curves L(n, R) go with lengths: name these too.")
        return (), ()
    radii = [radius * part / 4 for part in (1, 2, 3, 4)] if config.radii is None else config.radii
    return tuple(sorted(set(config.lengths))), tuple(sorted(set(radii)))


def _worst_record(row: WorstRow) -> dict[str, Any]:
    ends = row.history[[0, -1]].tolist()
    return {
        "value": row.value,
        "bound": None
        if row.bound is None
        else {
            "value": row.bound,
            "side": "upper",
            "kind": "proved",
            "name": row.bound_name,
            "source": row.bound_source,
            "assumes": row.bound_assumes,
        },
        "ratio": row.ratio,
        "start": row.start,
        "starts": {
            name: [first, last] for name, first, last in zip(row.names.tolist(), *ends, strict=True)
        },
    }
