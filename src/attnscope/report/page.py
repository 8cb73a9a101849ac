"""From a run to its page: words first, then what to look at, then tables, then where it is from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attnscope.report.content import Block, Opening
from attnscope.report.figures import figures
from attnscope.report.markup import Markup
from attnscope.report.provenance import left_out, provenance
from attnscope.report.run import Run
from attnscope.report.shell import whole
from attnscope.report.summary import note, section, summary
from attnscope.report.tables import row_table, sheet_table, verdict_table
from attnscope.report.view import View, find
from attnscope.studies import Sheet, Table, Verdict

T = TypeVar("T")


def html_of(run: Run) -> str:
    """The page of a run. What cannot be shown is said, and the rest is shown."""
    opening, sections = sections_of(run)
    return whole(opening.title, sections)


def sections_of(run: Run, prefix: str = "") -> tuple[Opening, list[Markup]]:
    """How the page of a run begins, and its sections; `prefix` keeps ids apart when several pages
    share a document.
    """
    table, attempt = run.table, Attempt(list(run.missing))
    opening = opening_of(run, attempt)
    view = View() if table is None else find(table.study)
    blocks: list[Block] = []
    verdicts: list[Verdict] = []
    sheets: list[Sheet] = []
    if table is not None and _held(table):
        blocks = attempt("A part made for this study", lambda: view.blocks(table), blocks)
        verdicts = attempt("The table of verdicts", table.verdicts, verdicts)
        sheets = attempt("The summary table", table.summary, sheets) if view.sheets else []
    elif not run.loose:
        attempt.missing.append("There are no rows: nothing was computed, or none could be read.")
    without = view.instead if blocks else ()
    drawn: list[Markup] = []
    drawn = attempt("The figures", lambda: figures(run, without, prefix, attempt.missing), drawn)
    attempt.missing += _not_finite(table)
    made = [
        summary(opening, attempt.missing, left_out(run)),
        *(section(block.heading, block.body, note(block.note)) for block in blocks),
        section("Figures", drawn) if drawn and not view.sheets else None,
        section("Verdicts", verdict_table(verdicts, f"{prefix}verdicts")) if verdicts else None,
        section("Summary", [sheet_table(s, f"{prefix}sheet-{i}") for i, s in enumerate(sheets)])
        if sheets
        else None,
        section("Figures", drawn) if drawn and view.sheets else None,
        _rows(run, prefix),
        section("Where this comes from", provenance(run)),
    ]
    return opening, [part for part in made if part]


class Attempt:
    """Makes a part of a page; one that fails is said, so that the others are still seen."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing

    def __call__(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        try:
            return make()
        except Exception as error:
            told = " ".join(str(error).split()) or type(error).__name__
            self.missing.append(f"{what} cannot be shown: {told}")
            return otherwise


def opening_of(run: Run, attempt: Attempt) -> Opening:
    """How the page of a run begins: in the words of its study, or in plain ones."""
    table, opening = run.table, Opening(run.name or "A run", [])
    if table is None or not _held(table):
        return opening
    opening = attempt("The summary", lambda: View().opening(table), opening)
    return attempt("The summary in words", lambda: find(table.study).opening(table), opening)


def _held(table: Table) -> bool:
    return any(table[kind] for kind in table.kinds)


def _rows(run: Run, prefix: str) -> Markup | None:
    """Every row, by kind."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for kind, values in run.loose:
        kinds.setdefault(kind, []).append(values)
    if run.table is not None:
        for kind in run.table.kinds:
            kinds[kind] = [row._asdict() for row in run.table[kind]]
    held = [row_table(kind, rows, f"{prefix}rows-{kind}") for kind, rows in kinds.items() if rows]
    return section("All rows", held) if held else None


def _not_finite(table: Table | None) -> list[str]:
    """A sentence on rows that hold no number where one was expected."""
    if table is None:
        return []
    found = [
        f"{count} of {len(table[kind])} rows of {kind}"
        for kind in table.kinds
        if (count := sum(any(_is_nan(value) for value in row) for row in table[kind]))
    ]
    return [f"Not a number: a value in {', '.join(found)}."] if found else []


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
