r"""What the released scripts compute beside the local constant: $\sqrt{\|J^T f(X)\|}$ grows like
the published curves where $\sigma_{max}(J)$ may be flat [castin24].

The scripts take the first entry of `torch.func.jvp`, which is the value of the map and not its
derivative. Whether the published figures came from them is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.studies.drawing import BLUE, GREY, RED, new_figure, safe
from attnscope.studies.measure.fit import Fit, growth
from attnscope.studies.papers._texts import Case, TextFigure, cases, plain_ticks, within
from attnscope.studies.papers.growth import CLOSE, interval
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

CURVES = {("gpt2-random", 6): (0.445, 0.25)}
"""Published curves C n^p of what runs without a download."""
OFF = 0.1
"""Relative distance from a published curve that still counts as following it."""


class ReleasedEstimator(TextFigure):
    """The quantity of the released scripts beside the local constant, with both exponents."""

    name = "released_estimator"
    figure = "what the released scripts compute"

    def figures(self, table: Table) -> dict[str, Any]:
        found = cases(table)
        figure = new_figure(3.4 * len(found) + 0.4, 3.4)
        figure.suptitle("The quantity of the released scripts beside the local constant")
        for place, case in enumerate(found, start=1):
            ax = figure.add_subplot(1, len(found), place)
            ns = np.unique([row.n for row in case.rows])
            looks = ((BLUE, "o", r"$\sigma_{max}$", case.fit), (RED, "^", "released", _fit(case)))
            for (color, marker, name, fit), values in zip(looks, _values(case), strict=True):
                label = name if fit is None else f"{name}: $n^{{{fit.exponent:.2f}}}$"
                lengths = [row.n for row in case.rows]
                ax.scatter(lengths, values, s=10, color=color, marker=marker, label=label)
                if fit is not None:
                    ax.plot(ns, fit.factor * ns**fit.exponent, color=color, linewidth=1)
            if (case.model, case.layer) in CURVES:
                factor, power = CURVES[case.model, case.layer]
                label = f"published: {factor:g} $n^{{{power:g}}}$"
                ax.plot(ns, factor * ns**power, "--", color=GREY, label=label)
            ax.set(xscale="log", yscale="log", xlabel="tokens $n$", title=safe(case.name))
            plain_ticks(ax)
            ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for case in cases(table):
            curve, fit, true = CURVES.get((case.model, case.layer)), _fit(case), case.fit
            if fit is None or true is None:
                continue
            if curve is not None:
                made += _published(case, curve, fit)
            apart = true.high < fit.low or fit.high < true.low
            made.append(
                Verdict(
                    f"{case.name}: both quantities grow alike",
                    "the curve of one is drawn for the other",
                    f"exponents {true.exponent:.2f} ({true.low:.2f}, {true.high:.2f}) of sigma,"
                    f" {fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f}) of the released quantity",
                    not apart,
                    "their 95 % intervals meet",
                )
            )
        return made


def _published(case: Case, curve: tuple[float, float], fit: Fit) -> list[Verdict]:
    factor, power = curve
    apart = [
        abs(value / (factor * row.n**power) - 1)
        for row, value in zip(case.rows, _values(case)[1], strict=True)
        if row.n > 2
    ]
    typical = float(np.median(apart))
    true = case.fit
    assert true is not None
    return [
        Verdict(
            f"{case.name}: the released quantity follows {factor:g} n^{power:g}",
            "the published curve",
            f"median distance {typical:.1%}, exponent {fit.exponent:.2f}"
            f" ({fit.low:.2f}, {fit.high:.2f})",
            typical <= OFF,
            f"within {OFF:.0%} at the median of all sequences of more than 2 tokens",
        ),
        Verdict(
            f"{case.name}: sigma grows like n^{power:g}",
            "the published curve",
            interval(case),
            within(true.low, true.high, power, CLOSE),
            f"the 95 % interval of the exponent reaches {power:g} up to {CLOSE:g}",
        ),
    ]


def _values(case: Case) -> tuple[list[float], list[float]]:
    return [row.lower for row in case.rows], [row.released_estimator or 0.0 for row in case.rows]


def _fit(case: Case) -> Fit | None:
    return growth([row.n for row in case.rows], _values(case)[1])
