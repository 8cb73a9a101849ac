"""The papers' figure for many models: the constant against the length, a panel for each model, part
and text, a line for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnscope.studies.drawing import MAP, heading, new_figure
from attnscope.studies.measure.figures import CONSTANT, TOKENS
from attnscope.studies.measure.rows import Row
from attnscope.studies.sweep.summary import Where, by_piece

PANELS = 12
"""In one figure; more pieces make more figures."""
ACROSS = 3


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """`growth`, and `growth-2` and so on when there are many pieces."""
    found = list(by_piece([row for row in rows if row.head is None]).items())
    parts = [found[start : start + PANELS] for start in range(0, len(found), PANELS)]
    return {
        "growth" if number == 0 else f"growth-{number + 1}": _panels(part)
        for number, part in enumerate(parts)
    }


def _panels(found: Sequence[tuple[Where, Sequence[Row]]]) -> Any:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    across = min(ACROSS, len(found))
    down = math.ceil(len(found) / across)
    figure = new_figure(1.3 + 3.4 * across, 0.9 + 2.7 * down)
    axes = figure.subplots(down, across, squeeze=False, sharex=True)
    deepest = max(row.layer for _, rows in found for row in rows)
    scale, colours = Normalize(0, max(deepest, 1)), colormaps[MAP]
    for panel, ((model, part, text), rows) in zip(axes.flat, found, strict=False):
        for layer in sorted({row.layer for row in rows}):
            here = [row for row in rows if row.layer == layer]
            lengths = sorted({row.n for row in here})
            middle = [float(np.median([r.lower for r in here if r.n == n])) for n in lengths]
            marker = "o" if len(lengths) == 1 else ""
            panel.plot(lengths, middle, color=colours(scale(layer)), marker=marker, markersize=4)
        panel.set_title(heading(model, text, part))
        if any(row.lower > 0 for row in rows):
            panel.set(xscale="log", yscale="log")
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    figure.colorbar(ScalarMappable(scale, colours), ax=axes, label="layer", shrink=0.8)
    figure.supxlabel(TOKENS, fontsize=10)
    figure.supylabel(f"{CONSTANT}, median over sequences", fontsize=10)
    return figure
