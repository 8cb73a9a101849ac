"""Figure "ellipses": two covariances in time, one that clusters onto a line and one that blows up
[castin25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.flows import Trajectory, flow
from attnscope.measures import Gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = dict[str, Trajectory[Gaussian]]


def run(angle: float = 0.5, frames: int = 7) -> Pair:
    """Softmax with V = I: A = -q q^T flattens the ellipse across q; A = q q^T stretches it to
    infinity at a known time.
    """
    q = torch.tensor([np.cos(angle), np.sin(angle)], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    start = Gaussian(
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([[1.0, 0.3], [0.3, 0.6]], dtype=torch.float64),
    )
    blow_up = 1 / (2 * float(q @ start.cov @ q))
    flat, tall = (
        Softmax(Heads.from_matrices(sign * torch.outer(q, q), eye)) for sign in (-1.0, 1.0)
    )
    return {
        "clustering": flow(flat, start, [0.0, *np.geomspace(0.2, 200, frames - 1)], settle=None),
        "blow-up": flow(tall, start, list(np.linspace(0, 0.93 * blow_up, frames))),
    }


def outline(
    cov: Float[Tensor, "2 2"], mean: Float[Tensor, " 2"], points: int = 120
) -> Float[Tensor, "points 2"]:
    """The ellipse of all points one standard deviation from the mean."""
    angle = torch.linspace(0, 2 * torch.pi, points, dtype=cov.dtype)
    return mean + torch.stack([angle.cos(), angle.sin()], dim=-1) @ Gaussian(mean, cov).factor()


def draw(pair: Pair) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for place, (name, got) in enumerate(pair.items(), start=1):
        ax = figure.add_subplot(1, 2, place, aspect="equal")
        shades = colormaps["viridis"](np.linspace(0, 0.9, len(got.states)))
        for t, state, shade in zip(got.times.tolist(), got.states, shades, strict=True):
            ax.plot(
                *outline(state.cov, state.mean).numpy().T,
                color=shade,
                linewidth=1.5,
                label=f"t = {t:.3g}",
            )
        ax.set(title=name, xlabel="$x_1$", ylabel="$x_2$")
        ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
