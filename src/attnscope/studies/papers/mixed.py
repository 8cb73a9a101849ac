"""Figure "convergence and blow-up depending on initial data": indefinite scores, random values.
Softmax may send some covariances to rank one and others to infinity [castin25].

The figure shows the first draw of matrices under which softmax does both, and how many draws do.
"""

from __future__ import annotations

from typing import Any

from attnscope.studies.drawing import new_figure
from attnscope.studies.papers._covariances import RANK_ONE, draw_in_disc
from attnscope.studies.papers._draws import (
    DrawsConfig,
    DrawsFigure,
    by_draw,
    draw_shares,
    paths_of,
)
from attnscope.studies.papers._figure import every, share
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

BOTH = "some of each"


class Mixed(DrawsFigure):
    """Under the same matrices some covariances converge and others blow up."""

    name = "mixed"
    figure = "convergence and blow-up depending on initial data"
    topic = "dynamics"
    seconds = (10, 100)
    Config = DrawsConfig
    fast = DrawsConfig(draws=12, points=6)

    def figures(self, table: Table) -> dict[str, Any]:
        draws = by_draw(table)
        if not draws:
            return {}
        bars = new_figure(6, 2.4)
        draw_shares(bars.add_subplot(), draws)
        made = {f"{self.name}_shares": bars}
        for rows in draws:
            if rows["softmax"].kind == BOTH:
                shown = {name: paths_of(row) for name, row in rows.items()}
                title = f"Draw {rows['softmax'].draw}, the first in which softmax does both"
                return {self.name: draw_in_disc(shown, title, "unbounded"), **made}
        return made

    def verdicts(self, table: Table) -> list[Verdict]:
        draws = by_draw(table)
        if not draws:
            return []
        both = [rows for rows in draws if rows["softmax"].kind == BOTH]
        rested = sum(rows["softmax"].rested for rows in both)
        flat = sum(rows["softmax"].rank_one for rows in both)
        calm = sum(rows["L2"].kind == "bounded" for rows in both)
        return [
            Verdict(
                "softmax: some covariances converge and others blow up, under the same matrices",
                "in the draw shown",
                f"{share(len(both), len(draws))} draws",
                True if both else None,
                "one draw shows that it happens; none in a few draws tells nothing",
            ),
            Verdict(
                "softmax: those that converge go to rank one",
                "all do",
                f"{flat} of {rested} limits in {len(both)} draws",
                flat == rested if rested else None,
                f"rank one: the second eigenvalue is below {RANK_ONE:g} of the first",
            ),
            Verdict(
                "L2 stays bounded under those matrices",
                "in the draw shown",
                f"{share(calm, len(both))} draws",
                every(
                    False if rows["L2"].exploded else rows["L2"].kind == "bounded" or None
                    for rows in both
                ),
                "it may grow exponentially: a bound on its growth is proved, boundedness is not",
            ),
        ]
