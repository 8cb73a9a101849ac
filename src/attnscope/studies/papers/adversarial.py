r"""Adversarial inputs in real layers: one rare token and a bulk along an eigenvector of one head,
scaled to R, under the full multi-head map; published as $C\sqrt n$ [castin24].

The root of n is a statement on one head; other heads of the layer see these tokens too, so that
the slope of a whole layer need not be 1/2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from attnscope.attacks import adversarial
from attnscope.operators import jacobian, spectral_norm
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import COLOURS, new_figure, safe
from attnscope.studies.measure.fit import Fit, growth
from attnscope.studies.papers._figure import Missing, PaperFigure
from attnscope.studies.papers._texts import CAUSAL, causal_bert, plain_ticks, present, within
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

TOLERANCE = 1e-4
CLOSE = 0.02
"""How far the slope may be from 1/2."""
OFF = 0.25
"""Relative distance of the published factor from the one fitted with slope 1/2."""


class Built(NamedTuple):
    """The local constant of a layer at the input built from one head."""

    model: str
    layer: int
    head: int
    radius: float
    n: int
    sigma: float


Place = tuple[str, int, int, float, float | None]
"""Model, layer, head, radius, and the factor of the published curve where there is one."""


@dataclass(frozen=True)
class AdversarialConfig:
    places: tuple[Place, ...] = (
        ("bert-base-uncased", 0, 0, 15.5, 4.39),
        (f"bert-base-uncased{CAUSAL}", 6, 7, 21.5, 5.73),
        ("gpt2-random", 6, 0, 100.0, 0.92),
        ("gpt2", 0, 0, 10.0, 46.9),
    )
    lengths: tuple[int, ...] = tuple(range(2, 98, 5))


@dataclass(frozen=True, kw_only=True)
class BuiltCell(Cell):
    model: str
    weights: str
    layer: int
    head: int
    radius: float
    lengths: tuple[int, ...]


class Adversarial(PaperFigure):
    """Inputs built to be the worst for one head, in whole layers of real networks."""

    name = "adversarial"
    paper = "castin24"
    figure = "adversarial inputs"
    topic = "smoothness"
    seconds = (9, 120)
    Config = AdversarialConfig
    fast = AdversarialConfig(
        places=(("gpt2-random", 6, 0, 100.0, 0.92), ("minilm", 0, 0, 15.5, None)),
        lengths=(2, 7, 17, 37, 57, 97),
    )
    tables: ClassVar[dict[str, type]] = {"results": Built}

    def cells(self, config: AdversarialConfig, workbench: Workbench) -> Iterable[BuiltCell]:
        here = set()
        for name in dict.fromkeys(place[0] for place in config.places):
            try:
                here |= {model.name for model in present((name,), None, workbench)}
            except Missing:
                continue
        if not here:
            raise Missing("none of the models of these inputs is here.")
        for name, layer, head, radius, _ in config.places:
            if name in here:
                yield BuiltCell(
                    model=name,
                    weights=workbench.weights(name),
                    layer=layer,
                    head=head,
                    radius=radius,
                    lengths=config.lengths,
                )

    def run(self, cell: BuiltCell, workbench: Workbench) -> list[Built]:
        causal_bert(cell.model, workbench)
        attention = workbench.model(cell.model, weights=cell.weights).attention(cell.layer)
        made = []
        for place, n in enumerate(cell.lengths):
            workbench.check(place / len(cell.lengths), f"{cell.model}, n = {n}")
            mu = adversarial(attention, cell.head, n, cell.radius)
            sigma = float(spectral_norm(jacobian(attention, mu), tol=TOLERANCE).lower)
            made.append(Built(cell.model, cell.layer, cell.head, cell.radius, n, sigma))
        return made

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(5.6, 4.2)
        ax = figure.add_subplot()
        for colour, (place, rows) in zip(COLOURS, _places(table).items(), strict=False):
            ns = [row.n for row in rows]
            fit = _fit(rows)
            slope = "" if fit is None else f", $n^{{{fit.exponent:.2f}}}$"
            label = f"{safe(_name(place))}{slope}"
            ax.plot(ns, [row.sigma for row in rows], "o-", color=colour, markersize=4, label=label)
            factor = _published(table, place)
            if factor is not None:
                label = rf"published: {factor:g} $\sqrt{{n}}$"
                ax.plot(ns, [factor * n**0.5 for n in ns], "--", color=colour, label=label)
        ax.set(xscale="log", yscale="log", xlabel="tokens $n$", ylabel=r"$\sigma_{max}$")
        ax.set_title("Adversarial inputs")
        plain_ticks(ax)
        ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for place, rows in _places(table).items():
            fit = _fit(rows)
            if fit is None:
                continue
            made.append(
                Verdict(
                    f"{_name(place)}: sigma grows like the root of n",
                    "C sqrt(n)",
                    f"exponent {fit.exponent:.2f} ({fit.low:.2f}, {fit.high:.2f})",
                    within(fit.low, fit.high, 0.5, CLOSE),
                    f"the 95 % interval of the exponent reaches 1/2 up to {CLOSE:g}",
                )
            )
            factor = _published(table, place)
            if factor is not None:
                ratios = [row.sigma / (factor * row.n**0.5) for row in rows]
                made.append(
                    Verdict(
                        f"{_name(place)}: sigma is {factor:g} sqrt(n)",
                        "the published curve",
                        f"sigma over the curve {min(ratios):.2f} to {max(ratios):.2f}",
                        min(ratios) >= 1 - OFF and max(ratios) <= 1 + OFF,
                        f"every length within {OFF:.0%} of the curve; random weights are of another"
                        " seed than the authors'",
                    )
                )
        return made

    def remarks(self, table: Table) -> list[str]:
        there = {row.model for row in table}
        asked = dict.fromkeys(place[0] for place in table.config.places)
        missing = [name for name in asked if name not in there] if there else []
        return [f"{name} is not here and was left out." for name in missing]


Key = tuple[str, int, int, float]


def _places(table: Table) -> dict[Key, list[Built]]:
    found: dict[Key, list[Built]] = {}
    for row in table:
        found.setdefault((row.model, row.layer, row.head, row.radius), []).append(row)
    return found


def _name(place: Key) -> str:
    return f"{place[0]}, layer {place[1]}, head {place[2]}, R = {place[3]:g}"


def _published(table: Table, place: Key) -> float | None:
    found = {tuple(one[:4]): one[4] for one in table.config.places}
    factor: float | None = found.get(place)
    return factor


def _fit(rows: list[Built]) -> Fit | None:
    return growth([row.n for row in rows], [row.sigma for row in rows])
