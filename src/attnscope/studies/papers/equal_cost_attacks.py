r"""Attacks at equal transport cost: move all tokens along the top singular vector, or send the
halves of one token apart; distances in exact $W_2$ [castin24, first version].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from attnscope.attacks import compare
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, RED, new_figure
from attnscope.studies.papers._figure import PaperFigure, between, every, falls, share
from attnscope.studies.papers.splitting_gain import problem
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

CLOSE = 0.02
KINDS = ("move", "split")


class Attempt(NamedTuple):
    """One attack: the W_2 distance spent and that of the outputs, and what the law says of their
    ratio for small budgets.
    """

    draw: int
    kind: str
    eps: float
    spent: float
    moved: float
    law: float


@dataclass(frozen=True)
class CostConfig:
    eps: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    draws: int = 20
    strength: float = 3.0
    n: int = 8
    dim: int = 4
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class CostCell(Cell):
    draw: int
    eps: tuple[float, ...]
    strength: float
    n: int
    dim: int
    seed: int


class EqualCostAttacks(PaperFigure):
    """Moving tokens against splitting one of them, at equal transport cost."""

    name = "equal_cost_attacks"
    paper = "castin24"
    figure = "attacks at equal transport cost"
    topic = "measures"
    seconds = (2, 10)
    Config = CostConfig
    fast = CostConfig(eps=(1e-3, 1e-2, 0.1, 1.0), draws=6)
    tables: ClassVar[dict[str, type]] = {"results": Attempt}

    def cells(self, config: CostConfig, workbench: Workbench) -> Iterable[CostCell]:
        for name in ("draws", "n", "dim", "strength"):
            check_positive(name, getattr(config, name))
        for draw in range(config.draws):
            yield CostCell(
                draw=draw,
                eps=config.eps,
                strength=config.strength,
                n=config.n,
                dim=config.dim,
                seed=config.seed,
            )

    def run(self, cell: CostCell, workbench: Workbench) -> list[Attempt]:
        attention, mu = problem(cell.seed, cell.draw, cell.strength, cell.n, cell.dim)
        found = compare(attention, mu, cell.eps)
        return [
            Attempt(cell.draw, kind, attack.eps, attack.spent, attack.moved, law)
            for kind, attacks, law in (
                ("move", found.move, found.law.move),
                ("split", found.split, found.law.split),
            )
            for attack in attacks
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(5.8, 4.2)
        ax = figure.add_subplot()
        for kind, color, form in zip(KINDS, (BLUE, RED), ("o-", "^--"), strict=True):
            for draw in dict.fromkeys(row.draw for row in table):
                rows = [row for row in table if (row.draw, row.kind) == (draw, kind)]
                spent = [row.spent for row in rows]
                ratios = [row.moved / row.spent for row in rows]
                ax.plot(spent, ratios, form, color=color, markersize=3, linewidth=0.8)
            ax.plot([], [], form, color=color, label=kind)
        ax.set(xscale="log", yscale="log", xlabel="$W_2$ of the inputs")
        ax.set(ylabel="$W_2$ of the outputs per $W_2$ of the inputs")
        ax.set_title("Equal transport cost, one line per draw")
        ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        draws = list(dict.fromkeys(row.draw for row in table))
        for kind in KINDS if draws else ():
            ends, before = [], []
            for draw in draws:
                rows = sorted(
                    (row for row in table if (row.draw, row.kind) == (draw, kind)),
                    key=lambda row: row.eps,
                )
                apart = [abs(row.moved / row.spent / row.law - 1) for row in rows]
                if len(apart) > 1:
                    ends.append(apart[0])
                    before.append(apart[1])
            made.append(
                Verdict(
                    f"{kind}: for small budgets the gain is that of the law",
                    "a limit",
                    f"relative distances {between(ends)}, {len(ends)} draws",
                    every(falls(end, was, CLOSE) for end, was in zip(ends, before, strict=True)),
                    f"below {CLOSE:g} counts as there; above, it must fall with the budget",
                )
            )
        if draws:
            right = sum(_agrees(table, draw) for draw in draws)
            made.append(
                Verdict(
                    "the law says which attack is stronger at the smallest budget",
                    "it does",
                    f"{share(right, len(draws))} draws",
                    right == len(draws),
                    "the order of the two ratios is that of the law, ties within 2 % aside",
                )
            )
        return made


def _agrees(table: Table, draw: int) -> bool:
    rows = {row.kind: row for row in sorted(table, key=lambda row: -row.eps) if row.draw == draw}
    if len(rows) < 2:
        return False
    law = rows["split"].law / rows["move"].law
    found = rows["split"].moved / rows["split"].spent / (rows["move"].moved / rows["move"].spent)
    return (law > 1) == (found > 1) or abs(law - 1) < CLOSE
