r"""Duplicating the tokens of a real text against moving them, layer by layer: does an attacker gain
by splitting? [castin24, first version].

For attention without a mask the constant of the text with every token written twice is the larger
of the two, which is checked; under a mask the law is about halves that share a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from attnscope.attacks import split
from attnscope.data.texts import windows
from attnscope.measures import Particles
from attnscope.operators import jacobian, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, RED, new_figure, safe
from attnscope.studies.papers._figure import PaperFigure, between, share
from attnscope.studies.papers._texts import causal_bert, ids_of, left_out, present
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench, hash_ids

EXACT = 1e-4


class Duplicated(NamedTuple):
    """A layer at one text: the constants of moving tokens and of moving halves; that of the text
    written twice, NaN under a mask.
    """

    model: str
    layer: int
    sequence: int
    move: float
    split: float
    twice: float


@dataclass(frozen=True)
class DuplicatedConfig:
    models: tuple[str, ...] = ("bert-base-uncased", "gpt2", "gpt2-random")
    decoder: str | None = None
    n: int = 50
    samples: int = 5
    text: str = "alice"


@dataclass(frozen=True, kw_only=True)
class DuplicatedCell(Cell):
    model: str
    weights: str
    text: str
    tokens: str
    n: int
    samples: int


class DuplicatedText(PaperFigure):
    """Duplicating the tokens of a real text against moving them."""

    name = "duplicated_text"
    paper = "castin24"
    figure = "duplicated tokens of a real text"
    topic = "measures"
    seconds = (6, 1200)
    Config = DuplicatedConfig
    fast = DuplicatedConfig(models=("minilm",), n=12, samples=1)
    tables: ClassVar[dict[str, type]] = {"results": Duplicated}

    def cells(self, config: DuplicatedConfig, workbench: Workbench) -> Iterable[DuplicatedCell]:
        for model in present(config.models, config.decoder, workbench):
            ids = ids_of(model, config.text, workbench)
            windows(ids, config.n, config.samples)
            yield DuplicatedCell(
                model=model.name,
                weights=workbench.weights(model.name),
                text=config.text,
                tokens=hash_ids(ids),
                n=config.n,
                samples=config.samples,
            )

    def run(self, cell: DuplicatedCell, workbench: Workbench) -> list[Duplicated]:
        causal_bert(cell.model, workbench)
        model = workbench.model(cell.model, weights=cell.weights)
        ids = windows(ids_of(model, cell.text, workbench), cell.n, cell.samples)
        made = []
        for layer, _, read in model.points(ids, range(model.layers), "attention"):
            attention = model.attention(layer).to(torch.float64)
            for sequence, tokens in enumerate(read.to(torch.float64)):
                workbench.check(layer / model.layers, f"{cell.model}, layer {layer}")
                law, twice = split(attention, Particles(tokens)), float("nan")
                if not attention.causal:
                    again = Particles(tokens.repeat_interleave(2, dim=0))
                    twice = float(spectral_norm(jacobian(attention, again), tol=1e-6).lower)
                made.append(Duplicated(cell.model, layer, sequence, law.move, law.split, twice))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        models = list(dict.fromkeys(row.model for row in table))
        figure = new_figure(4.2 * len(models) + 0.6, 3.8)
        figure.suptitle(f"Moving tokens against moving halves of them, n = {table.config.n}")
        for place, name in enumerate(models, start=1):
            ax = figure.add_subplot(1, len(models), place)
            rows = [row for row in table if row.model == name]
            layers = [row.layer for row in rows]
            ax.scatter(layers, [row.move for row in rows], s=16, color=BLUE, label="move tokens")
            halves = [row.split for row in rows]
            ax.scatter(layers, halves, s=16, marker="^", color=RED, label="split a token")
            ax.set(yscale="log", xlabel="layer", ylabel="local constant", title=safe(name))
            ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name in dict.fromkeys(row.model for row in table):
            rows = [row for row in table if row.model == name]
            pays = sum(row.split > row.move for row in rows)
            ratios = [row.split / row.move for row in rows]
            made.append(
                Verdict(
                    f"{name}: on real text splitting a token beats moving all of them",
                    "for some inputs it does",
                    f"{share(pays, len(rows))} layers and sequences; split over move"
                    f" {between(ratios, '.3f')}",
                    pays > 0,
                    "some layer and sequence of this text",
                )
            )
            apart = [
                abs(row.twice / max(row.move, row.split) - 1)
                for row in rows
                if row.twice == row.twice
            ]
            if apart:
                made.append(
                    Verdict(
                        f"{name}: written twice, the text has the constant of the law",
                        "max(move, split)",
                        f"relative distances {between(apart)}",
                        max(apart) <= EXACT,
                        f"below {EXACT:g} counts as none",
                    )
                )
        return made

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)
