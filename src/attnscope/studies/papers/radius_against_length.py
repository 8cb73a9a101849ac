r"""The radius of the tokens against their number, on real text: it hardly depends on n, as a norm
stands before or after every attention [castin24].
"""

from __future__ import annotations

from typing import Any

from attnscope.studies.measure.fit import growth
from attnscope.studies.papers._texts import TextFigure, cases, draw_cases
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

FLAT = 0.1


class RadiusAgainstLength(TextFigure):
    """The radius of the tokens against their number, on real text."""

    name = "radius_against_length"
    figure = "radius against the number of tokens"

    def figures(self, table: Table) -> dict[str, Any]:
        title = "Root mean square norm of the tokens against their number"
        return {self.name: draw_cases(cases(table), "n", "radius", "lower", title)}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for case in cases(table):
            fit = growth([row.n for row in case.rows], [row.radius for row in case.rows])
            if fit is None:
                continue
            inside = fit.low > -FLAT and fit.high < FLAT
            outside = fit.low > FLAT or fit.high < -FLAT
            made.append(
                Verdict(
                    f"{case.name}: the radius does not depend on n",
                    "inputs of all lengths share a ball",
                    f"exponent {fit.exponent:.3f} ({fit.low:.3f}, {fit.high:.3f})",
                    True if inside else False if outside else None,
                    f"the 95 % interval of the exponent lies within {FLAT:g} of 0",
                )
            )
        return made
