"""The beginning of a page: words, the numbers that matter and what they are, what to mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.report.content import MEANING, Number, Opening, Standing
from attnscope.report.markup import Markup, tag


def section(heading: str, *body: Any) -> Markup:
    """A part of a page under a heading."""
    return tag("section", tag("h2", heading), body)


def note(text: str) -> Markup | None:
    """A sentence in small print."""
    return tag("p", text, class_="note") if text else None


def summary(opening: Opening, missing: Sequence[str], remarks: Sequence[str]) -> Markup:
    """What was done in plain words, at most three numbers, and what is missing."""
    standings = {number.standing for number in opening.numbers} - {Standing.COUNTED}
    notes = list(dict.fromkeys([*missing, *remarks]))
    return tag(
        "section",
        [tag("p", sentence, class_="lead") for sentence in opening.words],
        tag("div", [_card(one) for one in opening.numbers], class_="cards"),
        tag(
            "ul",
            [
                tag("li", _badge(standing), " ", MEANING[standing])
                for standing in Standing
                if standing in standings
            ],
            class_="meanings",
        )
        if standings
        else None,
        tag(
            "div",
            tag("h2", "Mind this"),
            tag("ul", [tag("li", one) for one in notes]),
            class_="mind",
        )
        if notes
        else None,
    )


def _card(number: Number) -> Markup:
    return tag(
        "div",
        tag("p", number.label, class_="label"),
        tag("p", number.value, class_="value"),
        _badge(number.standing) if number.standing is not Standing.COUNTED else None,
        tag("p", number.about, class_="about") if number.about else None,
        class_="card",
    )


def _badge(standing: Standing) -> Markup:
    return tag("span", standing.value, class_=f"badge {standing.value}")
