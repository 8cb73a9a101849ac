"""What a table shows in a notebook: the words, numbers and maps of its page, without scripts."""

from __future__ import annotations

from attnscope.report.markup import Markup, tag
from attnscope.report.page import sections_of
from attnscope.report.run import Run
from attnscope.report.shell import asset
from attnscope.studies import Table


def fragment(table: Table) -> str:
    """HTML for the output of a cell."""
    opening, sections = sections_of(Run.of_table(table), "cell-")
    style = Markup("<style>" + asset(".css") + "</style>")
    return tag("div", style, tag("h1", opening.title), sections, class_="attnscope")
