r"""A normalising flow of invertible attention on sets of points in the plane, against the best
Gaussian and the law itself. Invertible residual layers are those of [chen19].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, GREEN, RED, new_figure
from attnscope.studies.papers._figure import PaperFigure
from attnscope.studies.papers._point_clouds import (
    Flow,
    clouds,
    gaussian_log_density,
    law_log_density,
)
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

MOMENTS = 20
"""How often the likelihood is looked at."""


class Likelihood(NamedTuple):
    """Mean log-likelihood per point on held-out sets, in nats, while the flow learns."""

    step: int
    value: float


class Rival(NamedTuple):
    """Another density on the same sets: its value, and by how much the trained flow is above it,
    with the standard error over the sets (of the differences: both see the same sets).
    """

    name: str
    value: float
    ahead: float
    error: float


class Sets(NamedTuple):
    """Held-out sets, and sets drawn from the trained flow."""

    number: int
    held: np.ndarray
    samples: np.ndarray


@dataclass(frozen=True)
class CloudConfig:
    n: int = 5
    blocks: int = 10
    heads: int = 2
    steps: int = 400
    batch: int = 64
    held: int = 256
    fitted: int = 20_000
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class CloudCell(CloudConfig, Cell):
    """One training, which cannot be cut."""


class PointCloudFlow(PaperFigure):
    """A normalising flow of invertible attention on sets of points, against the best Gaussian."""

    name = "point_cloud_flow"
    paper = "chen19"
    figure = "a normalising flow on point clouds"
    topic = "talk"
    seconds = (10, 100)
    Config = CloudConfig
    fast = CloudConfig(n=4, blocks=6, steps=50, batch=48, held=96, fitted=4000)
    tables: ClassVar[dict[str, type]] = {"results": Likelihood, "rivals": Rival, "sets": Sets}

    def cells(self, config: CloudConfig, workbench: Workbench) -> Iterable[CloudCell]:
        for name, value in asdict(config).items():
            if name != "seed":
                check_positive(name, value)
        yield CloudCell(**asdict(config))

    def run(self, cell: CloudCell, workbench: Workbench) -> list[Any]:
        """Train on fresh sets and follow the likelihood on held-out ones. The Gaussian, of
        dimension 2n, is fitted to other sets.
        """
        generator = torch.Generator().manual_seed(cell.seed)
        test = clouds(cell.held, cell.n, generator)
        network = Flow(cell.blocks, cell.n, cell.heads, generator)
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, cell.steps)
        made: list[Any] = []
        for step in range(cell.steps + 1):
            if not workbench.going(step / (cell.steps + 1), f"training step {step}"):
                return made
            if step % max(1, cell.steps // MOMENTS) == 0:
                made.append(Likelihood(step, float(_per_point(network, test).mean())))
            optimiser.zero_grad()
            (-network.log_density(clouds(cell.batch, cell.n, generator)).mean() / cell.n).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        flow = _per_point(network, test)
        other = clouds(cell.fitted, cell.n, generator).flatten(1)
        for name, density in (
            ("best Gaussian", gaussian_log_density(other, test.flatten(1))),
            ("the law itself", law_log_density(test)),
        ):
            ahead = flow - density / cell.n
            error = float(ahead.std() / len(ahead) ** 0.5)
            made.append(Rival(name, float(density.mean()) / cell.n, float(ahead.mean()), error))
        samples = network.sample(cell.held, cell.n, generator)
        return [*made, Sets(cell.held, test.numpy(), samples.numpy())]

    def figures(self, table: Table) -> dict[str, Any]:
        """The likelihood while the flow learns, three sets, and three samples of the flow."""
        figure = new_figure(11, 4)
        figure.suptitle(f"A flow of invertible L2 attention on sets of {table.config.n} points")
        left, *others = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        steps, values = [row.step for row in table], [row.value for row in table]
        label = "flow of invertible attention"
        left.plot(steps, values, "o-", markersize=3, color=BLUE, label=label)
        for rival, form, color in zip(table["rivals"], ("--", ":"), (RED, "black"), strict=False):
            left.axhline(rival.value, linestyle=form, color=color, label=rival.name)
        left.set(xlabel="training step", ylabel="log-likelihood per point (nats)")
        left.set_title("held-out sets")
        left.legend()
        titles = ("three sets of the data", "three sets drawn from the flow")
        for ax, title in zip(others, titles, strict=True):
            limits = (-3.2, 3.2)
            ax.set(xlim=limits, ylim=limits, aspect="equal", title=title, xlabel="all sets in grey")
        for sets in table["sets"]:
            for ax, points in zip(others, (sets.held, sets.samples), strict=True):
                ax.scatter(*points.reshape(-1, 2).T, s=2, color="#d0d3d8")
                looks = zip((BLUE, RED, GREEN), "o^s", strict=True)
                for one, (color, marker) in zip(points, looks, strict=False):
                    ax.scatter(*one.T, s=22, color=color, marker=marker)
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for rival in table["rivals"]:
            low, high = (rival.ahead + sign * 1.96 * rival.error for sign in (-1, 1))
            above = rival.name == "best Gaussian"
            right, wrong = (low > 0, high < 0) if above else (high < 0, low > 0)
            made.append(
                Verdict(
                    f"the flow is {'above' if above else 'below'} {rival.name}",
                    "none: an experiment of this library" if above else "no density is above it",
                    f"by {rival.ahead:+.2f} ({low:+.2f}, {high:+.2f}) nats per point",
                    True if right else False if wrong else None,
                    "paired over held-out sets; the 95 % interval must not hold 0",
                )
            )
        return made


@torch.no_grad()
def _per_point(network: Flow, x: Float[Tensor, "count n 2"]) -> Float[Tensor, " count"]:
    return network.log_density(x) / x.shape[-2]
