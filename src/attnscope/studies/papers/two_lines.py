r"""Figure "convergence to two lines": indefinite scores, random values. Where covariances stay
bounded they end with rank one [castin25].

Under softmax a limit $p p^T$ lies on one of the two isotropic lines $p^T A p = 0$. The figure shows
the first draw of matrices under which all covariances stay bounded for both attentions, and how
many draws do that.
"""

from __future__ import annotations

from typing import Any

from attnscope.studies.drawing import new_figure
from attnscope.studies.papers._covariances import RANK_ONE, draw_in_cone
from attnscope.studies.papers._draws import (
    DrawsConfig,
    DrawsFigure,
    by_draw,
    draw_shares,
    paths_of,
)
from attnscope.studies.papers._figure import between, share
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

ON_THE_LINES = 1e-2


class TwoLines(DrawsFigure):
    """Indefinite scores: where covariances stay bounded, they end with rank one."""

    name = "two_lines"
    figure = "convergence to two lines"
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
            if all(row.kind == "bounded" for row in rows.values()):
                shown = {name: [path for path, _ in paths_of(row)] for name, row in rows.items()}
                number = rows["softmax"].draw
                title = f"Indefinite scores: draw {number}, the first that stays bounded"
                return {self.name: draw_in_cone(shown, title), **made}
        return made

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        draws = by_draw(table)
        for name in ("softmax", "L2") if draws else ():
            rows = [rows[name] for rows in draws]
            bounded = [row for row in rows if row.kind == "bounded"]
            made.append(
                Verdict(
                    f"{name}: every covariance can stay bounded",
                    "in the draw shown",
                    f"{share(len(bounded), len(rows))} draws",
                    True if bounded else None,
                    "one draw shows that it can; none in a few draws tells nothing",
                )
            )
            rested, flat = sum(r.rested for r in bounded), sum(r.rank_one for r in bounded)
            made.append(
                Verdict(
                    f"{name}: bounded limits have rank one",
                    "all do",
                    f"{flat} of {rested} limits in {len(bounded)} draws",
                    flat == rested if rested else None,
                    f"rank one: the second eigenvalue is below {RANK_ONE:g} of the first",
                )
            )
        bounded = [rows["softmax"] for rows in draws if rows["softmax"].kind == "bounded"]
        if bounded:
            worst = [row.isotropy for row in bounded]
            made.append(
                Verdict(
                    "softmax: bounded limits lie on the two lines p^T A p = 0",
                    "all do",
                    f"|p^T A p| / |A| up to {between(worst)} per draw",
                    max(worst) < ON_THE_LINES,
                    f"below {ON_THE_LINES:g} counts as zero",
                )
            )
        return made
