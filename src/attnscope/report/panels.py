"""Small figures side by side: points with brackets, a line through them, and bounds above."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from attnscope.report.axes import Axis
from attnscope.report.markup import Markup, tag

WIDTH, HEIGHT = 320, 216
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 36


class Point(NamedTuple):
    """A value at x, within [low, high] where there is a bracket."""

    x: float
    low: float
    high: float | None = None


class Stop(NamedTuple):
    """What is told at one x, on hover and on focus."""

    x: float
    told: str


class Bound(NamedTuple):
    """A proved bound at one x."""

    x: float
    value: float
    name: str


class Panel(NamedTuple):
    """One figure: points, the line of their medians, a fitted curve, bounds, and what to tell."""

    title: str
    points: Sequence[Point]
    line: Sequence[tuple[float, float]]
    curve: Sequence[tuple[float, float]]
    bounds: Sequence[Bound]
    stops: Sequence[Stop]


def panels(made: Sequence[Panel], x_name: str, y_name: str) -> Markup:
    """All panels on the same axes, so that they can be compared."""
    xs = [point.x for panel in made for point in panel.points]
    ys = [value for panel in made for point in panel.points for value in point[1:]]
    ys += [bound.value for panel in made for bound in panel.bounds]
    across = Axis.over(xs, LEFT, WIDTH - RIGHT)
    up = Axis.over(ys, HEIGHT - BOTTOM, TOP, log=True)
    return tag(
        "div",
        [
            tag(
                "figure",
                tag("figcaption", panel.title),
                _picture(panel, across, up, x_name, y_name),
            )
            for panel in made
        ],
        class_="panels",
    )


def frame(across: Axis, up: Axis, x_name: str, y_name: str) -> list[Markup]:
    """Grid, numbers and names of two axes."""
    left, right, bottom = across.start, across.end, up.start
    lines = [
        tag("line", x1=left, x2=right, y1=place, y2=place, class_="grid") for place, _ in up.ticks()
    ]
    numbers = [
        tag("text", label, x=left - 6, y=place + 4, text_anchor="end")
        for place, label in up.ticks()
    ]
    numbers += [
        tag("text", label, x=place, y=bottom + 15, text_anchor="middle")
        for place, label in across.ticks(4)
    ]
    names = [
        tag(
            "text",
            x_name,
            x=(left + right) / 2,
            y=bottom + 31,
            text_anchor="middle",
            class_="axis-name",
        ),
        tag("text", y_name, x=left + 4, y=up.end + 8, class_="axis-name"),
    ]
    return [*lines, *numbers, *names]


def _picture(panel: Panel, across: Axis, up: Axis, x_name: str, y_name: str) -> Markup:
    brackets = [
        tag(
            "line",
            x1=across.at(point.x),
            x2=across.at(point.x),
            y1=up.at(point.low),
            y2=up.at(point.high),
            class_="bracket",
        )
        for point in panel.points
        if point.high is not None
    ]
    dots = [
        tag("circle", cx=across.at(point.x), cy=up.at(point.low), r=2.2, class_="dot")
        for point in panel.points
    ]
    bounds = []
    for bound in panel.bounds:
        x, y = across.at(bound.x), up.at(bound.value)
        bounds += [
            tag("line", x1=x - 10, x2=min(x + 6, WIDTH - 2), y1=y, y2=y, class_="bound"),
            tag("text", bound.name, x=x - 13, y=y + 4, text_anchor="end", class_="bound-name"),
        ]
    return tag(
        "svg",
        frame(across, up, x_name, y_name),
        brackets,
        dots,
        _polyline(panel.line, across, up, "line"),
        _polyline(panel.curve, across, up, "curve"),
        bounds,
        _hits(panel, across, up),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart",
        role="group",
        aria_label=f"{panel.title}: {y_name} against {x_name}. Arrow keys move along the axis.",
        data_roving="line",
    )


def _polyline(points: Sequence[tuple[float, float]], across: Axis, up: Axis, kind: str) -> Markup:
    if len(points) < 2:
        return Markup("")
    path = " ".join(f"{across.at(x)},{up.at(y)}" for x, y in points)
    return tag("polyline", points=path, class_=kind)


def _hits(panel: Panel, across: Axis, up: Axis) -> list[Markup]:
    """A strip for each x that takes the pointer and the focus."""
    places = [across.at(stop.x) for stop in panel.stops]
    edges = [across.start, *((a + b) / 2 for a, b in pairwise(places))]
    ends = [*edges[1:], across.end]
    return [
        tag(
            "g",
            tag(
                "rect",
                x=f"{left:.1f}",
                y=up.end,
                width=f"{max(right - left, 1):.1f}",
                height=up.start - up.end,
                class_="hit",
            ),
            class_="mark",
            role="img",
            tabindex=-1,
            aria_label=stop.told,
            data_row=0,
            data_column=number,
        )
        for number, (stop, left, right) in enumerate(zip(panel.stops, edges, ends, strict=True))
    ]
