r"""The large-radius limit: tokens X scaled by R. For almost every X the local constant tends to
$\|V\|$ times the root of the number of tokens that read the most popular one, at most
$\|V\|\sqrt n$ [castin24].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import large_radius_limit
from attnscope.measures import Particles
from attnscope.norms import spectral
from attnscope.operators import jacobian, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, between, drawn, every, falls
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

SMALLEST = 0.1
CLOSE = 1e-3
TOLERANCE = 1e-6


class Scaled(NamedTuple):
    """The local constant at R X, its limit, and the bound on every limit."""

    draw: int
    causal: bool
    radius: float
    sigma: float
    limit: float
    most: float


@dataclass(frozen=True)
class LargeConfig:
    n: int = 16
    dim: int = 4
    draws: int = 20
    largest: float = 300.0
    steps: int = 16
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class LargeCell(Cell):
    draw: int
    causal: bool
    n: int
    dim: int
    largest: float
    steps: int
    seed: int


class LargeRadius(PaperFigure):
    """Scaled-up tokens: the local constant tends to a limit of at most the root of n."""

    name = "large_radius"
    paper = "castin24"
    figure = "large radius"
    topic = "smoothness"
    seconds = (2, 20)
    Config = LargeConfig
    fast = LargeConfig(n=12, draws=6, steps=10)
    tables: ClassVar[dict[str, type]] = {"results": Scaled}

    def cells(self, config: LargeConfig, workbench: Workbench) -> Iterable[LargeCell]:
        for name in ("n", "dim", "draws", "largest", "steps"):
            check_positive(name, getattr(config, name))
        for causal in (False, True):
            for draw in range(config.draws):
                yield LargeCell(
                    draw=draw,
                    causal=causal,
                    n=config.n,
                    dim=config.dim,
                    largest=config.largest,
                    steps=config.steps,
                    seed=config.seed,
                )

    def run(self, cell: LargeCell, workbench: Workbench) -> list[Scaled]:
        generator = drawn(cell.seed, cell.draw)
        a, v = normal(generator, 2, cell.dim, cell.dim) / cell.dim**0.5
        x = normal(generator, cell.n, cell.dim)
        attention = Softmax(Heads.from_matrices(a, v), causal=cell.causal)
        limit = large_radius_limit(attention, Particles(x)).value
        most = float(spectral(v)) * cell.n**0.5
        made = []
        for radius in np.geomspace(SMALLEST, cell.largest, cell.steps).tolist():
            mu = Particles(radius * x)
            sigma = float(spectral_norm(jacobian(attention, mu), tol=TOLERANCE).lower)
            made.append(Scaled(cell.draw, cell.causal, radius, sigma, limit, most))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(8.4, 3.8)
        figure.suptitle(f"Tokens scaled by $R$, n = {table.config.n}")
        for place, causal in enumerate((False, True), start=1):
            ax = figure.add_subplot(1, 2, place)
            for draw, rows in _draws(table, causal).items():
                ratios = [row.sigma / row.limit for row in rows]
                radii = [row.radius for row in rows]
                ax.plot(radii, ratios, color=COLOURS[draw % len(COLOURS)], linewidth=1)
            ax.axhline(1, color="black", linestyle=":")
            ax.set(
                xscale="log", yscale="log", xlabel="$R$", title="causal" if causal else "unmasked"
            )
            ax.set_ylabel("local constant / its limit")
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for causal in dict.fromkeys(row.causal for row in table):
            name = "causal" if causal else "unmasked"
            draws = [rows for rows in _draws(table, causal).values() if len(rows) > 2]
            ends = [abs(rows[-1].sigma / rows[-1].limit - 1) for rows in draws]
            before = [
                max(abs(row.sigma / row.limit - 1) for row in rows[len(rows) // 2 : -1])
                for rows in draws
            ]
            if not ends:
                continue
            made.append(
                Verdict(
                    f"{name}: the local constant tends to the limit",
                    "exact when every best key is unique",
                    f"relative distances {between(ends)} at R = {draws[0][-1].radius:.3g},"
                    f" {len(ends)} draws",
                    every(falls(end, was, CLOSE) for end, was in zip(ends, before, strict=True)),
                    f"below {CLOSE:g} counts as there; above, it must still be coming nearer",
                )
            )
            shares = [rows[-1].sigma / rows[-1].most for rows in draws]
            made.append(
                Verdict(
                    f"{name}: the limit is at most |V| sqrt(n)",
                    "for almost every X",
                    f"largest constant over it {between(shares, '.2f')}",
                    max(shares) <= 1 + CLOSE,
                    "at the largest radius of every draw",
                )
            )
        return made


def _draws(table: Table, causal: bool) -> dict[int, list[Scaled]]:
    found: dict[int, list[Scaled]] = {}
    for row in table:
        if row.causal is causal:
            found.setdefault(row.draw, []).append(row)
    return {draw: sorted(rows, key=lambda row: row.radius) for draw, rows in found.items()}
