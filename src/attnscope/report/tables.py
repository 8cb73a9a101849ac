"""Tables that can be sorted and filtered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnscope.report.markup import Markup, data, number, tag
from attnscope.studies import Sheet, Verdict

MOST_ROWS = 5000
"""Of one kind, in the page; all of them are in the files beside it."""
FILTER_FROM = 6
"""Tables this long can be filtered."""
SIGNS = {True: ("✓", "good"), False: ("✗", "bad"), None: ("?", "open")}


def sheet_table(sheet: Sheet, place: str) -> Markup:
    """What the command prints, as a table."""
    body = [tag("tr", [_cell(entry) for entry in line]) for line in sheet.lines]
    return tag(
        "div",
        _table(
            sheet.columns,
            tag("tbody", body),
            sheet.title or "Table",
            place,
            len(sheet.lines),
            "words" if sheet.wrap else "",
        ),
        [tag("p", line, class_="note") for line in sheet.note.splitlines() if line],
        class_="sheet",
    )


def _cell(entry: str) -> Markup:
    """A number such as 1e-3 is not broken at its sign."""
    return tag("td", entry, class_=None if " " in entry else "whole")


def verdict_table(verdicts: Sequence[Verdict], place: str) -> Markup:
    """Each statement beside what was measured."""
    lines = []
    for verdict in verdicts:
        sign, kind = SIGNS[verdict.holds]
        outcome = tag("span", f"{sign} {verdict.outcome}", class_=f"verdict {kind}")
        cells = (verdict.statement, verdict.paper, verdict.measured, outcome, verdict.why)
        lines.append(tag("tr", [tag("td", cell) for cell in cells]))
    columns = ("statement", "the paper says", "measured", "verdict", "why")
    return _table(columns, tag("tbody", lines), "Verdicts", place, len(lines), "words")


def row_table(kind: str, rows: Sequence[Mapping[str, Any]], place: str) -> Markup:
    """All rows of one kind, folded away; arrays are told by their shape."""
    if not rows:
        return Markup("")
    columns = list(rows[0])
    values = [[_shown(row.get(name)) for name in columns] for row in rows[:MOST_ROWS]]
    left = len(rows) - len(values)
    note = (
        f"{left} more rows are in {kind}.csv and {kind}.jsonl beside this page." if left else None
    )
    return tag(
        "details",
        tag("summary", f"{kind}: {len(rows)} row{'s' * (len(rows) != 1)}"),
        tag("p", note, class_="note") if note else None,
        _table(columns, tag("tbody"), f"Rows of {kind}", place, len(rows)),
        data(f"{place}-rows", values),
    )


def _table(
    columns: Sequence[str], body: Markup, about: str, place: str, count: int, kind: str = ""
) -> Markup:
    head = [
        tag("th", tag("button", name or "what", type="button"), scope="col", aria_sort="none")
        for name in columns
    ]
    search = None
    if count >= FILTER_FROM:
        search = tag(
            "label",
            "Filter",
            tag(
                "input",
                type="search",
                placeholder=f"words, or {_example(columns)}",
                aria_controls=place,
            ),
            class_="search",
        )
    return Markup(
        (search or "")
        + tag(
            "div",
            tag(
                "table",
                tag("caption", about),
                tag("thead", tag("tr", head)),
                body,
                id=place,
                class_=f"sortable {kind}".strip(),
            ),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label=about,
        )
    )


def _example(columns: Sequence[str]) -> str:
    named = [name for name in columns if name.isidentifier()]
    return f"{named[1 if len(named) > 1 else 0]}=3" if named else "a number"


def _shown(value: Any) -> Any:
    """A number stays one, so that it is sorted as one."""
    if isinstance(value, np.ndarray):
        return f"array {' × '.join(map(str, value.shape)) or 'of one number'}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not math.isfinite(value):
        return number(value)
    return value
