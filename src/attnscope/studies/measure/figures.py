"""The figures of the paper for a run: constant against length, constant against radius, radius
against length, heads by layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnscope.studies.drawing import BLUE, MAP, RED, heading, new_figure
from attnscope.studies.measure.fit import growth
from attnscope.studies.measure.rows import MeasureConfig, Row

TOKENS, RADIUS, CONSTANT = "tokens n", "radius R (RMS token norm)", "local Lipschitz constant"


def figures(rows: Sequence[Row], config: MeasureConfig) -> dict[str, Any]:
    """Every figure that these rows allow, by name."""
    whole, text = [row for row in rows if row.head is None], config.text
    against_length = partial(_against_length, fit_from=config.fit_from)
    made = {
        "constant-against-length": _panels(whole, text, against_length, (TOKENS, CONSTANT)),
        "constant-against-radius": _panels(whole, text, _against_radius, (RADIUS, CONSTANT)),
        "radius-against-length": _panels(whole, text, _radius_against_length, (TOKENS, RADIUS)),
    }
    if any(row.head is not None for row in rows):
        made["heads-by-layers"] = _heat_map(rows, text)
    return made


def _title(rows: Sequence[Row], text: str, n: str) -> str:
    return heading(rows[0].model, text, f"softmax, part: {rows[0].part}", n)


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _panels(
    rows: Sequence[Row],
    text: str,
    draw: Callable[[Any, Sequence[Row], Any], Any],
    labels: tuple[str, str],
) -> Any:
    """One panel per layer on common axes, one colour bar for all."""
    from matplotlib.colors import Normalize

    layers = sorted({row.layer for row in rows})
    across = min(3, len(layers))
    down = math.ceil(len(layers) / across)
    figure = new_figure(1.2 + 3.4 * across, 1.0 + 2.6 * down)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    values = [row.n if draw is _against_radius else row.radius for row in rows]
    scale = Normalize(min(values), max(values))
    for panel, layer in zip(axes.flat, layers, strict=False):
        dots = draw(panel, [row for row in rows if row.layer == layer], scale)
        panel.set_title(f"layer {layer}")
    for panel in axes.flat[len(layers) :]:
        panel.set_visible(False)
    if draw is not _radius_against_length:
        label = TOKENS if draw is _against_radius else RADIUS
        figure.colorbar(dots, ax=axes, label=label, shrink=0.8)
    figure.suptitle(_title(rows, text, _range([row.n for row in rows])), fontsize=11)
    figure.supxlabel(labels[0], fontsize=10)
    figure.supylabel(labels[1], fontsize=10)
    return figure


def _against_length(panel: Any, rows: Sequence[Row], scale: Any, fit_from: int) -> Any:
    n, sigma = [row.n for row in rows], [row.lower for row in rows]
    dots = panel.scatter(
        n, sigma, c=[row.radius for row in rows], cmap=MAP, norm=scale, s=9, linewidths=0
    )
    fit = growth(n, sigma, fit_from)
    if fit is not None:
        x = np.linspace(fit.shortest, fit.longest, 100)
        label = rf"{fit.factor:.3g} $n^{{{fit.exponent:.2f}}}$"
        panel.plot(x, fit.factor * x**fit.exponent, color=RED, label=label)
        panel.legend(loc="upper left")
    return dots


def _against_radius(panel: Any, rows: Sequence[Row], scale: Any) -> Any:
    radius, sigma = [row.radius for row in rows], [row.lower for row in rows]
    colours = {"c": [row.n for row in rows], "cmap": MAP, "norm": scale}
    return panel.scatter(radius, sigma, s=9, linewidths=0, **colours)


def _radius_against_length(panel: Any, rows: Sequence[Row], scale: Any) -> Any:
    n, radius = [row.n for row in rows], [row.radius for row in rows]
    return panel.scatter(n, radius, color=BLUE, s=9, linewidths=0)


def _heat_map(rows: Sequence[Row], text: str) -> Any:
    """The median constant of each head at the longest length at which heads were measured."""
    single = [row for row in rows if row.head is not None]
    longest = max(row.n for row in single)
    layers = sorted({row.layer for row in single})
    heads = sorted({row.head for row in single if row.head is not None})
    table = np.full((len(heads), len(layers)), np.nan)
    for i, head in enumerate(heads):
        for j, layer in enumerate(layers):
            here = (head, layer, longest)
            found = [row.lower for row in single if (row.head, row.layer, row.n) == here]
            table[i, j] = np.median(found) if found else np.nan
    figure = new_figure(max(4.8, 2.4 + 0.55 * len(layers)), 1.7 + 0.32 * len(heads))
    panel = figure.subplots()
    panel.grid(False)
    image = panel.imshow(table, cmap=MAP, aspect="auto")
    panel.set_xticks(range(len(layers)), layers)
    panel.set_yticks(range(len(heads)), heads)
    panel.set(xlabel="layer", ylabel="head")
    panel.set_title(_title(rows, text, str(longest)))
    low, high = np.nanmin(table), np.nanmax(table)
    for (i, j), value in np.ndenumerate(table):
        colour = "white" if value < low + 0.6 * (high - low) else "black"
        panel.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=panel, label="constant of the head, median over sequences")
    return figure
