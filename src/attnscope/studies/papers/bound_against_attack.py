r"""How far the output of one residual attention layer can move, proved by each kind of bound and
found by an attack, over eps, for 1 and 8 heads [havens24].

The bounds are derived in docs/theorems.md; the paper's own are not known to us, L1 is of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnscope.studies.cell import Cell
from attnscope.studies.certify.figures import bound_against_attack
from attnscope.studies.certify.layer import FOUND, SMALLEST, layer_rows
from attnscope.studies.certify.rows import LAYER_EPS, LayerRow, OneLayer
from attnscope.studies.papers._figure import PaperFigure, between
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

NAIVE, LOCAL = "G0", "L1"
NEAR = 1.25
"""The smallest bound over the attack at the smallest eps that counts as tight."""


@dataclass(frozen=True)
class BoundConfig:
    heads: tuple[int, ...] = (1, 8)
    eps: tuple[float, ...] = LAYER_EPS
    draws: int = 5
    steps: int = 100
    restarts: int = 5


class BoundAgainstAttack(PaperFigure):
    """Every bound on how far one layer can move, the naive one too, against an attack."""

    name = "bound_against_attack"
    paper = "havens24"
    figure = "bound against attack for 1 and 8 heads"
    topic = "certificates"
    seconds = (4, 150)
    Config = BoundConfig
    fast = BoundConfig(eps=(0.01, 0.1, 0.5, 1.0), draws=1, steps=30, restarts=2)
    tables: ClassVar[dict[str, type]] = {"results": LayerRow}

    def cells(self, config: BoundConfig, workbench: Workbench) -> Iterable[Cell]:
        for name in ("draws", "steps", "restarts"):
            check_positive(name, getattr(config, name))
        for draw in range(config.draws):
            for heads in config.heads:
                yield OneLayer(
                    heads=heads,
                    eps=config.eps,
                    steps=config.steps,
                    restarts=config.restarts,
                    seed=draw,
                )

    def run(self, cell: OneLayer, workbench: Workbench) -> list[LayerRow]:
        workbench.check(0.0, f"{cell.heads} heads, draw {cell.seed}")
        return layer_rows(cell)

    def figures(self, table: Table) -> dict[str, Any]:
        """The first draw."""
        first: dict[tuple[int, float, str], LayerRow] = {}
        for row in table:
            first.setdefault((row.heads, row.eps, row.by), row)
        whole = {heads for heads, _, by in first if by == FOUND}
        shown = [row for row in first.values() if row.heads in whole]
        return {self.name: bound_against_attack(shown)} if shown else {}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for heads in dict.fromkeys(row.heads for row in table):
            rows = [row for row in table if row.heads == heads]
            over = ratios(rows)
            if not over:
                continue
            name = f"{heads} head{'s' * (heads > 1)}"
            least = min(min(values) for values in over.values())
            made.append(
                Verdict(
                    f"{name}: no attack moves the output farther than a bound",
                    "theorems",
                    f"smallest bound over attack {least:.3f}, {len(over)} bounds",
                    least >= 1,
                    "every bound, eps and draw",
                )
            )
            if {NAIVE, LOCAL} <= set(over):
                gain = [g / one for g, one in zip(over[NAIVE], over[LOCAL], strict=True)]
                made.append(
                    Verdict(
                        f"{name}: the local bound L1 is below the naive one G0",
                        "at every eps",
                        f"G0 over L1 {between(gain, '.2f')}",
                        min(gain) > 1,
                        "local sensitivity around the input against the whole ball",
                    )
                )
            smallest = min(row.eps for row in rows)
            tight = [
                value
                for value, eps in zip(over[SMALLEST], _eps(rows), strict=True)
                if eps == smallest
            ]
            made.append(
                Verdict(
                    f"{name}: the smallest bound is tight for small eps",
                    "first-order exact",
                    f"bound over attack {between(tight, '.3f')} at eps = {smallest:g}",
                    True if max(tight) <= NEAR else None,
                    f"at most {NEAR:g} times what the attack finds; more may be the attack's fault",
                )
            )
        return made


def ratios(rows: list[LayerRow]) -> dict[str, list[float]]:
    """Each bound over what the attack found, in the order of the rows."""
    found = [row.moved for row in rows if row.by == FOUND]
    bounds: dict[str, list[float]] = {}
    for row in rows:
        if row.by != FOUND:
            bounds.setdefault(row.by, []).append(row.moved)
    return {
        name: [value / far for value, far in zip(values, found, strict=True)]
        for name, values in bounds.items()
        if len(values) == len(found)
    }


def _eps(rows: list[LayerRow]) -> list[float]:
    return [row.eps for row in rows if row.by == FOUND]
