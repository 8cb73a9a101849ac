"""The still picture and the animation of a flow. High dimensions are seen along the two principal
axes of all states together.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnscope.flows import Trajectory
from attnscope.measures import Gaussian, Particles

BLUE, RED, GREY = "#2166ac", "#b2182b", "#9aa0a6"
MOST_PATHS = 300
SHOWN_ELLIPSES = 7
STILL_GROWTH = 6
"""The still picture of a blow-up shows it until it is this many times as large as it was."""


def still(got: Trajectory[Any]) -> bytes:
    """Paths from start to end, or ellipses at a few times, as PNG."""
    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    points = _seen(got)
    reach = np.abs(points).max(axis=(1, 2))
    points = (
        points[: max(2, int((reach <= STILL_GROWTH * reach[0]).sum()))]
        if got.status == "blew up"
        else points
    )
    times = got.times.numpy()[: len(points)]
    if isinstance(got.final, Particles) and got.final.dim == 1:
        ax.plot(times, points[:, :MOST_PATHS, 0], color=BLUE, linewidth=0.8, alpha=0.6)
        ax.set(xlabel="time", ylabel="token")
    elif isinstance(got.final, Particles):
        ax.plot(
            points[:, :MOST_PATHS, 0],
            points[:, :MOST_PATHS, 1],
            color=GREY,
            linewidth=0.6,
            alpha=0.7,
            zorder=1,
        )
        ax.scatter(
            points[0, :, 0],
            points[0, :, 1],
            s=10,
            color=BLUE,
            label=f"t = {times[0]:.3g}",
            zorder=2,
        )
        ax.scatter(
            points[-1, :, 0],
            points[-1, :, 1],
            s=16,
            color=RED,
            label=f"t = {times[-1]:.3g}",
            zorder=3,
        )
    else:
        shown = np.unique(np.linspace(0, len(times) - 1, SHOWN_ELLIPSES).round().astype(int))
        for place, shade in zip(
            shown, colormaps["viridis"](np.linspace(0, 0.9, len(shown))), strict=True
        ):
            ax.plot(*points[place].T, color=shade, linewidth=1.5, label=f"t = {times[place]:.3g}")
    if points.shape[-1] == 2:
        _name_axes(ax, got)
        figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    ax.set_title(f"{got.status} at t = {got.stop_time:.4g}")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()


def animation(got: Trajectory[Any]) -> bytes:
    """Tokens or the one-sigma ellipse moving, as GIF. A flow that grows much is followed by the
    window.
    """
    figure = Figure(figsize=(4.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot(aspect="equal")
    points = _seen(got)
    if points.shape[-1] == 1:
        points = np.concatenate([points, np.zeros_like(points)], axis=-1)
    reach = np.maximum.accumulate(np.maximum(np.abs(points).max(axis=(1, 2)), 1e-12))
    reach = reach if reach[-1] > 5 * reach[0] else np.full_like(reach, reach[-1])
    ellipse = isinstance(got.final, Gaussian)
    (moving,) = ax.plot(
        [], [], "-" if ellipse else "o", color=BLUE, markersize=4, linewidth=1.6, alpha=0.8
    )
    _name_axes(ax, got)

    def frame(place: int) -> tuple[Any, ...]:
        moving.set_data(*points[place].T)
        window = 1.1 * reach[place]
        ax.set(
            xlim=(-window, window),
            ylim=(-window, window),
            title=f"t = {float(got.times[place]):.3g}",
        )
        return (moving,)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flow.gif"
        FuncAnimation(figure, frame, frames=len(points)).save(
            path, writer=PillowWriter(fps=12), dpi=80
        )
        return path.read_bytes()


def _seen(got: Trajectory[Any]) -> NDArray[np.float64]:
    """Points to draw at each time, (times, points, 1 or 2): tokens, or the outline of the
    ellipse.
    """
    last = got.final
    axes = _axes(got)
    if isinstance(last, Particles):
        return (got.x @ axes).numpy()
    angle = torch.linspace(0, 2 * torch.pi, 100, dtype=last.mean.dtype)
    circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
    shapes = []
    for state in got.states:
        flat = axes.mT @ state.cov @ axes
        mean = state.mean @ axes
        if flat.shape[-1] == 1:
            shapes.append(mean + flat.sqrt()[0] * circle[:, :1])
        else:
            shapes.append(mean + circle @ Gaussian(mean, (flat + flat.mT) / 2).factor())
    return torch.stack(shapes).numpy()


def _axes(got: Trajectory[Any]) -> Tensor:
    if got.final.dim <= 2:
        return torch.eye(got.final.dim, dtype=got.mean.dtype)
    moments = got.cov + got.mean[..., :, None] * got.mean[..., None, :]
    moments = moments / moments.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return torch.linalg.eigh(moments.mean(0)).eigenvectors[:, [-1, -2]]


def _name_axes(ax: Any, got: Trajectory[Any]) -> None:
    names = (
        ("$x_1$", "$x_2$")
        if got.final.dim <= 2
        else ("first principal axis", "second principal axis")
    )
    ax.set(xlabel=names[0], ylabel=names[1] if got.final.dim > 1 else "", aspect="equal")
