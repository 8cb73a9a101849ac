"""Runs side by side: one page with the tables and the figure of `compare`."""

from __future__ import annotations

from pathlib import Path

from attnscope.report.content import Number, Opening, Standing
from attnscope.report.markup import Markup, tag
from attnscope.report.shell import whole
from attnscope.report.summary import section, summary
from attnscope.report.tables import sheet_table
from attnscope.report.vector import NotSvg, inlined
from attnscope.studies.compare import Comparison, Series


def html_of_comparison(found: Comparison, svg: bytes | None = None) -> str:
    """The page of runs that were compared; `svg` is their figure."""
    names = [Path(run.table.config.model).name for run in found.runs]
    words = [
        f"How do {' and '.join(names)} differ? {len(found.runs)} runs on the same text, side by"
        " side; the first is A, with which the others are compared.",
    ]
    missing = (
        [] if svg is not None else ['The figure needs matplotlib: pip install "attnscope[plot]".']
    )
    body: list[Markup] = []
    if svg is not None:
        try:
            drawn = inlined(svg, "compare-", "every quantity, one line for each run")
            body.append(section("Side by side", tag("figure", tag("div", drawn, class_="scroll"))))
        except NotSvg as error:
            missing.append(f"The figure is not shown: {error}.")
    tables = [sheet_table(sheet, f"sheet-{i}") for i, sheet in enumerate(found.sheets())]
    body.append(section("Tables", tables))
    opening = Opening(" against ".join(names), words, _numbers(found))
    return whole(opening.title, [summary(opening, missing, []), *body])


def _numbers(found: Comparison) -> list[Number]:
    """For the first quantities with brackets: in how many places they have nothing in common."""
    made = []
    for series in found.quantities:
        places, apart = _apart(series)
        if places:
            made.append(
                Number(
                    f"{series[0].title}: A and B differ",
                    f"{apart} of {places}",
                    Standing.PROBABLE,
                    f"Places ({series[0].by}) where the brackets of A and B do not meet.",
                )
            )
    return made[:3]


def _apart(series: list[Series]) -> tuple[int, int]:
    first, second = series[0].values, series[1].values
    both = [
        (first[at], second[at])
        for at in first
        if at in second and None not in (first[at].high, second[at].high)
    ]
    return len(both), sum(one.apart(other) for one, other in both)
