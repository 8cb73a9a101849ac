"""What the figures on real text share: models by name, those that are not here left out, and the
cells of `measure`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int
from torch import Tensor

from attnscope.models import Model, ModelNotice
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import MAP, RED, new_figure, safe
from attnscope.studies.measure import Measure, MeasureConfig
from attnscope.studies.measure.fit import Fit, growth
from attnscope.studies.measure.inputs import text_ids
from attnscope.studies.measure.rows import LENGTHS, Row
from attnscope.studies.papers._figure import Missing, PaperFigure
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

CAUSAL = " made causal"
"""What the name of a BERT says that reads under a causal mask."""
PUBLISHED_LAYERS = 12
DEPTH = (0, 6)
"""The papers' layers, of 12; a shallower model stands in with layers of the same relative depth."""
LABELS = {"n": "tokens $n$", "lower": r"$\sigma_{max}$", "radius": "radius $R$"}
TOLD_WIDTH = 0.2
"""An interval of an exponent that is wider tells nothing."""


@dataclass(frozen=True)
class TextConfig:
    """The papers' models, lengths and samples; `decoder` is a BERT that is measured causal too."""

    models: tuple[str, ...] = ("bert-base-uncased", "gpt2", "gpt2-random")
    decoder: str | None = "bert-base-uncased"
    lengths: tuple[int, ...] = LENGTHS
    samples: int = 10
    text: str = "alice"
    tol: float = 1e-3


FAST = TextConfig(
    models=("minilm", "gpt2-random"), decoder=None, lengths=(2, 4, 8, 16, 32, 64), samples=4
)


class Case(NamedTuple):
    """A layer of a model, and what was measured there."""

    model: str
    layer: int
    rows: list[Row]

    @property
    def name(self) -> str:
        return f"{self.model}, layer {self.layer}"

    @property
    def fit(self) -> Fit | None:
        """The growth of sigma with the length."""
        return growth([row.n for row in self.rows], [row.lower for row in self.rows])


class TextFigure(PaperFigure):
    """A figure of what `measure` finds in the layers of the papers' models."""

    paper = "castin24"
    topic = "smoothness"
    seconds = (20, 1200)
    shares = "texts"
    Config = TextConfig
    fast = FAST
    tables: ClassVar[dict[str, type]] = {"results": Row}

    def cells(self, config: Any, workbench: Workbench) -> Iterable[Cell]:
        for model in present(config.models, config.decoder, workbench):
            asked = MeasureConfig(
                model=model.name,
                text=config.text,
                layers=depths(model),
                heads="none",
                lengths=config.lengths,
                samples=config.samples,
                tol=config.tol,
                failure_probability=None,
                released=True,
                bounds=False,
            )
            with quiet():
                yield from list(Measure().cells(asked, workbench))

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        return measured(cell, workbench)

    def remarks(self, table: Table) -> list[str]:
        return left_out(table)


def measured(cell: Any, workbench: Workbench) -> list[Any]:
    """The rows of a cell of `measure`; figures of one process share them."""
    causal_bert(cell.model, workbench)
    kept: list[Any] = workbench.once(("rows of measure", cell.key), list)
    if kept:
        return list(kept)
    found = [row for row in Measure().run(cell, workbench) if isinstance(row, Row)]
    if not workbench.cut:
        kept.extend(found)
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Without notices, which are among the remarks of the figure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelNotice)
        yield


def left_out(table: Table) -> list[str]:
    """Which of the models were not here."""
    if not len(table):
        return []
    there = {row.model for row in table}
    decoder = table.config.decoder
    asked = [*table.config.models, *([] if decoder is None else [decoder + CAUSAL])]
    said = [f"{name} is not here and was left out." for name in asked if name not in there]
    for name in sorted(there):
        if name.endswith("-random"):
            said.append(f"{name} has no tokenizer: its tokens are words and signs by number.")
    return said


