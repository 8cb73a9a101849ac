r"""What the figures of $L(n, R)$ share: the worst inputs found in a ball, between all proved
bounds [castin24].

One head in the plane with V = I. Its A is not symmetric and its smallest eigenvalue is -1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from attnscope.attacks.lengths import Point, next_point
from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import Bound, constructions
from attnscope.studies.drawing import BLACK, COLOURS
from attnscope.studies.workbench import Workbench

FOUND = "found"
TRIED = 12
"""Directions of each cluster that are tried for U2''."""
ROUNDING = 1e-9
UPPER, LOWER = ("U1", "U1'", "M1", "M1'", "K3"), ("U2", "U2'", "U2''", "M2", "K2")
STYLES = {
    name: (COLOURS[place % 6], form)
    for names, form in ((UPPER, "--"), (LOWER, ":"))
    for place, name in enumerate(names)
}


class Level(NamedTuple):
    """A bound on L(n, R), or the largest constant found: a lower bound too."""

    causal: bool
    n: int
    radius: float
    name: str
    side: str
    value: float


def head(causal: bool) -> Softmax:
    r"""The head of these figures: $\gamma = 1$ of its constructions."""
    a = torch.tensor([[0.9, 0.4], [-0.2, -1.0]], dtype=torch.float64)
    a = a / torch.linalg.eigvals(a).real.min().abs()
    return Softmax(Heads.from_matrices(a, torch.eye(2, dtype=torch.float64)), causal=causal)


def levels(
    attention: Softmax,
    lengths: Sequence[int],
    radii: Sequence[float],
    starts: int,
    steps: int,
    seed: int,
    workbench: Workbench,
) -> list[Level]:
    """Every bound at every length and radius, and what a search finds; each search also begins at
    what was found before.
    """
    points: list[Point] = []
    made = []
    total = len(lengths) * len(radii)
    for n in sorted(lengths):
        for radius in sorted(radii):
            what = f"{'causal, ' * attention.causal}n = {n}, R = {radius:g}"

            def going(part: float, best: float, what: str = what) -> bool:
                workbench.check((len(points) + part) / total, what)
                return True

            workbench.check(len(points) / total, what)
            points.append(next_point(attention, n, radius, points, starts, steps, seed, going))
            found = points[-1]
            here: dict[str, Any] = {"causal": attention.causal, "n": n, "radius": radius}
            made.append(Level(**here, name=FOUND, side="lower", value=found.found.value))
            for bound in (*found.bounds, *lower_bounds(attention, n, radius)):
                made.append(Level(**here, name=bound.name, side=bound.side, value=bound.value))
    return made


def lower_bounds(attention: Softmax, n: int, radius: float) -> Iterator[Bound]:
    """The constructions that hold for n tokens of equal weight."""
    if attention.causal:
        yield constructions.rare_first(attention, n, radius).bound
        return
    yield constructions.opposite(attention, n, radius).bound
    yield constructions.oblique(attention, n, radius).bound
    yield max(
        (
            constructions.two_clusters(attention, n, bulk, rare).bound
            for bulk in _circle(radius)
            for rare in _circle(radius)
        ),
        key=lambda bound: bound.value,
    )


def _circle(radius: float) -> list[torch.Tensor]:
    angles = torch.arange(TRIED, dtype=torch.float64) * (2 * math.pi / TRIED)
    return list(radius * torch.stack([angles.cos(), angles.sin()], dim=-1))


def draw_levels(ax: Any, rows: Sequence[Level], along: str) -> None:
    """Every bound as a line, what was found as dots."""
    for name in dict.fromkeys(row.name for row in rows):
        some = sorted((getattr(row, along), row.value) for row in rows if row.name == name)
        shown = [(x, y) for x, y in some if y < 1e12]
        if not shown:
            continue
        if name == FOUND:
            look: dict[str, Any] = {"color": BLACK, "marker": "o", "markersize": 4}
        else:
            colour, form = STYLES.get(name, (COLOURS[7], "-."))
            look = {"color": colour, "linestyle": form}
        ax.plot(*zip(*shown, strict=True), label=name, **look)


def broken(rows: Sequence[Level]) -> list[str]:
    """Bounds that what was found contradicts: upper ones below it, or lower ones above the upper
    ones.
    """
    found: dict[tuple[bool, int, float], list[Level]] = {}
    for row in rows:
        found.setdefault((row.causal, row.n, row.radius), []).append(row)
    wrong = []
    for here in found.values():
        low = max(row.value for row in here if row.side == "lower")
        wrong += [
            f"{row.name} at n = {row.n}, R = {row.radius:g}"
            for row in here
            if row.side == "upper" and row.value < low * (1 - ROUNDING)
        ]
    return wrong
