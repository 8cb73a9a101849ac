r"""What the covariance figures share: unit-trace starts on a disc, the cone of 2 x 2 covariances,
and how to draw flows in it [castin25].

A covariance has the coordinates $(s_{11} - s_{22}, 2 s_{12}, s_{11} + s_{22})$: the cone $z \ge
\sqrt{x^2 + y^2}$, rank one on its boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.flows import Trajectory, flow
from attnscope.measures import Gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED, GREY = "#2166ac", "#b2182b", "#9aa0a6"
Flows = dict[str, Trajectory[Gaussian]]


def disc(rings: int = 3, edge: float = 0.95) -> Float[Tensor, "m 2 2"]:
    """Unit-trace covariances [[(1+u)/2, w/2], [w/2, (1-u)/2]] with (u, w) on rings of the disc of
    radius `edge`, centre included.
    """
    points = [(0.0, 0.0)]
    for ring in range(1, rings + 1):
        angles = torch.arange(6 * ring, dtype=torch.float64) * (2 * torch.pi / (6 * ring))
        points += [
            (edge * ring / rings * float(a.cos()), edge * ring / rings * float(a.sin()))
            for a in angles
        ]
    u, w = torch.tensor(points, dtype=torch.float64).unbind(-1)
    return torch.stack([(1 + u) / 2, w / 2, w / 2, (1 - u) / 2], dim=-1).reshape(-1, 2, 2)


def cone(cov: Float[Tensor, "*stack 2 2"]) -> Float[Tensor, "*stack 3"]:
    """The coordinates of a covariance in the cone."""
    return torch.stack(
        [cov[..., 0, 0] - cov[..., 1, 1], 2 * cov[..., 0, 1], cov[..., 0, 0] + cov[..., 1, 1]],
        dim=-1,
    )


def from_disc(
    attentions: Mapping[str, Attention], end: float, rings: int, steps: int = 80
) -> Flows:
    """The flows of all starts of the disc under each attention, at times that grow geometrically to
    `end`.
    """
    starts = disc(rings)
    normal = Gaussian(torch.zeros(len(starts), 2, dtype=torch.float64), starts)
    times = torch.cat(
        [
            torch.zeros(1, dtype=torch.float64),
            torch.logspace(-3, 0, steps, dtype=torch.float64) * end,
        ]
    )
    return {name: flow(attention, normal, times) for name, attention in attentions.items()}


def draw_in_cone(flows: Flows, title: str) -> Figure:
    """One cone per attention: paths in grey, starts in blue, ends in red."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * max(len(flows), 1.2), 4.6))
    figure.subplots_adjust(left=0.02, right=0.94, bottom=0.08, top=0.84, wspace=0.22)
    figure.suptitle(title)
    for place, (name, got) in enumerate(flows.items(), start=1):
        ax = figure.add_subplot(1, len(flows), place, projection="3d")
        paths = cone(got.cov).numpy()
        top = float(paths[..., 2].max())
        turn = torch.linspace(0, 2 * torch.pi, 61)[None]
        height = torch.linspace(0, top, 2)[:, None]
        surface = [
            (height * turn.cos()).numpy(),
            (height * turn.sin()).numpy(),
            height.expand(2, 61).numpy(),
        ]
        ax.plot_surface(*surface, color=GREY, alpha=0.12, linewidth=0)
        for member in range(paths.shape[1]):
            ax.plot(*paths[:, member].T, color=GREY, linewidth=0.7)
        ax.scatter(*paths[0].T, s=8, color=BLUE, label="start", depthshade=False)
        ax.scatter(*paths[-1].T, s=12, color=RED, label="end", depthshade=False)
        ax.set(
            title=name,
            xlabel="$s_{11} - s_{22}$",
            ylabel="$2 s_{12}$",
            xlim=(-top, top),
            ylim=(-top, top),
            zlim=(0, top),
        )
        ax.set_zlabel("trace")
        ax.view_init(elev=18, azim=-60)
        ax.locator_params(nbins=4)
        if place == 1:
            ax.legend(loc="upper left", fontsize=8, frameon=False)
    return figure


def draw_in_disc(flows: Flows, title: str) -> Figure:
    """One disc per attention: S / tr S along the flow, rank one on the circle. Members that blew up
    end in red, others in blue.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(3.9 * len(flows), 4.3), layout="constrained")
    figure.suptitle(title)
    for place, (name, got) in enumerate(flows.items(), start=1):
        ax = figure.add_subplot(1, len(flows), place, aspect="equal")
        ax.add_patch(Circle((0, 0), 1, fill=False, color="black", linewidth=0.8))
        coordinates = cone(got.cov)
        paths = (coordinates[..., :2] / coordinates[..., 2:]).numpy()
        for member, outcome in enumerate(got.outcomes):
            color = RED if outcome.status == "blew up" else BLUE
            ax.plot(*paths[:, member].T, color=GREY, linewidth=0.7, zorder=1)
            ax.scatter(paths[-1, member, 0], paths[-1, member, 1], s=16, color=color, zorder=2)
        blown = sum(outcome.status == "blew up" for outcome in got.outcomes)
        ax.set(
            title=f"{name}: {blown} of {len(got.outcomes)} blow up",
            xlim=(-1.1, 1.1),
            ylim=(-1.1, 1.1),
        )
        ax.set(xlabel="$(s_{11} - s_{22})/$trace", ylabel="$2 s_{12}/$trace")
        ax.locator_params(nbins=5)
    return figure


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)
