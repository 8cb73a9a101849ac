"""The Gaussian flow against flows of particles: samples approach it like one over the root of n,
quadrature clouds agree to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from attnscope.attention import Heads, variants
from attnscope.flows import flow
from attnscope.flows.trajectory import Trajectory
from attnscope.measures import Gaussian, Particles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Agreement(NamedTuple):
    """Largest error of mean and covariance at the end: of samples for each size (root mean square),
    and of a quadrature cloud.
    """

    variant: str
    sizes: tuple[int, ...]
    sampled: list[float]
    quadrature: float


def run(
    sizes: tuple[int, ...] = (50, 200, 800),
    repeats: int = 6,
    order: int = 14,
    time: float = 1.0,
    names: tuple[str, ...] = ("softmax", "l2", "sinkhorn", "linear"),
    seed: int = 0,
) -> list[Agreement]:
    generator = torch.Generator().manual_seed(seed)
    heads = Heads.from_matrices(
        *(0.3 * torch.randn(2, 2, 2, dtype=torch.float64, generator=generator))
    )
    start = Gaussian(
        torch.tensor([0.2, -0.1], dtype=torch.float64),
        torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=torch.float64),
    )
    found = []
    for name in names:
        attention = variants()[name](heads)
        exact = flow(attention, start, [0.0, time], settle=None)
        sampled = []
        for n in sizes:
            clouds = [
                flow(
                    attention,
                    start.sample(n, generator),
                    [0.0, time],
                    rtol=1e-5,
                    atol=1e-7,
                    settle=None,
                )
                for _ in range(repeats)
            ]
            sampled.append(float(np.sqrt(np.mean([_apart(cloud, exact) ** 2 for cloud in clouds]))))
        cloud = flow(attention, start.quadrature(order), [0.0, time], settle=None)
        found.append(Agreement(name, sizes, sampled, _apart(cloud, exact)))
    return found


def _apart(cloud: Trajectory[Particles], exact: Trajectory[Gaussian]) -> float:
    return max(
        float((cloud.mean[-1] - exact.mean[-1]).abs().max()),
        float((cloud.cov[-1] - exact.cov[-1]).abs().max()),
    )


def draw(found: list[Agreement]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    ax = figure.add_subplot()
    for place, one in enumerate(found):
        color = colormaps["tab10"](place)
        ax.plot(
            one.sizes, one.sampled, "o-", color=color, markersize=4, label=f"{one.variant}, samples"
        )
        ax.axhline(one.quadrature, color=color, linestyle=":", linewidth=1.2)
    sizes = np.array(found[0].sizes)
    ax.plot(
        sizes,
        found[0].sampled[0] * (sizes / sizes[0]) ** -0.5,
        "--",
        color="black",
        linewidth=0.8,
        label="$n^{-1/2}$",
    )
    ax.set(
        xscale="log", yscale="log", xlabel="particles $n$", ylabel="error of mean and covariance"
    )
    ax.set_title("Dotted: quadrature clouds", fontsize=9)
    ax.legend(fontsize=8, frameon=False)
    return figure
