r"""The curves $L(n, R)$ of [castin24]: the worst inputs found against the number of tokens and the
radius, between all proved bounds.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from attnscope.attacks._starts import longer
from attnscope.attacks.search import Progress, WorstCase, check_call, search
from attnscope.attention import Attention
from attnscope.bounds import Bounds, on_ball
from attnscope.validation import brief

MOST_PANELS = 4
TALLEST = 1e6
"""Bounds above this many times the largest value found are off the figure."""
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

    def png(self) -> bytes:
        """The figure as PNG: panels against n above, against R below; what was found as dots, the
        proved upper bounds dashed.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        lengths, radii = (
            _spread({point.n for point in self.points}),
            _spread({point.radius for point in self.points}),
        )
        across = max(len(lengths), len(radii))
        figure = Figure(figsize=(1.2 + 2.6 * across, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(2, across, squeeze=False, sharey=True)
        for panel, radius in zip(panels[0], radii, strict=False):
            self._draw(panel, "n", [point for point in self.points if point.radius == radius])
            panel.set(title=f"R = {radius:.3g}", xlabel="tokens n", xscale="log")
            panel.set_xticks(lengths, [str(n) for n in lengths])
            panel.minorticks_off()
        for panel, n in zip(panels[1], lengths, strict=False):
            self._draw(panel, "radius", [point for point in self.points if point.n == n])
            panel.set(title=f"n = {n}", xlabel="radius R")
        for panel in (*panels[0][len(radii) :], *panels[1][len(lengths) :]):
            panel.set_visible(False)
        largest = max(point.found.value for point in self.points)
        panels[0][0].set_ylim(top=min(panels[0][0].get_ylim()[1], TALLEST * largest))
        figure.supylabel("local Lipschitz constant", fontsize=10)
        figure.legend(
            *panels[0][0].get_legend_handles_labels(),
            fontsize=8,
            frameon=False,
            loc="outside lower center",
            ncols=6,
        )
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=150)
        return data.getvalue()

    def _draw(self, panel: Any, against: str, points: list[Point]) -> None:
        points = sorted(points, key=lambda point: getattr(point, against))
        x = [getattr(point, against) for point in points]
        panel.plot(
            x,
            [point.found.value for point in points],
            "ko-",
            markersize=4,
            linewidth=1.4,
            label="found (lower bound)",
        )
        names = [{bound.name for bound in point.bounds} for point in points]
        shared = [bound.name for bound in points[0].bounds if all(bound.name in of for of in names)]
        for number, name in enumerate(shared):
            panel.plot(
                x,
                [point.bounds.named(name).value for point in points],
                "--",
                color=f"C{number}",
                linewidth=1.2,
                label=name,
            )
        panel.set_yscale("log")
        panel.grid(alpha=0.25, linewidth=0.5)


def _spread(values: set[Any]) -> list[Any]:
    """At most MOST_PANELS of them, from the smallest to the largest."""
    ordered = sorted(values)
    if len(ordered) <= MOST_PANELS:
        return ordered
    return [
        ordered[round(place * (len(ordered) - 1) / (MOST_PANELS - 1))]
        for place in range(MOST_PANELS)
    ]


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
    if not lengths or not radii:
        raise ValueError("curves need at least one length and one radius.")
    points: list[Point] = []
    for n in sorted(lengths):
        for radius in sorted(radii):
            check_call(attention, n, radius, False, starts, steps)
            bounds = on_ball(attention, n, radius)
            within = sorted(
                (point for point in points if point.radius <= radius),
                key=lambda point: -point.found.value,
            )
            known = [
                mu for point in within if (mu := longer(attention, point.found.mu, n)) is not None
            ]

            def told(fraction: float, value: float, done: int = len(points)) -> bool:
                return progress is None or progress(
                    (done + fraction) / (len(lengths) * len(radii)), value
                )

            found = search(
                attention, n, radius, False, starts, steps, seed, told, known[:MOST_KNOWN]
            )
            points.append(Point(n, radius, found, bounds))
    return Curves(tuple(points))
