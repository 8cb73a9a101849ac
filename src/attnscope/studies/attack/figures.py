"""Pictures of attacks: the ascent and the tokens that it found; finite attacks next to the law of
mass splitting; the curves L(n, R) of [castin24] between all proved bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnscope.studies.attack.rows import CurveBoundRow, CurveRow, FiniteRow, SplitRow, WorstRow
from attnscope.studies.drawing import BLACK, BLUE, COLOURS, GREY, RED, heading, new_figure

MOST_PANELS = 4
TALLEST = 1e6
"""Bounds above this many times the largest value found are off the figure."""


def worst(row: WorstRow, text: str | None) -> Any:
    """Left: the value of every start against the step, below the proved bound. Right: the tokens
    along their two principal axes.
    """
    figure, (left, right) = _panels()
    best = int(row.history[-1].argmax())
    left.plot(row.history, color=GREY, linewidth=0.7, alpha=0.7)
    left.plot(row.history[:, best], color=BLUE, linewidth=1.8, label=f"best, from {row.start}")
    if row.bound is not None:
        label = f"{row.bound_name}, proved upper bound"
        left.axhline(row.bound, color=RED, linestyle="--", linewidth=1.2, label=label)
    left.set(xlabel="step", ylabel="local Lipschitz constant", yscale="log")
    left.legend()
    x = row.tokens
    if x.shape[1] > 2:
        x = x @ np.linalg.svd(x, full_matrices=False)[2][:2].T
    if x.shape[1] == 1:
        x = np.concatenate([x, np.zeros_like(x)], axis=1)
    right.scatter(*x.T, s=12 + 240 * row.weights, color=BLUE, alpha=0.5, linewidths=0)
    reach = 1.1 * max(float(np.abs(x).max()), 1e-300)  # a square, also for tokens on a line
    right.set(
        xlabel="first principal axis",
        ylabel="second principal axis",
        aspect="equal",
        xlim=(-reach, reach),
        ylim=(-reach, reach),
        title="tokens found, area grows with mass",
    )
    right.axhline(0, color=GREY, linewidth=0.5)
    right.axvline(0, color=GREY, linewidth=0.5)
    masses = ", free masses" * row.weighted
    about = f"worst input found in the ball of radius {row.radius:.4g}{masses}"
    figure.suptitle(heading(variant=row.target, text=text, n=row.n, about=about), fontsize=11)
    return figure


def split(row: SplitRow, attacks: Sequence[FiniteRow], text: str | None) -> Any:
    """Left: finite attacks against their budget, the law as lines. Right: what splitting each token
    would give.
    """
    figure, (left, right) = _panels()
    for kind, limit, name, colour in (
        ("move", row.move, "moving tokens", BLUE),
        ("split", row.split, "halves apart", RED),
    ):
        mine = [one for one in attacks if one.kind == kind]
        style = {"color": colour, "markersize": 4, "label": name}
        left.plot([one.eps for one in mine], [one.ratio for one in mine], "o-", **style)
        left.axhline(limit, color=colour, linestyle="--", linewidth=1, label=f"law, {limit:.4g}")
    left.set(xlabel="budget in $W_2$", ylabel="$W_2$ of outputs / $W_2$ of inputs", xscale="log")
    left.legend()
    right.bar(range(len(row.apart)), row.apart, color=RED, alpha=0.7, width=0.9)
    right.axhline(row.move, color=BLUE, linestyle="--", linewidth=1.2)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set(
        xlabel="token",
        ylabel="constant of its halves apart",
        title="splitting pays above the dashed line",
        ylim=(0, None),
    )
    figure.suptitle(
        heading(variant=row.target, text=text, n=row.n, about="mass splitting"), fontsize=11
    )
    return figure


def curves(rows: Sequence[CurveRow], bounds: Sequence[CurveBoundRow]) -> Any:
    """Panels against n above, against R below; what was found as dots, the proved upper bounds
    dashed.
    """
    lengths, radii = _spread({row.n for row in rows}), _spread({row.radius for row in rows})
    across = max(len(lengths), len(radii))
    figure = new_figure(max(1.2 + 2.6 * across, 5.0), 6.0)
    panels = figure.subplots(2, across, squeeze=False, sharey=True)
    names = list(dict.fromkeys(one.name for one in bounds))
    for panel, radius in zip(panels[0], radii, strict=False):
        _draw(panel, "n", [row for row in rows if row.radius == radius], bounds, names)
        panel.set(title=f"R = {radius:.3g}", xlabel="tokens n", xscale="log")
        panel.set_xticks(lengths, [str(n) for n in lengths])
        panel.minorticks_off()
    for panel, n in zip(panels[1], lengths, strict=False):
        _draw(panel, "radius", [row for row in rows if row.n == n], bounds, names)
        panel.set(title=f"n = {n}", xlabel="radius R")
    for panel in (*panels[0][len(radii) :], *panels[1][len(lengths) :]):
        panel.set_visible(False)
    largest = max(row.found for row in rows)
    panels[0][0].set_ylim(top=min(panels[0][0].get_ylim()[1], TALLEST * largest))
    shown: dict[str, Any] = {}
    for panel in panels.flat:
        handles, labels = panel.get_legend_handles_labels()
        shown = dict(zip(labels, handles, strict=True)) | shown
    figure.suptitle(heading(variant=rows[0].target, about="worst inputs L(n, R)"), fontsize=11)
    figure.supylabel("local Lipschitz constant", fontsize=10)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=6)
    return figure


def _draw(
    panel: Any,
    against: str,
    rows: Sequence[CurveRow],
    bounds: Sequence[CurveBoundRow],
    names: Sequence[str],
) -> None:
    rows = sorted(rows, key=lambda row: getattr(row, against))
    x = [getattr(row, against) for row in rows]
    dots = {"color": BLACK, "markersize": 4, "label": "found (lower bound)"}
    panel.plot(x, [row.found for row in rows], "o-", **dots)
    values = {(one.n, one.radius, one.name): one.value for one in bounds}
    for number, name in enumerate(names):
        curve = [values.get((row.n, row.radius, name)) for row in rows]
        if None in curve:
            continue
        colour = COLOURS[number % (len(COLOURS) - 2)]  # black is what was found
        panel.plot(x, curve, "--", color=colour, linewidth=1.2, label=name)
    panel.set_yscale("log")


def _spread(values: set[Any]) -> list[Any]:
    """At most MOST_PANELS of them, from the smallest to the largest."""
    ordered = sorted(values)
    if len(ordered) <= MOST_PANELS:
        return ordered
    return [
        ordered[round(place * (len(ordered) - 1) / (MOST_PANELS - 1))]
        for place in range(MOST_PANELS)
    ]


def _panels() -> tuple[Any, Any]:
    figure = new_figure(9.6, 4.6)
    return figure, figure.subplots(1, 2)
