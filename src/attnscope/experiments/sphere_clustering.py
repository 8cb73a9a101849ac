r"""Tokens on the sphere gather in clusters as depth grows, fewer and fewer; the sharper the kernel,
the longer they last [geshkovski25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.flows import Sphere, Trajectory, clusters, energy, flow
from attnscope.measures import Particles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Clustering(NamedTuple):
    """A flow on the sphere with the number of its clusters and its energy at each time."""

    beta: float
    gap: float
    trajectory: Trajectory[Particles]
    numbers: list[int]
    energies: list[float]


def run(
    n: int = 64,
    dim: int = 3,
    betas: tuple[float, ...] = (1.0, 4.0, 9.0),
    end: float = 50.0,
    gap: float = 0.1,
    seed: int = 0,
) -> list[Clustering]:
    """Softmax with scores beta <x, y> and V = I from uniform points of the sphere; a cluster is a
    chain of hops of at most `gap`.
    """
    x = torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    start, eye = Particles(Sphere()(x)), torch.eye(dim, dtype=torch.float64)
    times = [0.0, *np.geomspace(0.05, end, 60)]
    found = []
    for beta in betas:
        attention = Softmax(Heads.from_matrices(beta * eye, eye))
        got = flow(attention, start, times, space=Sphere(), rtol=1e-6, atol=1e-8, settle=None)
        numbers = [clusters(state, gap).number for state in got.states]
        found.append(
            Clustering(
                beta, gap, got, numbers, [energy(attention, state).value for state in got.states]
            )
        )
    return found


def draw(found: list[Clustering]) -> Figure:
    """Clusters and energy against time."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for one, shade in zip(
        found, colormaps["viridis"](np.linspace(0, 0.85, len(found))), strict=True
    ):
        times = one.trajectory.times.numpy()[1:]
        left.step(
            times, one.numbers[1:], where="post", color=shade, label=f"$\\beta = {one.beta:g}$"
        )
        top = np.exp(one.beta) / 2
        right.plot(times, np.array(one.energies[1:]) / top, color=shade)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="time",
        ylabel=f"clusters (gap {found[0].gap:g})",
        title="Number of clusters",
    )
    right.set(xscale="log", xlabel="time", ylabel="energy / its maximum", title="Energy")
    left.legend(frameon=False)
    return figure
