"""The figures of the paper for a run: constant against length, constant against radius, radius
against length, heads by layers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.files import write_atomically
from attnscope.measure.fit import growth
from attnscope.measure.sweep import Row

MAP = "viridis"


def draw_all(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every figure that these rows allow, as PNG files in the folder."""
    whole = [row for row in rows if row.head is None]
    drawings: dict[str, Callable[[Any], None]] = {
        "constant-against-length.png": lambda figure: _panels(figure, whole, _against_length),
        "constant-against-radius.png": lambda figure: _panels(figure, whole, _against_radius),
        "radius-against-length.png": lambda figure: _panels(figure, whole, _radius_against_length),
    }
    if any(row.head is not None for row in rows):
        drawings["heads-by-layers.png"] = lambda figure: _heat_map(figure, rows)
    return [_saved(folder / name, draw) for name, draw in drawings.items()]


def _saved(path: Path, draw: Callable[[Any], None]) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_atomically(path, image.getvalue())
    return path


def _panels(
    figure: Any, rows: Sequence[Row], draw: Callable[[Any, Sequence[Row], Any], Any]
) -> None:
    """One panel per layer on common axes, one colour bar for all."""
    from matplotlib.colors import Normalize

    layers = sorted({row.layer for row in rows})
    across = min(3, len(layers))
    down = math.ceil(len(layers) / across)
    figure.set_size_inches(1.2 + 3.4 * across, 0.9 + 2.6 * down)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    values = [row.n if draw is _against_radius else row.radius for row in rows]
    scale = Normalize(min(values), max(values))
    for panel, layer in zip(axes.flat, layers, strict=False):
        dots = draw(panel, [row for row in rows if row.layer == layer], scale)
        panel.set_title(f"layer {layer}", fontsize=10)
        panel.grid(alpha=0.25, linewidth=0.5)
    for panel in axes.flat[len(layers) :]:
        panel.set_visible(False)
    if draw is not _radius_against_length:
        figure.colorbar(
            dots,
            ax=axes,
            label="tokens n" if draw is _against_radius else "radius R (RMS token norm)",
            shrink=0.8,
        )
    figure.suptitle(f"{Path(rows[0].model).name}, part: {rows[0].part}", fontsize=11)
    figure.supxlabel(
        "radius R (RMS token norm)" if draw is _against_radius else "tokens n", fontsize=10
    )
    figure.supylabel(
        (
            "radius R (RMS token norm)"
            if draw is _radius_against_length
            else "local Lipschitz constant"
        ),
        fontsize=10,
    )


def _against_length(panel: Any, rows: Sequence[Row], scale: Any) -> Any:
    n, sigma = [row.n for row in rows], [row.lower for row in rows]
    dots = panel.scatter(
        n, sigma, c=[row.radius for row in rows], cmap=MAP, norm=scale, s=9, linewidths=0
    )
    fit = growth(n, sigma)
    if fit is not None:
        x = np.linspace(min(n), max(n), 100)
        panel.plot(
            x,
            fit.factor * x**fit.exponent,
            color="crimson",
            linewidth=1.4,
            label=rf"{fit.factor:.3g} $n^{{{fit.exponent:.2f}}}$",
        )
        panel.legend(fontsize=8, frameon=False, loc="upper left")
    return dots


def _against_radius(panel: Any, rows: Sequence[Row], scale: Any) -> Any:
    return panel.scatter(
        [row.radius for row in rows],
        [row.lower for row in rows],
        c=[row.n for row in rows],
        cmap=MAP,
        norm=scale,
        s=9,
        linewidths=0,
    )


def _radius_against_length(panel: Any, rows: Sequence[Row], scale: Any) -> Any:
    return panel.scatter(
        [row.n for row in rows], [row.radius for row in rows], color="#3b528b", s=9, linewidths=0
    )


def _heat_map(figure: Any, rows: Sequence[Row]) -> None:
    """The median constant of each head at the longest length at which heads were measured."""
    single = [row for row in rows if row.head is not None]
    longest = max(row.n for row in single)
    layers, heads = (
        sorted({row.layer for row in single}),
        sorted({row.head for row in single if row.head is not None}),
    )
    table = np.full((len(heads), len(layers)), np.nan)
    for i, head in enumerate(heads):
        for j, layer in enumerate(layers):
            found = [
                row.lower
                for row in single
                if (row.head, row.layer, row.n) == (head, layer, longest)
            ]
            table[i, j] = np.median(found) if found else np.nan
    figure.set_size_inches(max(4.8, 2.4 + 0.55 * len(layers)), 1.6 + 0.32 * len(heads))
    panel = figure.subplots()
    image = panel.imshow(table, cmap=MAP, aspect="auto")
    panel.set_xticks(range(len(layers)), layers)
    panel.set_yticks(range(len(heads)), heads)
    panel.set_xlabel("layer")
    panel.set_ylabel("head")
    panel.set_title(
        f"{Path(rows[0].model).name}: constant of each head, n = {longest}", fontsize=10
    )
    for (i, j), value in np.ndenumerate(table):
        dark = value < np.nanmin(table) + 0.6 * (np.nanmax(table) - np.nanmin(table))
        panel.text(
            j,
            i,
            f"{value:.2g}",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
        )
    figure.colorbar(image, ax=panel, label="median over sequences")
