r"""The same weights and tokens with and without a causal mask [castin24].

The Jacobian of a prefix is a leading block of that of the whole text, so that under a mask the
local constant never decreases along a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch

from attnscope.data.texts import windows
from attnscope.measures import Particles
from attnscope.operators import jacobian, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, RED, new_figure, safe
from attnscope.studies.measure.fit import Fit, growth
from attnscope.studies.papers._figure import PaperFigure, every
from attnscope.studies.papers._texts import (
    at_most,
    causal_bert,
    depths,
    ids_of,
    left_out,
    plain_ticks,
    present,
)
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench, hash_ids

TOLERANCE = 1e-4
NAMES = {True: "masked", False: "unmasked"}


class Masked(NamedTuple):
    """The local constant at the first n tokens of a text, with or without the mask."""

    model: str
    layer: int
    sequence: int
    n: int
    causal: bool
    sigma: float


@dataclass(frozen=True)
class MaskConfig:
    models: tuple[str, ...] = ("bert-base-uncased", "gpt2", "gpt2-random")
    decoder: str | None = None
    lengths: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 98)
    samples: int = 10
    text: str = "alice"


@dataclass(frozen=True, kw_only=True)
class MaskCell(Cell):
    model: str
    weights: str
    text: str
    tokens: str
    layer: int
    lengths: tuple[int, ...]
    samples: int


class MaskedAgainstUnmasked(PaperFigure):
    """The same weights and tokens with and without a causal mask."""

    name = "masked_against_unmasked"
    paper = "castin24"
    figure = "masked against unmasked attention"
    topic = "smoothness"
    seconds = (6, 300)
    Config = MaskConfig
    fast = MaskConfig(models=("minilm", "gpt2-random"), lengths=(4, 8, 16, 32), samples=2)
    tables: ClassVar[dict[str, type]] = {"results": Masked}

    def cells(self, config: MaskConfig, workbench: Workbench) -> Iterable[MaskCell]:
        for model in present(config.models, config.decoder, workbench):
            ids = ids_of(model, config.text, workbench)
            windows(ids, max(config.lengths), config.samples)
            for layer in depths(model):
                yield MaskCell(
                    model=model.name,
                    weights=workbench.weights(model.name),
                    text=config.text,
                    tokens=hash_ids(ids),
                    layer=layer,
                    lengths=config.lengths,
                    samples=config.samples,
                )

    def run(self, cell: MaskCell, workbench: Workbench) -> list[Masked]:
        causal_bert(cell.model, workbench)
        model = workbench.model(cell.model, weights=cell.weights)
        ids = windows(ids_of(model, cell.text, workbench), max(cell.lengths), cell.samples)
        tokens, attention = model.tokens(ids, cell.layer), model.attention(cell.layer)
        made = []
        for causal in (True, False):
            alone = replace(attention, causal=causal)
            for place, n in enumerate(cell.lengths):
                workbench.check(
                    (place / len(cell.lengths) + (not causal)) / 2,
                    f"{cell.model}, layer {cell.layer}, n = {n}",
                )
                found = spectral_norm(jacobian(alone, Particles(tokens[:, :n])), tol=TOLERANCE)
                made += [
                    Masked(cell.model, cell.layer, sequence, n, causal, sigma)
                    for sequence, sigma in enumerate(torch.as_tensor(found.lower).tolist())
                ]
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        places = _places(table)
        figure = new_figure(3.2 * len(places) + 0.4, 3.2)
        figure.suptitle("The same tokens with and without a causal mask")
        for number, (name, rows) in enumerate(places.items(), start=1):
            ax = figure.add_subplot(1, len(places), number)
            for causal, color, marker in ((True, BLUE, "o"), (False, RED, "^")):
                some = [row for row in rows if row.causal is causal]
                ns, sigmas = [row.n for row in some], [row.sigma for row in some]
                ax.scatter(ns, sigmas, s=12, color=color, marker=marker, label=NAMES[causal])
            ax.set(xscale="log", yscale="log", xlabel="tokens $n$", title=safe(name))
            ax.set_ylabel(r"$\sigma_{max}$" if number == 1 else "")
            plain_ticks(ax)
            ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, rows in _places(table).items():
            falls = _largest_fall([row for row in rows if row.causal])
            made.append(
                Verdict(
                    f"{name}: under a mask sigma never falls along a text",
                    "a theorem: Jacobians are nested",
                    f"largest relative fall {falls:.1e}",
                    falls <= 2 * TOLERANCE,
                    f"up to {2 * TOLERANCE:g} is the accuracy of sigma",
                )
            )
            fits = {causal: _fit(rows, causal) for causal in NAMES}
            made.append(
                Verdict(
                    f"{name}: masked and unmasked sigma grow no faster than the root of n",
                    "both bounds are C sqrt(n)",
                    ", ".join(f"{NAMES[key]} {_told(fit)}" for key, fit in fits.items()),
                    every(
                        None if fit is None else at_most(fit.low, fit.high, 0.5)
                        for fit in fits.values()
                    ),
                    "both 95 % intervals of the exponent are at most 1/2",
                )
            )
        return made

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)


def _places(table: Table) -> dict[str, list[Masked]]:
    found: dict[str, list[Masked]] = {}
    for row in table:
        found.setdefault(f"{row.model}, layer {row.layer}", []).append(row)
    return found


def _fit(rows: list[Masked], causal: bool) -> Fit | None:
    some = [row for row in rows if row.causal is causal]
    return growth([row.n for row in some], [row.sigma for row in some])


def _told(fit: Fit | None) -> str:
    return (
        "too few lengths"
        if fit is None
        else f"n^{fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f})"
    )


def _largest_fall(rows: list[Masked]) -> float:
    """Along the lengths of one sequence, relative."""
    texts: dict[int, list[Masked]] = {}
    for row in rows:
        texts.setdefault(row.sequence, []).append(row)
    falls = [0.0]
    for text in texts.values():
        best = 0.0
        for row in sorted(text, key=lambda one: one.n):
            falls.append(1 - row.sigma / best if best else 0.0)
            best = max(best, row.sigma)
    return max(falls)
