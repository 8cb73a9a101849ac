r"""The local constant against the radius, on real text: nothing like the exponential of the
mean-field bound [castin24].

U1 grows like $R^2$ and M1 like $e^{2\|A\|R^2}$. What real tokens show at equal length is fitted by
$R^p$.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats

from attnscope.studies.papers._figure import CONFIDENCE, Slope
from attnscope.studies.papers._texts import Case, TextFigure, at_most, cases, draw_cases
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table


class ConstantAgainstRadius(TextFigure):
    """The local constant of attention against the radius of its tokens, on real text."""

    name = "constant_against_radius"
    figure = "local constant against the radius"

    def figures(self, table: Table) -> dict[str, Any]:
        title = "Local constant of attention against the radius"
        return {self.name: draw_cases(cases(table), "radius", "lower", "n", title)}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for case in cases(table):
            power = at_equal_length(case)
            made.append(
                Verdict(
                    f"{case.name}: at equal n, sigma grows no faster than R^2",
                    "U1, a theorem on n tokens",
                    f"exponent of R {power}",
                    at_most(power.low, power.high, 2.0),
                    "the whole 95 % interval is at most 2; radii of one layer differ little, so"
                    " that intervals are wide",
                )
            )
        return made


def at_equal_length(case: Case) -> Slope:
    """The exponent of R, every length with a factor of its own."""
    groups: dict[int, list[tuple[float, float]]] = {}
    for row in case.rows:
        groups.setdefault(row.n, []).append((np.log(row.radius), np.log(row.lower)))
    centred = [np.array(group) - np.mean(group, axis=0) for group in groups.values()]
    x, y = np.concatenate(centred).T
    freedom = len(x) - len(groups) - 1
    if freedom < 1 or x @ x < 1e-12:
        return Slope(float("nan"), float("-inf"), float("inf"))
    value = float(x @ y / (x @ x))
    error = float(np.sqrt(((y - value * x) ** 2).sum() / freedom / (x @ x)))
    reach = error * float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return Slope(value, value - reach, value + reach)
