"""Pictures of a trace: shapes by depth, spectra, the theory's errors, tokens against ellipses, and
tokens moving.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.studies import drawing
from attnscope.studies._flow_pictures import Moving, animation
from attnscope.studies.drawing import BLUE, GREEN, GREY, MAP, RED, heading, new_figure, safe
from attnscope.studies.table import Table
from attnscope.studies.trace.rows import State, Step

FRAMES = 60
"""At most so many, and at most six between two depths."""
LEAST_SHOWN = 1e-6
"""Of a spectrum, relative to its largest value."""
PANELS = 12


def figures(table: Table) -> dict[str, Any]:
    """Every picture that these rows allow, by name."""
    title = heading(table.config.model, table.config.text, None, table.rows[0].n)
    made = {"shapes": _shapes(table.rows, title), "spectra": _spectra(table.rows, title)}
    if table["steps"]:
        made["theory"] = _theory(table["steps"], title)
        made["tokens-and-ellipses"] = _ellipses(table["steps"], title)
    return made


def animations(table: Table) -> dict[str, bytes]:
    """The first sequence moving through depth, on straight lines between one depth and the next."""
    rows = _first(table.rows)
    if not drawing.available() or len(rows) < 2:
        return {}
    points = np.stack([row.points for row in rows])
    between = max(1, min(6, FRAMES // (len(rows) - 1)))
    times = np.linspace(0, len(rows) - 1, between * (len(rows) - 1) + 1)
    below = np.minimum(times.astype(int), len(rows) - 2)
    part = (times - below)[:, None, None]
    moving = (1 - part) * points[below] + part * points[below + 1]
    name = Path(table.config.model).name
    return {"tokens.gif": animation(Moving(times, safe(name), "finished", x=moving, clock="depth"))}


def _first(rows: Sequence[Any]) -> list[Any]:
    return [row for row in rows if row.sequence == rows[0].sequence]


def _shapes(states: Sequence[State], title: str) -> Any:
    names = (
        ("radius", "RMS norm"),
        ("anisotropy", "anisotropy"),
        ("effective_rank", "effective rank"),
        ("mean_cosine", "mean cosine"),
        ("clusters", "clusters"),
    )
    figure = new_figure(9.0, 5.2)
    axes = figure.subplots(2, 3, sharex=True)
    for ax, (name, label) in zip(axes.flat, names, strict=False):
        for sequence in sorted({row.sequence for row in states}):
            rows = [row for row in states if row.sequence == sequence]
            ax.plot([r.depth for r in rows], [getattr(r, name) for r in rows], "o-", markersize=3)
        ax.set(ylabel=label)
        if name in ("anisotropy", "effective_rank", "clusters"):
            ax.set_ylim(bottom=0)
    rows = [row for row in _first(states) if row.w2 is not None]
    for name, label, colour, form in (
        ("moved", "token by token", GREY, "s-"),
        ("w2", "clouds, $W_2$", BLUE, "o-"),
        ("bures", "Gaussians, Bures", RED, "^--"),
    ):
        values = [getattr(row, name) for row in rows]
        axes.flat[5].plot(
            [row.depth for row in rows], values, form, color=colour, markersize=3, label=label
        )
    axes.flat[5].set(ylabel="from the depth before", ylim=(0, None))
    axes.flat[5].legend()
    for ax in axes[1]:
        ax.set_xlabel("depth")
    figure.suptitle(title, fontsize=11)
    return figure


def _spectra(states: Sequence[State], title: str) -> Any:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    rows: list[State] = _first(states)
    figure = new_figure(5.6, 4.2)
    ax = figure.subplots()
    scale = Normalize(0, max(row.depth for row in rows) or 1)
    for row in rows:
        share = row.spectrum / max(row.trace, 1e-300)
        share = share[share > LEAST_SHOWN * share[0]]
        colour = colormaps[MAP](scale(row.depth))
        ax.loglog(np.arange(1, len(share) + 1), share, color=colour, linewidth=1.2)
    ax.set(xlabel="number", ylabel="eigenvalue over trace")
    ax.set_title(f"{title}\nspectrum of the covariance")
    figure.colorbar(ScalarMappable(scale, MAP), ax=ax, label="depth")
    return figure


def _theory(steps: Sequence[Step], title: str) -> Any:
    from matplotlib.ticker import FuncFormatter

    layers = sorted({row.layer for row in steps})

    def medians(name: str) -> list[float]:
        return [
            float(np.median([getattr(r, name) for r in steps if r.layer == layer]))
            for layer in layers
        ]

    figure = new_figure(9.6, 3.8)
    errors, shape = figure.subplots(1, 2)
    for name, label, colour, form in (
        ("mean_error", "theory: mean", BLUE, "o-"),
        ("cov_error", "theory: covariance", RED, "^-"),
        ("token_error", "theory: tokens", GREEN, "s-"),
        ("token_error_uniform", "all read alike: tokens", GREY, "s:"),
        ("token_error_together", "all move as the mean: tokens", GREY, "d--"),
    ):
        errors.semilogy(layers, medians(name), form, color=colour, markersize=4, label=label)
    errors.axhline(1, color="black", linewidth=0.9)
    errors.annotate("no motion", (layers[0], 1), (2, 3), textcoords="offset points", fontsize=8)
    errors.set(xlabel="layer", ylabel="error over the motion", title="the attention step")
    for axis_part in (errors.yaxis.set_major_formatter, errors.yaxis.set_minor_formatter):
        axis_part(FuncFormatter(lambda value, _: f"{value:g}"))
    errors.legend()
    for name, label, colour, form in (
        ("anisotropy_before", "before the attention", GREY, "o:"),
        ("anisotropy_after", "after it", BLUE, "o-"),
        ("anisotropy_predicted", "after it, by the theory", RED, "^--"),
    ):
        shape.plot(layers, medians(name), form, color=colour, markersize=4, label=label)
    shape.set(xlabel="layer", ylabel="anisotropy", title="largest eigenvalue over trace")
    shape.set_ylim(bottom=0)
    shape.legend()
    for ax in (errors, shape):
        ax.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title, fontsize=11)
    return figure


def _ellipses(steps: Sequence[Step], title: str) -> Any:
    """Tokens after the attention of each layer in their own principal plane, with two-sigma
    ellipses: before, after, predicted.
    """
    rows: list[Step] = _first(steps)
    if len(rows) > PANELS:
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, PANELS).round().astype(int)]
    across = min(4, len(rows))
    down = math.ceil(len(rows) / across)
    figure = new_figure(2.5 * across + 0.6, 2.5 * down + 1.1)
    axes = figure.subplots(down, across, squeeze=False)
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = 2 * np.stack([np.cos(angle), np.sin(angle)])
    styles = ((GREY, ":", "before"), (BLUE, "-", "after"), (RED, "--", "theory"))
    for ax, row in zip(axes.flat, rows, strict=False):
        ax.scatter(*row.points.T, s=5, color=GREY, alpha=0.6, linewidths=0)
        held = [row.points]
        for place, (colour, line, label) in enumerate(styles):
            values, vectors = np.linalg.eigh(row.covs[place])
            outline = vectors @ (np.sqrt(values.clip(min=0))[:, None] * circle)
            outline = row.means[place][:, None] + outline
            ax.plot(*outline, line, color=colour, linewidth=1.4, label=label)
            if place < 2:  # a prediction far off must not make the tokens invisible
                held.append(outline.T)
        corners = np.concatenate(held)
        low, high = corners.min(0), corners.max(0)
        room = 0.15 * (high - low) + 1e-12
        ax.set(xlim=(low[0] - room[0], high[0] + room[0]))
        ax.set(ylim=(low[1] - room[1], high[1] + room[1]))
        ax.set_title(f"layer {row.layer}, cov. error {row.cov_error:.2g}")
        ax.set(xticks=[], yticks=[])
    for ax in axes.flat[len(rows) :]:
        ax.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.suptitle(f"{title}\nafter the attention: tokens and two-sigma ellipses", fontsize=11)
    return figure
