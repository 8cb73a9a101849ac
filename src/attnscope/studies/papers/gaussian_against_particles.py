"""The Gaussian flow against flows of particles: samples approach it like one over the root of n,
quadrature clouds agree to rounding [castin25].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attention import Attention, Heads, variants
from attnscope.flows import flow
from attnscope.measures import Gaussian, Particles
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, drawn, slope
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

QUADRATURE = "quadrature"
ROUNDING = 1e-5


class Agreement(NamedTuple):
    """Largest error of mean and covariance at the end, of one cloud of n points."""

    variant: str
    cloud: str
    n: int
    repeat: int
    error: float


@dataclass(frozen=True)
class AgreementConfig:
    sizes: tuple[int, ...] = (50, 200, 800)
    repeats: int = 6
    order: int = 14
    time: float = 1.0
    names: tuple[str, ...] = ("softmax", "l2", "sinkhorn", "linear")
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AgreementCell(Cell):
    """`n` samples, `repeats` times; a quadrature cloud of order n where there are no repeats."""

    variant: str
    n: int
    repeats: int
    time: float
    seed: int


class GaussianAgainstParticles(PaperFigure):
    """Gaussians stay Gaussian: clouds of particles approach the Gaussian flow."""

    name = "gaussian_against_particles"
    paper = "castin25"
    figure = "Gaussians stay Gaussian"
    topic = "dynamics"
    seconds = (10, 60)
    Config = AgreementConfig
    fast = AgreementConfig(sizes=(20, 100, 500), repeats=4, names=("softmax", "l2"))
    tables: ClassVar[dict[str, type]] = {"results": Agreement}

    def cells(self, config: AgreementConfig, workbench: Workbench) -> Iterable[AgreementCell]:
        check_positive("time", config.time)
        check_positive("order", config.order)
        check_positive("repeats", config.repeats)
        for name in config.names:
            if name not in variants():
                raise ValueError(f"variants are {', '.join(variants())}, got {name!r}.")
            variants()[name](_heads(config.seed)).affine(_start())
            common: dict[str, Any] = {"variant": name, "time": config.time, "seed": config.seed}
            for n in config.sizes:
                yield AgreementCell(n=n, repeats=config.repeats, **common)
            yield AgreementCell(n=config.order, repeats=0, **common)

    def run(self, cell: AgreementCell, workbench: Workbench) -> list[Agreement]:
        attention, times = variants()[cell.variant](_heads(cell.seed)), [0.0, cell.time]
        exact = flow(attention, _start(), times, settle=None).final
        if not cell.repeats:
            cloud = _start().quadrature(cell.n)
            error = _apart(attention, cloud, exact, times, 1e-8)
            return [Agreement(cell.variant, QUADRATURE, cloud.n, 0, error)]
        made = []
        for repeat in range(cell.repeats):
            what = f"{cell.variant}, n = {cell.n}"
            if not workbench.going(repeat / cell.repeats, what):
                break
            generator = drawn(cell.seed, cell.variant, cell.n, repeat)
            cloud = _start().sample(cell.n, generator)
            error = _apart(attention, cloud, exact, times, 1e-5)
            made.append(Agreement(cell.variant, "samples", cell.n, repeat, error))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        from matplotlib.ticker import NullLocator

        figure = new_figure(5.5, 4.2)
        ax = figure.add_subplot()
        guide: tuple[Any, Any] | None = None
        for place, name in enumerate(dict.fromkeys(row.variant for row in table)):
            rows = [row for row in table if row.variant == name and row.cloud != QUADRATURE]
            sizes = np.array(sorted({row.n for row in rows}))
            errors = [_root_mean_square([r.error for r in rows if r.n == n]) for n in sizes]
            marker, label = "os^Dvp"[place % 6], f"{name}, samples"
            ax.plot(sizes, errors, f"{marker}-", color=COLOURS[place], markersize=4, label=label)
            for row in table:
                if row.variant == name and row.cloud == QUADRATURE:
                    ax.axhline(row.error, color=COLOURS[place], linestyle=":", linewidth=1.2)
            if guide is None and len(sizes):
                guide = sizes, errors[0] * (sizes / sizes[0]) ** -0.5
        if guide is not None:
            ax.plot(*guide, "--", color="black", linewidth=0.8, label="$n^{-1/2}$")
        ax.set(xscale="log", yscale="log", xlabel="particles $n$")
        ax.set(ylabel="error of mean and covariance", title="Particles against the Gaussian flow")
        ticks = sorted({row.n for row in table if row.cloud != QUADRATURE})
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.legend(title="dotted: quadrature clouds", title_fontsize=8, loc="center left")
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.variant for row in table):
            rows = [row for row in table if row.variant == name]
            samples = [row for row in rows if row.cloud != QUADRATURE]
            if len({row.n for row in samples}) > 1:
                rate = slope([row.n for row in samples], [row.error for row in samples])
                made.append(
                    Verdict(
                        f"{name}: samples approach the Gaussian flow",
                        "like the root of 1/n",
                        f"exponent of n {rate}",
                        rate.sign(),
                        "the whole 95 % interval of the exponent lies below 0",
                    )
                )
            exact = [row.error for row in rows if row.cloud == QUADRATURE]
            if exact:
                made.append(
                    Verdict(
                        f"{name}: a Gaussian stays Gaussian",
                        "a theorem",
                        f"error of a quadrature cloud {max(exact):.1e}",
                        max(exact) < ROUNDING,
                        f"below {ROUNDING:g} is the error of the quadrature",
                    )
                )
        return made


def _heads(seed: int) -> Heads:
    return Heads.from_matrices(*(0.3 * normal(drawn(seed, "heads"), 2, 2, 2)))


def _start() -> Gaussian:
    return Gaussian(
        torch.tensor([0.2, -0.1], dtype=torch.float64),
        torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=torch.float64),
    )


def _apart(
    attention: Attention, cloud: Particles, exact: Gaussian, times: list[float], rtol: float
) -> float:
    got = flow(attention, cloud, times, rtol=rtol, atol=rtol / 100, settle=None)
    return max(
        float((got.mean[-1] - exact.mean).abs().max()), float((got.cov[-1] - exact.cov).abs().max())
    )


def _root_mean_square(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
