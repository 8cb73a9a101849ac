"""What a page is made of: numbers that say what they are, and blocks to look at."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from attnscope.report.markup import Markup


class Standing(StrEnum):
    """What a number is."""

    PROVED = "proved"
    PROBABLE = "probable"
    ESTIMATE = "estimate"
    COUNTED = "counted"


MEANING = {
    Standing.PROVED: "a theorem says so, for these numbers and this map, rounding allowed for.",
    Standing.PROBABLE: (
        "true but with the small probability that the run was given, over its own random starts."
    ),
    Standing.ESTIMATE: "the best guess from what was computed; nothing guarantees it.",
    Standing.COUNTED: "a plain count or setting, exact.",
}


class Number(NamedTuple):
    """One of the numbers that matter: what is it, how large, and how sure."""

    label: str
    value: str
    standing: Standing
    about: str = ""


class Block(NamedTuple):
    """Something to look at, under a heading of its own."""

    heading: str
    body: Markup
    note: str = ""


class Opening(NamedTuple):
    """How a page begins: its title, what was done in plain words, and at most three numbers."""

    title: str
    words: Sequence[str]
    numbers: Sequence[Number] = ()