def present(names: Sequence[str], decoder: str | None, workbench: Workbench) -> Iterator[Model]:
    """The models that are here or can be loaded; none at all is a sentence."""
    wanted = [*names, *([] if decoder is None else [decoder + CAUSAL])]
    reasons = []
    for name in wanted:
        try:
            causal_bert(name, workbench)
            model = workbench.model(name)
        except ValueError as error:
            reasons.append(str(error))
        else:
            yield model
    if len(reasons) == len(wanted):
        raise Missing(reasons[0] if reasons else "no model was named.")


def causal_bert(name: str, workbench: Workbench) -> None:
    """Put a BERT under a causal mask on the workbench, if this is the name of one: the papers'
    decoder, the same weights with another mask.
    """
    if not name.endswith(CAUSAL):
        return

    def made() -> Model:
        plain = workbench.model(name.removesuffix(CAUSAL))
        if plain.family != "bert":
            raise ValueError(f"only a model of BERT's kind is made causal, got {plain.name}.")
        module = copy.deepcopy(plain.module)
        for part in (module, *module.modules()):
            if hasattr(part, "is_decoder"):
                part.is_decoder = True
            if hasattr(part, "is_causal"):
                part.is_causal = True
        module.config.is_decoder = True
        return type(plain)(module, name, lambda text: plain.encode(text).tolist())

    workbench.once(("model", name, "cpu", "float32"), made)


def depths(model: Model) -> tuple[int, ...]:
    """The papers' layers in this model."""
    if model.layers >= PUBLISHED_LAYERS:
        return DEPTH
    return tuple(dict.fromkeys(layer * model.layers // PUBLISHED_LAYERS for layer in DEPTH))


def ids_of(model: Model, text: str, workbench: Workbench) -> Int[Tensor, " total"]:
    """The ids of a text as this model reads it."""
    with quiet():
        return text_ids(workbench, model, text)


def cases(table: Table) -> list[Case]:
    """The rows of each layer of each model, in the order of the run."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in table:
        found.setdefault((row.model, row.layer), []).append(row)
    return [Case(*place, rows) for place, rows in found.items()]


def draw_cases(
    found: Sequence[Case], x: str, y: str, colour: str, title: str, curves: bool = False
) -> Any:
    """One panel per case: field y against field x of the rows, coloured by a third; with curves the
    fitted power law.
    """
    columns = 2 if len(found) in (2, 4) else min(len(found), 3)
    lines = -(-len(found) // columns)
    figure = new_figure(3.6 * columns + 0.6, 3.0 * lines + 0.3)
    figure.suptitle(title)
    for place, case in enumerate(found, start=1):
        ax = figure.add_subplot(lines, columns, place)
        values = [[getattr(row, name) for row in case.rows] for name in (x, y, colour)]
        points = ax.scatter(*values[:2], c=values[2], s=12, cmap=MAP)
        figure.colorbar(points, ax=ax, label=LABELS[colour])
        # radii of one layer differ by little
        scales = {
            axis: "linear" if name == "radius" else "log" for axis, name in (("x", x), ("y", y))
        }
        ax.set(xscale=scales["x"], yscale=scales["y"], xlabel=LABELS[x], ylabel=LABELS[y])
        name = safe(case.name)
        if curves and case.fit is not None:
            ns = np.unique(values[0])
            fit = case.fit
            ax.plot(ns, fit.factor * ns**fit.exponent, color=RED)
            name += f"\n{fit.factor:.3g} $n^{{{fit.exponent:.2f}}}$"
        ax.set_title(name)
        plain_ticks(ax)
    return figure


def plain_ticks(ax: Any) -> None:
    """Few numbers in plain notation, where an axis does not reach over many decades."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        if axis.get_scale() != "log":
            axis.get_major_formatter().set_useOffset(False)
            ax.locator_params(axis=axis.axis_name, nbins=4)
        elif high < 200 * low:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(NullFormatter())


def within(low: float, high: float, value: float, reach: float = 0.0) -> bool | None:
    """Whether an exponent is `value` up to `reach`, from its interval: None where the interval
    holds the value but is too wide to mean it.
    """
    if high < value - reach or low > value + reach:
        return False
    return True if high - low <= TOLD_WIDTH else None


def at_most(low: float, high: float, value: float) -> bool | None:
    """Whether an exponent is at most `value`, from its interval."""
    return True if high <= value else False if low > value else None
