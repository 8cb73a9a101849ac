r"""Tokens on the sphere gather in clusters as depth grows, fewer and fewer; the sharper the kernel,
the longer they last [geshkovski25].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.flows import Sphere, clusters, energy, flow
from attnscope.measures import Particles
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import MAP, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, drawn
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

ROUNDING = 1e-7
"""Of the solver, relative to the largest energy there is."""


class Moment(NamedTuple):
    """Clusters and energy at one time, as a share of the largest energy, that of one cluster."""

    beta: float
    time: float
    clusters: int
    energy: float


@dataclass(frozen=True)
class SphereConfig:
    """A cluster is a chain of hops of at most `gap`."""

    n: int = 64
    dim: int = 3
    betas: tuple[float, ...] = (1.0, 4.0, 9.0)
    end: float = 50.0
    gap: float = 0.1
    frames: int = 60
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SphereCell(Cell):
    n: int
    dim: int
    beta: float
    end: float
    gap: float
    frames: int
    seed: int


class SphereClustering(PaperFigure):
    """Tokens on the sphere gather in clusters that become fewer with depth."""

    name = "sphere_clustering"
    paper = "geshkovski25"
    figure = "clusters on the sphere"
    topic = "dynamics"
    seconds = (5, 30)
    Config = SphereConfig
    fast = SphereConfig(n=24, betas=(1.0, 9.0), end=30.0, frames=30)
    tables: ClassVar[dict[str, type]] = {"results": Moment}

    def cells(self, config: SphereConfig, workbench: Workbench) -> Iterable[SphereCell]:
        for name in ("n", "dim", "gap", "frames"):
            check_positive(name, getattr(config, name))
        if not config.end > 0.05:
            raise ValueError(f"end must be above 0.05, got {config.end}.")
        for beta in config.betas:
            check_positive("beta", beta)
            yield SphereCell(
                beta=beta,
                **{
                    name: getattr(config, name)
                    for name in ("n", "dim", "end", "gap", "frames", "seed")
                },
            )

    def run(self, cell: SphereCell, workbench: Workbench) -> list[Moment]:
        """Softmax with scores beta <x, y> and V = I from uniform points of the sphere."""
        start = Particles(Sphere()(normal(drawn(cell.seed), cell.n, cell.dim)))
        eye = torch.eye(cell.dim, dtype=torch.float64)
        attention = Softmax(Heads.from_matrices(cell.beta * eye, eye))

        def going(t: float) -> bool:
            workbench.check(t / cell.end, f"beta = {cell.beta:g}, t = {t:.3g}")
            return True

        times = [0.0, *np.geomspace(0.05, cell.end, cell.frames)]
        got = flow(attention, start, times, 1e-6, 1e-8, Sphere(), settle=None, progress=going)
        top = np.exp(cell.beta) / 2
        return [
            Moment(
                cell.beta,
                time,
                clusters(state, cell.gap).number,
                float(energy(attention, state).value / top),
            )
            for time, state in zip(got.times.tolist(), got.states, strict=True)
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        """Clusters and energy against time."""
        from matplotlib import colormaps

        figure = new_figure(9, 4)
        figure.suptitle(f"softmax on the sphere, $V = I$, n = {table.config.n}")
        left, right = figure.subplots(1, 2)
        groups = _groups(table)
        shades = colormaps[MAP](np.linspace(0, 0.85, len(groups)))
        for (beta, rows), shade in zip(groups.items(), shades, strict=True):
            times = [row.time for row in rows[1:]]
            numbers = [row.clusters for row in rows[1:]]
            left.step(times, numbers, where="post", color=shade, label=rf"$\beta = {beta:g}$")
            right.plot(times, [row.energy for row in rows[1:]], color=shade)
        left.set(xscale="log", yscale="log", xlabel="time", title="Number of clusters")
        left.set_ylabel(f"clusters (gap {table.config.gap:g})")
        right.set(xscale="log", xlabel="time", ylabel="energy / its maximum", title="Energy")
        left.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made, groups = [], _groups(table)
        for beta, rows in groups.items():
            fall = max(float(-np.diff([row.energy for row in rows]).min()), 0.0)
            made.append(
                Verdict(
                    f"beta = {beta:g}: the energy never falls",
                    "a theorem: gradient ascent",
                    f"largest fall {fall:.1e} of the maximum over {len(rows)} times",
                    fall <= ROUNDING,
                    f"up to {ROUNDING:g} is the solver's rounding",
                )
            )
        ends = {beta: rows[-1].clusters for beta, rows in sorted(groups.items())}
        if len(ends) > 1:
            numbers = list(ends.values())
            longer = all(a <= b for a, b in pairwise(numbers))
            made.append(
                Verdict(
                    "the sharper the kernel, the longer clusters last",
                    "they do (metastability)",
                    ", ".join(f"{number} left at beta = {beta:g}" for beta, number in ends.items()),
                    None if longer and numbers[0] == numbers[-1] else longer,
                    f"clusters left at t = {table.config.end:g}; equal numbers tell nothing",
                )
            )
        return made


def _groups(table: Table) -> dict[float, list[Moment]]:
    found: dict[float, list[Moment]] = {}
    for row in table:
        found.setdefault(row.beta, []).append(row)
    return {beta: rows for beta, rows in found.items() if len(rows) > 1}
