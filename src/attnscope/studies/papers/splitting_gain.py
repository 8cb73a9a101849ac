r"""The gain of splitting mass: with every token written twice the local constant is
$\max(\|D_Xf\|, \max_i\|D_x\Gamma_\mu(x_i)\|)$, and two copies suffice [castin24, first version].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from attnscope.attacks import split
from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.measures import Particles
from attnscope.operators import jacobian, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, RED, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, between, drawn, share
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

EXACT = 1e-6


class Gain(NamedTuple):
    """One draw: the constants of moving tokens and of moving halves, and that of the text with
    every token written `copies` times.
    """

    strength: float
    draw: int
    move: float
    split: float
    copies: int
    repeated: float


@dataclass(frozen=True)
class GainConfig:
    """Normal tokens, few and in few dimensions, where splitting pays at all; A and V normal of norm
    about 1, A times the strength.
    """

    strengths: tuple[float, ...] = (0.3, 1.0, 3.0)
    draws: int = 200
    n: int = 2
    dim: int = 2
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class GainCell(Cell):
    strength: float
    draws: int
    n: int
    dim: int
    seed: int


class SplittingGain(PaperFigure):
    """The gain of splitting tokens before moving them, and its exact law."""

    name = "splitting_gain"
    paper = "castin24"
    figure = "mass splitting"
    topic = "measures"
    seconds = (4, 30)
    Config = GainConfig
    fast = GainConfig(draws=30)
    tables: ClassVar[dict[str, type]] = {"results": Gain}

    def cells(self, config: GainConfig, workbench: Workbench) -> Iterable[GainCell]:
        for name in ("draws", "n", "dim"):
            check_positive(name, getattr(config, name))
        for strength in config.strengths:
            yield GainCell(
                strength=strength,
                draws=config.draws,
                n=config.n,
                dim=config.dim,
                seed=config.seed,
            )

    def run(self, cell: GainCell, workbench: Workbench) -> list[Gain]:
        made = []
        for draw in range(cell.draws):
            if not workbench.going(draw / cell.draws, f"strength {cell.strength:g}"):
                break
            attention, mu = problem(cell.seed, draw, cell.strength, cell.n, cell.dim)
            law, copies = split(attention, mu), 2 + draw % 2
            again = Particles(mu.x.repeat_interleave(copies, dim=0))
            repeated = spectral_norm(jacobian(attention, again), tol=1e-10)
            made.append(
                Gain(cell.strength, draw, law.move, law.split, copies, float(repeated.lower))
            )
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(5.6, 4.2)
        ax = figure.add_subplot()
        for row in table:
            pays = row.split > row.move
            look = {"color": RED if pays else BLUE, "marker": "^" if pays else "o"}
            ax.scatter(row.strength, row.split / row.move, s=16, **look)
        ax.axhline(1, color="black", linestyle=":")
        ax.set(xscale="log", yscale="log", xlabel="strength of $A$")
        ax.set(ylabel="constant of halves / of tokens", title="Above 1, splitting beats moving")
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        if not len(table):
            return []
        apart = [abs(row.repeated / max(row.move, row.split) - 1) for row in table]
        pays = sum(row.split > row.move for row in table)
        gains = [max(row.split / row.move, 1.0) for row in table]
        return [
            Verdict(
                "with every token written two or three times the constant is max(move, split)",
                "an exact law",
                f"relative distances {between(apart)}, {len(apart)} draws",
                max(apart) <= EXACT,
                f"below {EXACT:g} counts as none",
            ),
            Verdict(
                "splitting can beat moving",
                "it can",
                f"{share(pays, len(table))} draws, gains up to {max(gains):.2f}",
                True if pays else None,
                "one draw shows that it can; none in a few draws tells nothing",
            ),
        ]


def problem(seed: int, draw: int, strength: float, n: int, dim: int) -> tuple[Softmax, Particles]:
    """A random head and random tokens; the same for all strengths."""
    generator = drawn(seed, "splitting", draw)
    a, v = normal(generator, 2, dim, dim) / dim**0.5
    x = normal(generator, n, dim)
    return Softmax(Heads.from_matrices(strength * a, v)), Particles(torch.as_tensor(x))
