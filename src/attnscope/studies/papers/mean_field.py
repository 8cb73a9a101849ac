r"""Mean-field convergence: the distance between the flow of n particles and a flow of many, against
n, for every variant [castin25].

Tokens are independent draws from one law; masked attentions are compared in the conditional
distance, with several tokens at each of a few positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attention import Attention, Heads, variants
from attnscope.flows import flow
from attnscope.measures import Particles
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, drawn, slope
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.transport import conditional_wasserstein, wasserstein

PLACES = 4
SEVERAL = "multi-head"
"""Softmax with two heads."""


class Distance(NamedTuple):
    """To the reference flow, at the start and at the end."""

    variant: str
    causal: bool
    n: int
    repeat: int
    start: float
    end: float


@dataclass(frozen=True)
class MeanFieldConfig:
    """In dimension 2, from the uniform law on a square; sizes count all particles and are multiples
    of the number of places, 4. No names: every variant.
    """

    sizes: tuple[int, ...] = (16, 32, 64, 128)
    reference: int = 1024
    repeats: int = 4
    time: float = 0.5
    names: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MeanFieldCell(Cell):
    variant: str
    causal: bool
    n: int
    repeats: int
    reference: int
    time: float
    seed: int


class MeanField(PaperFigure):
    """Flows of n particles approach the mean-field flow as n grows, for every variant."""

    name = "mean_field"
    paper = "castin25"
    figure = "mean-field limit"
    topic = "dynamics"
    seconds = (3, 100)
    Config = MeanFieldConfig
    fast = MeanFieldConfig(
        sizes=(8, 32, 128), reference=512, repeats=3, names=("softmax", "l2", SEVERAL)
    )
    tables: ClassVar[dict[str, type]] = {"results": Distance}

    def cells(self, config: MeanFieldConfig, workbench: Workbench) -> Iterable[MeanFieldCell]:
        known = variants()
        names = config.names or (*known, SEVERAL)
        if missing := set(names) - {*known, SEVERAL}:
            raise ValueError(
                f"names are {', '.join((*known, SEVERAL))}, got {', '.join(sorted(missing))}."
            )
        if any(n < 1 or n % PLACES for n in (*config.sizes, config.reference)):
            raise ValueError(f"sizes must be multiples of {PLACES}, got {config.sizes}.")
        told = asdict(config)
        common = {name: told[name] for name in ("repeats", "reference", "time", "seed")}
        for name in names:
            for causal in (False, True) if _has_causal(name) else (False,):
                for n in config.sizes:
                    yield MeanFieldCell(variant=name, causal=causal, n=n, **common)

    def run(self, cell: MeanFieldCell, workbench: Workbench) -> list[Distance]:
        attention = _attention(cell.variant, cell.seed, cell.causal)
        what = f"{cell.variant}{', causal' if cell.causal else ''}, n = {cell.n}"
        named = (cell.seed, cell.variant, cell.causal)

        def moved(n: int, *names: object) -> tuple[Particles, Particles]:
            start = _draw(n, cell.causal, drawn(*named, n, *names))
            got = flow(attention, start, [0.0, cell.time], rtol=1e-5, atol=1e-7, settle=None)
            return got.states[0], got.final

        workbench.check(0.0, what)
        target = workbench.once(
            ("mean field", *named, cell.reference, cell.time),
            lambda: moved(cell.reference, "reference"),
        )
        distance = conditional_wasserstein if cell.causal else wasserstein
        made = []
        for repeat in range(cell.repeats):
            if not workbench.going((repeat + 1) / (cell.repeats + 1), what):
                break
            pair = moved(cell.n, repeat)
            start, end = (float(distance(pair[place], target[place])) for place in (0, 1))
            made.append(Distance(cell.variant, cell.causal, cell.n, repeat, start, end))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        from matplotlib.ticker import NullLocator

        figure = new_figure(9, 4)
        figure.suptitle("Particles against their mean-field limit")
        axes = figure.subplots(1, 2, sharey=True)
        names = list(dict.fromkeys(row.variant for row in table))
        sizes = sorted({row.n for row in table})
        for causal, ax in enumerate(axes):
            for place, name in enumerate(names):
                rows = [row for row in table if (row.variant, row.causal) == (name, bool(causal))]
                ns = sorted({row.n for row in rows})
                means = [np.mean([row.end for row in rows if row.n == n]) for n in ns]
                marker = "os^Dvp"[place % 6]
                ax.plot(ns, means, f"{marker}-", color=COLOURS[place], markersize=4, label=name)
            level = np.mean([row.end for row in table if row.n == sizes[0]])
            guide = level * (np.array(sizes) / sizes[0]) ** -0.5
            ax.plot(sizes, guide, ":", color="black", label="$n^{-1/2}$")
            ax.set(xscale="log", yscale="log", xlabel="particles $n$")
            ax.set_title("causal, conditional $d_2$" if causal else "unmasked, $W_2$")
            ax.set_xticks(sizes, [str(n) for n in sizes])
            ax.xaxis.set_minor_locator(NullLocator())
        axes[0].set_ylabel("distance to the reference flow")
        axes[0].legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, causal in dict.fromkeys((row.variant, row.causal) for row in table):
            rows = [row for row in table if (row.variant, row.causal) == (name, causal)]
            rate = slope([row.n for row in rows], [row.end for row in rows])
            made.append(
                Verdict(
                    f"{name}{', causal' if causal else ''}: the error falls with n",
                    "particles converge",
                    f"exponent of n {rate}",
                    rate.sign(),
                    "the whole 95 % interval of the exponent lies below 0",
                )
            )
        return made


def _has_causal(name: str) -> bool:
    try:
        _attention(name, 0, True)
    except ValueError:
        return False
    return True


def _attention(name: str, seed: int, causal: bool) -> Attention:
    if name != SEVERAL:
        return variants()[name](_heads(seed), causal=causal)
    query, key, value, output = 0.6 * normal(drawn(seed, SEVERAL), 4, 2, 2, 2)
    return variants()["softmax"](Heads(query, key, value, output), causal=causal)


def _heads(seed: int) -> Heads:
    return Heads.from_matrices(*(0.6 * normal(drawn(seed, "heads"), 2, 2, 2)))


def _draw(n: int, causal: bool, generator: torch.Generator) -> Particles:
    x = 2 * torch.rand(n, 2, dtype=torch.float64, generator=generator) - 1
    if not causal:
        return Particles(x)
    positions = (torch.arange(n) % PLACES + 1).to(x) / PLACES
    return Particles(x + positions[:, None], torch.full((n,), 1 / n, dtype=x.dtype), positions)
