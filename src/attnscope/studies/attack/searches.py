"""The rows of one cell: a search, the law of mass splitting, or a point of the curves L(n, R)."""

from __future__ import annotations

import numpy as np

from attnscope import attacks
from attnscope.attacks.lengths import Point, next_point
from attnscope.studies.attack.rows import (
    CurveBoundRow,
    CurvePoint,
    CurveRow,
    FiniteRow,
    Law,
    SplitRow,
    TargetCell,
    Worst,
    WorstRow,
)
from attnscope.studies.attack.target import Target, hash_target, target_of
from attnscope.studies.workbench import Workbench, check_hash


def checked(cell: TargetCell, workbench: Workbench) -> Target:
    """The target of a cell, as it was when the cell was made."""
    target = target_of(cell, workbench)
    check_hash(f"what is attacked, {target.name},", hash_target(target), cell.made)
    return target


def worst(cell: Worst, workbench: Workbench) -> list[WorstRow]:
    """The worst input found; a search that is stopped keeps what it has."""
    target = checked(cell, workbench)
    found = attacks.worst_case(
        target.attention,
        cell.n,
        cell.ball,
        cell.weighted,
        starts=cell.starts,
        steps=cell.steps,
        seed=cell.seed,
        progress=lambda part, best: workbench.going(part, f"worst input, best {best:.5g}"),
    )
    upper = found.bound
    return [
        WorstRow(
            target=target.name,
            n=cell.n,
            radius=cell.ball,
            weighted=cell.weighted,
            value=found.value,
            bound=None if upper is None else upper.value,
            bound_name=None if upper is None else upper.name,
            bound_source=None if upper is None else upper.source,
            bound_assumes=None if upper is None else upper.assumes,
            start=found.start,
            tokens=found.tokens.cpu().numpy(),
            weights=found.weights.cpu().numpy(),
            history=found.history.cpu().numpy(),
            names=np.array(found.names),
        )
    ]


def law(cell: Law, workbench: Workbench) -> list[SplitRow | FiniteRow]:
    """The law of mass splitting and, where halves of a token can share its place, finite
    attacks.
    """
    target = checked(cell, workbench)
    workbench.check(0.0, "mass splitting")
    finite: list[FiniteRow] = []
    if target.attention.heads.positional:
        made = attacks.split(target.attention, target.mu)
    else:
        found = attacks.compare(target.attention, target.mu, cell.budgets)
        made = found.law
        finite = [
            FiniteRow(kind, *attack, attack.ratio)
            for kind, attempts in (("move", found.move), ("split", found.split))
            for attack in attempts
        ]
    row = SplitRow(
        target=target.name,
        n=target.mu.n,
        move=made.move,
        split=made.split,
        gain=made.gain,
        token=made.token,
        converged=made.converged,
        direction=made.direction.cpu().numpy(),
        apart=made.apart.cpu().numpy(),
    )
    return [row, *finite]


def curve_point(cell: CurvePoint, workbench: Workbench) -> list[CurveRow | CurveBoundRow]:
    """What is found at the last length and radius, and every bound there."""
    target = checked(cell, workbench)
    point = _point(cell, target, workbench, cell.lengths, cell.radii)
    row = CurveRow(
        target.name,
        point.n,
        point.radius,
        point.found.value,
        point.found.start,
        point.found.tokens.cpu().numpy(),
    )
    return [
        row,
        *(CurveBoundRow(point.n, point.radius, one.name, one.value) for one in point.bounds),
    ]


def _point(
    cell: CurvePoint,
    target: Target,
    workbench: Workbench,
    lengths: tuple[int, ...],
    radii: tuple[float, ...],
) -> Point:
    """The point of the last length and radius. Those before it, at which its search begins, are
    found once per process: a run that goes on after a stop finds them again, so that a row depends
    on its cell alone.
    """
    n, radius = lengths[-1], radii[-1]

    def search() -> Point:
        before = [
            _point(cell, target, workbench, lengths[: i + 1], radii[: j + 1])
            for i in range(len(lengths))
            for j in range(len(radii))
            if (i, j) != (len(lengths) - 1, len(radii) - 1)
        ]

        def told(part: float, best: float) -> bool:
            return workbench.going(part, f"L({n}, {radius:.3g}), best {best:.5g}")

        found = next_point(
            target.attention, n, radius, before, cell.starts, cell.steps, cell.seed, told
        )
        workbench.check(1.0)  # a search that was cut short is not kept
        return found

    name = ("attack point", cell.made, cell.starts, cell.steps, cell.seed, lengths, radii)
    made: Point = workbench.once(name, search)
    return made
