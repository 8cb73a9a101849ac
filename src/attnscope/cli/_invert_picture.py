"""The picture of a round trip: the error against the number of iterations, next to its proved
bound.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.nets.invertible import Invertible

if TYPE_CHECKING:
    from attnscope.cli.invert import Trip

BLUE, RED, GREY = "#2166ac", "#b2182b", "#9aa0a6"


def picture(trips: Sequence[Trip], network: Invertible) -> bytes:
    """As PNG."""
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    counts = [trip.iterations for trip in trips]
    least = 1e-18
    ax.plot(
        counts,
        [max(trip.bound, least) for trip in trips],
        "s--",
        color=RED,
        markersize=4,
        label="proved bound (exact arithmetic)",
    )
    ax.plot(
        counts,
        [max(trip.error, least) for trip in trips],
        "o-",
        color=BLUE,
        markersize=4,
        label="error",
    )
    ax.plot(counts, [trip.rounding for trip in trips], ":", color=GREY, label="rounding (estimate)")
    ax.set(yscale="log", xlabel="iterations per layer", ylabel="distance to the input")
    steps = network.steps()
    ax.set_title(f"{len(steps)} layers of {steps[0].attention.name} attention undone")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()
