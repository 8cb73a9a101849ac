r"""The worst measures are few and very unbalanced Diracs: positions and masses searched together in
the metric of $L^2(\mu)$ [castin24].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attacks import worst_case
from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import constructions, on_ball
from attnscope.measures import Particles
from attnscope.operators import jacobian, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, COLOURS, RED, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, between, drawn, share
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

ENOUGH = 0.99
"""Share of the constant that the Diracs that count must keep."""
NEAR = 0.05
"""Atoms closer than this share of the radius are one."""
FEW = 3


class Worst(NamedTuple):
    """The worst measure found in a ball: its constant, the lower bound M2 and the tightest upper
    bound, how many Diracs count, and the mass of the rarest and the heaviest of them.
    """

    draw: int
    radius: float
    value: float
    lower: float
    upper: float
    diracs: int
    rarest: float
    heaviest: float
    atoms: np.ndarray
    masses: np.ndarray


@dataclass(frozen=True)
class DiracsConfig:
    """So many draws of a normal A in the plane, V = I; measures of so many atoms."""

    draws: int = 10
    radii: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    atoms: int = 8
    starts: int = 24
    steps: int = 200
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DiracsCell(Cell):
    draw: int
    radius: float
    atoms: int
    starts: int
    steps: int
    seed: int


class FewDiracs(PaperFigure):
    """The worst measures are few and very unbalanced Diracs."""

    name = "few_diracs"
    paper = "castin24"
    figure = "worst measures"
    topic = "measures"
    seconds = (10, 300)
    Config = DiracsConfig
    fast = DiracsConfig(draws=4, radii=(0.5, 1.0, 1.5), atoms=5, starts=8, steps=60)
    tables: ClassVar[dict[str, type]] = {"results": Worst}

    def cells(self, config: DiracsConfig, workbench: Workbench) -> Iterable[DiracsCell]:
        check_positive("draws", config.draws)
        for draw in range(config.draws):
            for radius in config.radii:
                yield DiracsCell(
                    draw=draw,
                    radius=radius,
                    atoms=config.atoms,
                    starts=config.starts,
                    steps=config.steps,
                    seed=config.seed,
                )

    def run(self, cell: DiracsCell, workbench: Workbench) -> list[Worst]:
        attention = _attention(cell.seed, cell.draw)

        def going(part: float, best: float) -> bool:
            workbench.check(part, f"draw {cell.draw}, R = {cell.radius:g}, best {best:.4g}")
            return True

        found = worst_case(
            attention,
            cell.atoms,
            cell.radius,
            weighted=True,
            starts=cell.starts,
            steps=cell.steps,
            seed=cell.seed,
            progress=going,
        )
        kept = essential(attention, merged(found.mu, NEAR * cell.radius), found.value)
        masses = kept.weights.numpy()
        return [
            Worst(
                cell.draw,
                cell.radius,
                found.value,
                constructions.unbalanced(attention, cell.radius).bound.value,
                on_ball(attention, cell.atoms, cell.radius, weighted=True).tightest.value,
                kept.n,
                float(masses.min()),
                float(masses.max()),
                kept.x.numpy(),
                masses,
            )
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(9, 4)
        left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
        radii = sorted({row.radius for row in table})
        for row in table:
            left.scatter(row.radius, row.heaviest / row.rarest, color=BLUE, s=14)
        left.set(yscale="log", xlabel="radius $R$", ylabel="heaviest / rarest mass")
        left.set_title("the Diracs that count")
        last = [row for row in table if row.radius == radii[-1]]
        for place, row in enumerate(last):
            colour = COLOURS[place % len(COLOURS)]
            sizes = 20 + 200 * row.masses
            right.scatter(*row.atoms.T, s=sizes, color=colour, alpha=0.8)
        turn = np.linspace(0, 2 * np.pi, 100)
        right.plot(radii[-1] * np.cos(turn), radii[-1] * np.sin(turn), color=RED, linewidth=0.8)
        right.set(aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
        right.set_title(f"worst measures, $R = {radii[-1]:g}$, one colour per draw")
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        if not len(table):
            return []
        few = sum(row.diracs <= FEW for row in table)
        ratios = {
            radius: [row.heaviest / row.rarest for row in table if row.radius == radius]
            for radius in sorted({row.radius for row in table})
        }
        medians = [float(np.median(values)) for values in ratios.values()]
        below = max(row.value / row.upper for row in table)
        above = min(row.value / row.lower for row in table)
        return [
            Verdict(
                f"at most {FEW} Diracs carry the worst measure",
                "few Diracs",
                f"{share(few, len(table))} searches; {between([r.diracs for r in table], 'g')}"
                " Diracs",
                few == len(table),
                f"the fewest that keep {ENOUGH:.0%} of the constant",
            ),
            Verdict(
                "their masses are the more unbalanced the larger the radius",
                "the rare one has mass near e^(-2 gamma R^2)",
                ", ".join(
                    f"{median:.3g} at R = {radius:g}"
                    for radius, median in zip(ratios, medians, strict=True)
                ),
                medians == sorted(medians) if len(medians) > 1 else None,
                "medians over the draws of the heaviest mass over the rarest",
            ),
            Verdict(
                "the constant lies between M2 and the upper bounds",
                "theorems",
                f"at least {above:.3f} of M2, at most {below:.3f} of the tightest upper bound",
                above >= 1 - 1e-6 and below <= 1,
                "the search also begins at M2",
            ),
        ]


def _attention(seed: int, draw: int) -> Softmax:
    """A with a real eigenvalue, which M2 needs."""
    generator = drawn(seed, "diracs", draw)
    while True:
        a = normal(generator, 2, 2)
        if torch.linalg.eigvals(a).imag.abs().max() == 0:
            return Softmax(Heads.from_matrices(a, torch.eye(2, dtype=torch.float64)))


def merged(mu: Particles, gap: float) -> Particles:
    """Atoms within the gap of a heavier one join it."""
    order = mu.weights.argsort(descending=True)
    places: list[torch.Tensor] = []
    masses: list[torch.Tensor] = []
    for x, w in zip(mu.x[order], mu.weights[order], strict=True):
        near = [i for i, other in enumerate(places) if float((x - other).norm()) <= gap]
        if near:
            masses[near[0]] = masses[near[0]] + w
        else:
            places.append(x)
            masses.append(w)
    weights = torch.stack(masses)
    return Particles(torch.stack(places), weights / weights.sum())


def essential(attention: Softmax, mu: Particles, value: float) -> Particles:
    """The fewest atoms, dropped one by one, that keep ENOUGH of the constant."""
    while mu.n > 2:
        tries = []
        for drop in range(mu.n):
            keep = [i for i in range(mu.n) if i != drop]
            weights = mu.weights[keep]
            left = Particles(mu.x[keep], weights / weights.sum())
            found = spectral_norm(jacobian(attention, left), tol=1e-6)
            tries.append((float(found.lower), left))
        best, left = max(tries, key=lambda pair: pair[0])
        if best < ENOUGH * value:
            return mu
        mu = left
    return mu
