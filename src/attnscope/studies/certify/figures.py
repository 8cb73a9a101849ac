"""The figures of `certify`: accuracy against eps, one layer's bound against an attack, images
nearest to their certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnscope.studies.certify.layer import DIM, FOUND, SMALLEST, TOKENS
from attnscope.studies.certify.rows import LayerRow, NearRow, NetworkRow, Row, SmoothRow
from attnscope.studies.certify.summary import title
from attnscope.studies.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    new_figure,
    safe,
)

HIGHEST = 1000
LONGEST_TITLE = 90
THIN = (BLUE, GREEN, PINK, ORANGE, SKY, GREY)
"""Colours of single theorems, with dashes when there are more of these."""


def accuracy_against_eps(
    rows: Sequence[Row], networks: Sequence[NetworkRow], smooth: Sequence[SmoothRow] = ()
) -> Any:
    """Certified accuracy at every eps, by the proved radii, and accuracy under attack at the eps
    that were attacked; control dashed. The smoothed network beside it, where there is one.
    """
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    network = [row for row in rows if row.network == "network"]
    control = [row for row in rows if row.network == "control"]
    reach = 1.1 * max((row.eps for row in rows), default=0.0)
    if network:
        _curves(ax, network, reach, (BLUE, RED), "", {"linestyle": "-", "zorder": 3})
    if control:
        _curves(ax, control, reach, (GREY, GREY), "control: ", {"linestyle": "--"})
    radii = np.array([row.rightly for row in smooth if row.network == "network"])
    if len(radii):
        x = np.unique(radii[radii > 0])
        share = 100 * np.array([(radii >= eps).mean() for eps in x])
        clean = 100 * float(np.mean(radii > 0))
        label = f"smoothed, sigma {smooth[0].sigma:g} (probable)"
        ax.step(
            [0, *x, *x[-1:]],
            [clean, *share, *(0,) * len(x[-1:])],
            color=GREEN,
            linestyle="-.",
            label=label,
        )
    ax.set(xlabel="eps (l2 in pixel space)", ylabel="accuracy in %", ylim=(0, 102), xlim=(0, None))
    images = {row.image for row in rows} | {row.image for row in smooth}
    ax.set_title(safe(title(networks, len(images)), LONGEST_TITLE))
    ax.legend()
    return figure


def _curves(
    ax: Any,
    rows: Sequence[Row],
    reach: float,
    colours: tuple[str, str],
    owner: str,
    style: dict[str, Any],
) -> None:
    """Both curves are steps: a radius proves every smaller eps, and an image broken at one eps is
    broken at every larger one.
    """
    first = {row.image: row for row in rows}.values()
    clean = sum(row.label == row.predicted for row in first) / len(first)
    radii = np.array([row.radius for row in first])
    x = np.unique(radii)
    share = np.array([clean, *((radii >= eps).mean() for eps in x[x > 0]), 0.0])
    proved = {"color": colours[0], "label": f"{owner}certified (proved)"}
    ax.step([0, *x[x > 0], x[-1]], 100 * share, **proved, **style)
    eps = sorted({row.eps for row in rows})
    alive = [sum(row.broken is False for row in rows if row.eps == one) for one in eps]
    standing = 100 * np.array([clean, *(np.array(alive) / len(first))])
    ax.step(
        [0, *eps, reach],
        [*standing, standing[-1]],
        where="post",
        color=colours[1],
        **style | {"linestyle": ":"},
    )
    ax.plot(
        eps,
        standing[1:],
        "o",
        color=colours[1],
        markersize=4,
        label=f"{owner}not broken by PGD",
        zorder=style.get("zorder", 2),
    )


def bound_against_attack(rows: Sequence[LayerRow]) -> Any:
    """How far one residual softmax layer with random weights can move: proved and found, one panel
    for each number of heads.
    """
    heads = sorted({row.heads for row in rows})
    figure = new_figure(1.8 + 3.9 * len(heads), 4.0)
    axes = figure.subplots(1, len(heads), sharex=True, sharey=True, squeeze=False)[0]
    for ax, count in zip(axes, heads, strict=True):
        _layer(ax, count, [row for row in rows if row.heads == count])
    lowest = min(row.moved / row.eps for row in rows if row.by == FOUND)
    axes[0].set_ylim(0.8 * lowest, HIGHEST)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(
        f"one residual softmax layer, n = {TOKENS} tokens of dimension {DIM}, random weights",
        fontsize=10,
    )
    figure.supxlabel("eps (tokens move by at most this much, Frobenius norm)", fontsize=9)
    figure.supylabel("how far the output moves / eps", fontsize=9)
    return figure


def _layer(ax: Any, heads: int, rows: Sequence[LayerRow]) -> None:
    curves: dict[str, list[LayerRow]] = {}
    for row in rows:
        curves.setdefault(row.by, []).append(row)
    theorems = [name for name in curves if name not in (SMALLEST, FOUND)]
    for place, name in enumerate(theorems):
        colour, dashes = THIN[place % len(THIN)], ("-", "--", ":")[place // len(THIN) % 3]
        _line(ax, curves[name], name, {"color": colour, "linewidth": 1.0, "linestyle": dashes})
    _line(ax, curves[SMALLEST], SMALLEST, {"color": BLACK, "linewidth": 2.2})
    _line(ax, curves[FOUND], FOUND, {"color": RED, "marker": "o", "markersize": 4})
    pairs = zip(curves[SMALLEST], curves[FOUND], strict=True)
    ratio = [above.moved / below.moved for above, below in pairs]
    ax.set(xscale="log", yscale="log")
    ax.set_title(
        f"{heads} head{'s' * (heads > 1)}: smallest / PGD from {min(ratio):.2f} to"
        f" {max(ratio):.2f}",
        fontsize=9,
    )


def _line(ax: Any, rows: Sequence[LayerRow], label: str, style: dict[str, Any]) -> None:
    ax.plot([row.eps for row in rows], [row.moved / row.eps for row in rows], label=label, **style)


def nearest_images(rows: Sequence[NearRow], networks: Sequence[NetworkRow]) -> Any:
    """Each image above the nearest one found that is read otherwise, and their difference."""
    figure = new_figure(max(0.9 + 1.75 * len(rows), 5.4), 6.3)
    axes = figure.subplots(3, len(rows), squeeze=False)
    for column, near in zip(axes.T, rows, strict=True):
        _column(column, near)
    owner = f"{safe(networks[0].images)}: " if networks else ""
    figure.suptitle(
        f"{owner}images nearest to their certificate,\n"
        "and the nearest misread image that PGD found",
        fontsize=10,
    )
    return figure


def _column(column: Any, near: NearRow) -> None:
    for ax in column:
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
    _show(column[0], near.pixels)
    column[0].set_title(f"{safe(near.class_name, 16)}\nproved to {near.radius:.3f}", fontsize=9)
    if near.misread is None:
        for ax in column[1:]:
            ax.axis("off")
        words = {"ha": "center", "va": "center", "fontsize": 9, "transform": column[1].transAxes}
        column[1].text(0.5, 0.5, "no attack\nfound", **words)
        return
    _show(column[1], near.misread)
    read_as = safe(near.read_as_name, 16)
    column[1].set_title(f"read as {read_as}\nat {near.distance:.3f}", fontsize=9)
    difference = (near.misread - near.pixels).mean(0)
    largest = max(float(np.abs(difference).max()), 1e-12)
    column[2].imshow(difference, cmap="RdBu_r", vmin=-largest, vmax=largest)
    column[2].set_title(f"difference\nup to {largest:.2g}", fontsize=9)


def _show(ax: Any, pixels: np.ndarray) -> None:
    """Grey for one channel, colours for three; what leaves [0, 1] is shown at its edge."""
    picture = pixels.clip(0, 1).transpose(1, 2, 0)
    if picture.shape[2] == 1:
        ax.imshow(picture[..., 0], cmap="gray_r", vmin=0, vmax=1)
    else:
        ax.imshow(picture)
