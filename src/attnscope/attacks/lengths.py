r"""The curves $L(n, R)$ of [castin24]: the worst inputs found against the number of tokens and the
radius, between all proved bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from attnscope.attacks._starts import longer
from attnscope.attacks.search import Progress, WorstCase, check_call, search
from attnscope.attention import Attention
from attnscope.bounds import Bounds, on_ball
from attnscope.validation import brief, check_kind

MOST_KNOWN = 3
"""The best earlier inputs, at which a search begins too."""


@final
@dataclass(frozen=True, eq=False)
class Point:
    """One point of the curves: what was found there and every upper bound."""

    n: int
    radius: float
    found: WorstCase
    bounds: Bounds


@final
@dataclass(frozen=True, eq=False)
class Curves:
    """The largest local constants found over a grid of lengths and radii: lower bounds of $L(n,
    R)$, next to the upper ones.
    """

    points: tuple[Point, ...]

    __repr__ = brief

    def at(self, n: int, radius: float) -> Point:
        for point in self.points:
            if (point.n, point.radius) == (n, radius):
                return point
        raise KeyError(f"there is no point at n = {n}, R = {radius}.")


def curves(
    attention: Attention,
    lengths: Sequence[int],
    radii: Sequence[float],
    starts: int = 16,
    steps: int = 150,
    seed: int = 0,
    progress: Progress | None = None,
) -> Curves:
    """Search the worst input at every length and radius; each search also begins at what was found
    for smaller radii and lengths.

    A larger ball holds the smaller one, so that what is found never decreases with the radius; nor
    with the length under a mask, or from a length to its multiples.
    """
    for name, several in (("lengths", lengths), ("radii", radii)):
        check_kind(name, several, list, tuple, range)
    if not lengths or not radii:
        raise ValueError("curves need at least one length and one radius.")
    points: list[Point] = []
    for n in sorted(lengths):
        for radius in sorted(radii):

            def told(fraction: float, value: float, done: int = len(points)) -> bool:
                return progress is None or progress(
                    (done + fraction) / (len(lengths) * len(radii)), value
                )

            points.append(next_point(attention, n, radius, points, starts, steps, seed, told))
    return Curves(tuple(points))


def next_point(
    attention: Attention,
    n: int,
    radius: float,
    before: Sequence[Point],
    starts: int = 16,
    steps: int = 150,
    seed: int = 0,
    progress: Progress | None = None,
) -> Point:
    """One point of the curves, after those `before` it: the search also begins at the best inputs
    found in balls that are not larger.
    """
    check_call(attention, n, radius, False, starts, steps)
    bounds = on_ball(attention, n, radius)
    within = sorted(
        (point for point in before if point.radius <= radius), key=lambda point: -point.found.value
    )
    known = [mu for point in within if (mu := longer(attention, point.found.mu, n)) is not None]
    found = search(attention, n, radius, False, starts, steps, seed, progress, known[:MOST_KNOWN])
    return Point(n, radius, found, bounds)
