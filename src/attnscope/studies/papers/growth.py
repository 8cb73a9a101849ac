r"""The local constant against the number of tokens, on real text [castin24, Fig. 3].

The curves drawn in the authors' scripts are $C n^p$ with p from 0.24 to 0.51; the quantity that
these scripts compute is the one of the figure `released_estimator`.
"""

from __future__ import annotations

from typing import Any

from attnscope.studies.papers._texts import (
    CAUSAL,
    Case,
    TextFigure,
    at_most,
    cases,
    draw_cases,
    within,
)
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

QUARTER = 0.25
PUBLISHED = {
    ("bert-base-uncased", 0): 0.24,
    (f"bert-base-uncased{CAUSAL}", 6): 0.25,
    ("gpt2", 0): 0.26,
    ("gpt2", 6): 0.51,
    ("gpt2-random", 6): 0.25,
}
"""Exponents of the published curves."""
CLOSE = 0.03
"""How far an exponent may be from the published one, which has two digits."""


class Growth(TextFigure):
    """The local constant of attention against the number of tokens, on real text."""

    name = "growth"
    figure = "local constant against the number of tokens"
    number = "Fig. 3"

    def figures(self, table: Table) -> dict[str, Any]:
        title = "Local constant of attention against the number of tokens"
        return {self.name: draw_cases(cases(table), "n", "lower", "radius", title, curves=True)}

    def verdicts(self, table: Table) -> list[Verdict]:
        return [verdict for case in cases(table) for verdict in (_exponent(case), _slow(case))]


def _exponent(case: Case) -> Verdict:
    published = PUBLISHED.get((case.model, case.layer))
    aim = QUARTER if published is None else published
    fit = case.fit
    return Verdict(
        f"{case.name}: sigma grows like n^{aim:g}",
        f"n^{aim:g}" if published is not None else "about n^(1/4) on real data",
        interval(case),
        None if fit is None else within(fit.low, fit.high, aim, CLOSE),
        f"the 95 % interval of the exponent reaches {aim:g} up to {CLOSE:g} and is no wider than"
        " 0.2",
    )


def _slow(case: Case) -> Verdict:
    fit = case.fit
    return Verdict(
        f"{case.name}: sigma grows no faster than the root of n",
        "a theorem in any ball",
        interval(case),
        None if fit is None else at_most(fit.low, fit.high, 0.5),
        "the whole interval is at most 1/2; a radius that grows with n could break it",
    )


def interval(case: Case) -> str:
    """The exponent with its interval, and a warning where a power law does not fit."""
    fit = case.fit
    if fit is None:
        return "fewer than three lengths"
    bent = "; no power law" if fit.bent else ""
    return f"exponent {fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f}){bent}"
