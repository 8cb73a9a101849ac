"""The still picture and the animation of a flow. High dimensions are seen along the two principal
axes of all states together.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.studies.drawing import BLUE, GREY, MAP, RED, lay_out, new_figure, style

Array = NDArray[np.float64]
MOST_PATHS = 300
SHOWN_ELLIPSES = 7
FRAME = 80
"""Milliseconds that a frame of the animation is seen."""
STILL_GROWTH = 6
"""The still picture of a blow-up shows it until it is this many times as large as it was."""


class Moving(NamedTuple):
    """States in time: x (times, n, d), or mean (times, d) and cov (times, d, d)."""

    times: Array
    title: str
    status: str
    x: Array | None = None
    mean: Array | None = None
    cov: Array | None = None
    clock: str = "t"
    """What the times are called."""

    @property
    def dim(self) -> int:
        states = self.mean if self.x is None else self.x
        assert states is not None
        return states.shape[-1]


def still(moving: Moving) -> Any:
    """Paths from start to end, or ellipses at a few times, as a figure."""
    from matplotlib import colormaps

    figure = new_figure(5.6, 5.4)
    ax = figure.add_subplot()
    points = _seen(moving)
    reach = np.abs(points).max(axis=(1, 2))
    if moving.status == "blew up":
        points = points[: max(2, int((reach <= STILL_GROWTH * reach[0]).sum()))]
    times = moving.times[: len(points)]
    if moving.x is not None and moving.dim == 1:
        ax.plot(times, points[:, :MOST_PATHS, 0], color=BLUE, linewidth=0.8, alpha=0.6)
        ax.set(xlabel="time", ylabel="token")
    elif moving.x is not None:
        paths = points[:, :MOST_PATHS]
        ax.plot(paths[..., 0], paths[..., 1], color=GREY, linewidth=0.6, alpha=0.7, zorder=1)
        ends = ((0, BLUE, 10, "o"), (-1, RED, 18, "^"))
        for place, color, size, marker in ends:
            label = f"{moving.clock} = {times[place]:.3g}"
            ax.scatter(
                *points[place].T, s=size, color=color, marker=marker, label=label, zorder=2 - place
            )
    else:
        shown = np.unique(np.linspace(0, len(times) - 1, SHOWN_ELLIPSES).round().astype(int))
        shades = colormaps[MAP](np.linspace(0, 0.9, len(shown)))
        for place, shade in zip(shown, shades, strict=True):
            label = f"{moving.clock} = {times[place]:.3g}"
            ax.plot(*points[place].T, color=shade, linewidth=1.5, label=label)
    if points.shape[-1] == 2:
        _name_axes(ax, moving)
        figure.legend(loc="outside lower center", ncols=4)
    ax.set_title(moving.title)
    return figure


def animation(moving: Moving) -> bytes:
    """Tokens or the one-sigma ellipse moving, as GIF. A flow that grows much is followed by the
    window.
    """
    from PIL import Image

    with style():
        figure = new_figure(4.4, 4.4)
        figure.set_dpi(80)
        ax = figure.add_subplot(aspect="equal")
        points = _seen(moving)
        if points.shape[-1] == 1:
            points = np.concatenate([points, np.zeros_like(points)], axis=-1)
        reach = np.maximum.accumulate(np.maximum(np.abs(points).max(axis=(1, 2)), 1e-12))
        reach = reach if reach[-1] > 5 * reach[0] else np.full_like(reach, reach[-1])
        form = "o" if moving.cov is None else "-"
        (drawn,) = ax.plot([], [], form, color=BLUE, markersize=4, linewidth=1.6, alpha=0.8)
        _name_axes(ax, moving)

        def show(place: int) -> None:
            drawn.set_data(*points[place].T)
            window = 1.1 * reach[place]
            limits = (-window, window)
            ax.set(xlim=limits, ylim=limits, title=f"{moving.clock} = {moving.times[place]:.3g}")

        show(len(points) - 1)  # the widest window has the longest numbers
        lay_out(figure)
        frames = []
        for place in range(len(points)):
            show(place)
            figure.canvas.draw()
            seen = Image.fromarray(np.asarray(figure.canvas.buffer_rgba()))
            frames.append(seen.convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE))
    file = io.BytesIO()
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=FRAME, loop=0)
    return file.getvalue()


def _seen(moving: Moving) -> Array:
    """Points to draw at each time, (times, points, 1 or 2): tokens, or the outline of the
    ellipse.
    """
    axes = _axes(moving)
    if moving.x is not None:
        return moving.x @ axes
    assert moving.mean is not None
    assert moving.cov is not None
    angle = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)[:, : axes.shape[-1]]
    values, vectors = np.linalg.eigh(axes.T @ moving.cov @ axes)
    factor = vectors * np.sqrt(values.clip(min=0))[..., None, :]
    return (moving.mean @ axes)[:, None] + circle @ factor.mT


def _axes(moving: Moving) -> Array:
    if moving.dim <= 2:
        return np.eye(moving.dim)
    if moving.x is not None:
        moments = moving.x.mT @ moving.x
    else:
        assert moving.mean is not None
        assert moving.cov is not None
        moments = moving.cov + moving.mean[:, :, None] * moving.mean[:, None, :]
    traces = np.trace(moments, axis1=-2, axis2=-1)[:, None, None]
    return np.linalg.eigh((moments / traces).mean(0)).eigenvectors[:, [-1, -2]]


def _name_axes(ax: Any, moving: Moving) -> None:
    names = ("$x_1$", "$x_2$")
    if moving.dim > 2:
        names = ("first principal axis", "second principal axis")
    ax.set(xlabel=names[0], ylabel=names[1] if moving.dim > 1 else "", aspect="equal")
