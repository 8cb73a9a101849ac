"""A map of numbers: rows by columns, values in colour, each cell told on hover and on focus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attnscope.report.markup import Markup, number, tag

VIRIDIS = (
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
)
"""Even in lightness, so that the map also survives a grey printer."""
LEFT, TOP, HEIGHT = 46, 22, 30
WIDEST, NARROWEST, FULL = 64, 17, 760
DIGITS_FROM = 38
"""Cells this wide carry their value."""


class Cell(NamedTuple):
    """One entry of a map, and the sentence that is shown for it."""

    value: float | None
    told: str


def colour(share: float) -> tuple[int, int, int]:
    """A colour for a share from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    first = min(int(place), len(VIRIDIS) - 2)
    low, high, part = VIRIDIS[first], VIRIDIS[first + 1], place - first
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def readable(background: tuple[int, int, int]) -> str:
    """Black or white, whichever stands out more."""
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in background)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#fff"


def heat_map(
    cells: Mapping[tuple[int, int], Cell],
    rows: Sequence[object],
    columns: Sequence[object],
    row_name: str,
    column_name: str,
    about: str,
) -> Markup:
    """The cells by their place (row, column); places without a cell stay empty.

    Colours are spread by the logarithm where the values span more than a factor of 20.
    """
    wide = min(WIDEST, max(NARROWEST, (FULL - LEFT) / max(len(columns), 1)))
    width, height = LEFT + wide * len(columns) + 4, TOP + HEIGHT * len(rows) + 34
    shares = _shares({place: cell.value for place, cell in cells.items()})
    drawn = [
        _drawn(cell, place, shares[place], LEFT + place[1] * wide, TOP + place[0] * HEIGHT, wide)
        for place, cell in sorted(cells.items())
    ]
    step = math.ceil(26 / wide)
    labels = [
        tag("text", row_name, x=LEFT - 8, y=TOP - 8, text_anchor="end", class_="axis-name"),
        [
            tag("text", row, x=LEFT - 8, y=TOP + (i + 0.65) * HEIGHT, text_anchor="end")
            for i, row in enumerate(rows)
        ],
        [
            tag("text", column, x=LEFT + (i + 0.5) * wide, y=TOP - 8, text_anchor="middle")
            for i, column in enumerate(columns)
            if i % step == 0
        ],
        tag(
            "text",
            column_name,
            x=LEFT + wide * len(columns) / 2,
            y=height - 14,
            text_anchor="middle",
            class_="axis-name",
        ),
    ]
    picture = tag(
        "svg",
        labels,
        drawn,
        viewBox=f"0 0 {width:g} {height:g}",
        style=f"max-width:{width:g}px;min-width:{0.8 * width:.0f}px",
        class_="map",
        role="group",
        aria_label=f"{about}. Arrow keys move from cell to cell.",
        data_roving="grid",
    )
    return tag("div", tag("div", picture, class_="scroll"), _legend(cells), class_="figure")


def _shares(values: Mapping[tuple[int, int], float | None]) -> dict[tuple[int, int], float | None]:
    shown = [value for value in values.values() if value is not None and math.isfinite(value)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    by_logarithm = low > 0 and high > 20 * low

    def share(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        if high == low:
            return 0.5
        if by_logarithm:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    return {place: share(value) for place, value in values.items()}


def _drawn(
    cell: Cell, place: tuple[int, int], share: float | None, x: float, y: float, wide: float
) -> Markup:
    fill = None if share is None else colour(share)
    shape = tag(
        "rect",
        x=f"{x:.2f}",
        y=y,
        width=f"{wide - 1:.2f}",
        height=HEIGHT - 1,
        fill=None if fill is None else "#{:02x}{:02x}{:02x}".format(*fill),
        class_="none" if fill is None else None,
    )
    told = None
    if wide >= DIGITS_FROM and cell.value is not None:
        told = tag(
            "text",
            number(cell.value, 3) if share is not None else "?",
            x=f"{x + (wide - 1) / 2:.2f}",
            y=y + 0.65 * HEIGHT,
            text_anchor="middle",
            style=None if fill is None else f"fill:{readable(fill)}",
        )
    return tag(
        "g",
        shape,
        told,
        class_="mark",
        role="img",
        tabindex=-1,
        aria_label=cell.told,
        data_row=place[0],
        data_column=place[1],
    )


def _legend(cells: Mapping[tuple[int, int], Cell]) -> Markup:
    shown = [c.value for c in cells.values() if c.value is not None and math.isfinite(c.value)]
    if not shown:
        return tag("p", "No value in this map is finite.", class_="note")
    stops = ",".join("rgb({},{},{})".format(*one) for one in VIRIDIS)
    bar = tag("span", class_="bar", style=f"background:linear-gradient(90deg,{stops})")
    return tag("p", number(min(shown), 3), bar, number(max(shown), 3), class_="legend")
