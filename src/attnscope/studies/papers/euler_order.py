r"""Residual attention is Euler: a stack of L layers $x + \frac{T}{L}\Gamma_\mu(x)$ approaches the
flow at time T like 1/L.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attention import Heads, variants
from attnscope.flows import flow, residual
from attnscope.measures import Particles
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, drawn, slope
from attnscope.studies.papers._texts import within
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

CLOSE = 0.1


class Step(NamedTuple):
    """The largest distance of a token to the flow after so many layers."""

    variant: str
    depth: int
    draw: int
    error: float


@dataclass(frozen=True)
class EulerConfig:
    depths: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    names: tuple[str, ...] = ("softmax", "l2", "sinkhorn", "sigmoid", "linear", "exponential")
    draws: int = 5
    n: int = 16
    dim: int = 2
    time: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EulerCell(Cell):
    variant: str
    draw: int
    depths: tuple[int, ...]
    n: int
    dim: int
    time: float
    seed: int


class EulerOrder(PaperFigure):
    """Residual attention is a step of Euler: its order is measured."""

    name = "euler_order"
    paper = "ablin24"
    figure = "residual attention is Euler"
    topic = "talk"
    seconds = (2, 15)
    Config = EulerConfig
    fast = EulerConfig(depths=(8, 16, 32, 64), names=("softmax", "l2", "sigmoid"), draws=2)
    tables: ClassVar[dict[str, type]] = {"results": Step}

    def cells(self, config: EulerConfig, workbench: Workbench) -> Iterable[EulerCell]:
        for name in ("draws", "n", "dim", "time"):
            check_positive(name, getattr(config, name))
        known = variants()
        for variant in config.names:
            if variant not in known:
                raise ValueError(f"variants are {', '.join(known)}, got {variant!r}.")
            for draw in range(config.draws):
                yield EulerCell(
                    variant=variant,
                    draw=draw,
                    depths=config.depths,
                    n=config.n,
                    dim=config.dim,
                    time=config.time,
                    seed=config.seed,
                )

    def run(self, cell: EulerCell, workbench: Workbench) -> list[Step]:
        generator = drawn(cell.seed, cell.draw)
        heads = Heads.from_matrices(*(0.5 * normal(generator, 2, cell.dim, cell.dim)))
        attention = variants()[cell.variant](heads)
        start = Particles(0.7 * normal(generator, cell.n, cell.dim))
        times = [0.0, cell.time]
        exact = flow(attention, start, times, rtol=1e-10, atol=1e-12, settle=None).final.x
        made = []
        for place, depth in enumerate(cell.depths):
            workbench.check(place / len(cell.depths), f"{cell.variant}, {depth} layers")
            with torch.no_grad():
                end = residual(attention, start, cell.time / depth, depth).final.x
            error = float(torch.linalg.vector_norm(end - exact, dim=-1).max())
            made.append(Step(cell.variant, depth, cell.draw, error))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(5.6, 4.2)
        ax = figure.add_subplot()
        depths = np.array(sorted({row.depth for row in table}))
        for colour, name in zip(COLOURS, dict.fromkeys(row.variant for row in table), strict=False):
            rows = [row for row in table if row.variant == name]
            means = [np.mean([row.error for row in rows if row.depth == depth]) for depth in depths]
            ax.plot(depths, means, "o-", color=colour, markersize=4, label=name)
        top = max(row.error for row in table if row.depth == depths[0])
        ax.plot(depths, top * depths[0] / depths, ":", color="black", label="$1/L$")
        ax.set(xscale="log", yscale="log", xlabel="layers $L$", ylabel="distance to the flow")
        ax.set_title("Residual attention against the flow")
        ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.variant for row in table):
            rows = [row for row in table if row.variant == name]
            for draw in dict.fromkeys(row.draw for row in rows):
                some = [row for row in rows if row.draw == draw]
                order = slope([row.depth for row in some], [row.error for row in some])
                made.append(
                    Verdict(
                        f"{name}, draw {draw}: the error falls like 1/L",
                        "order 1",
                        f"exponent of L {order}",
                        within(order.low, order.high, -1.0, CLOSE),
                        f"the 95 % interval of the exponent reaches -1 up to {CLOSE:g}",
                    )
                )
        return made
