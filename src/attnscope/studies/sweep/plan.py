"""What a sweep is asked, and the cells of `measure` that it comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from attnscope.studies.cell import Cell
from attnscope.studies.measure import Measure, MeasureConfig
from attnscope.studies.measure.rows import LENGTHS
from attnscope.studies.measure.study import check_names
from attnscope.studies.span import SpanConfig, Spans
from attnscope.studies.span.study import place
from attnscope.studies.study import Study
from attnscope.studies.workbench import Workbench

SHARD = 16
"""Sequences per cell: enough to fill a core, few enough to share out."""
ALIKE = ("lengths", "samples", "layers", "heads", "tol", "released", "bounds", "shard")
MACHINE = ("device", "dtype", "seed")


@dataclass(frozen=True)
class SweepConfig:
    """What to measure: every model on every text, in every part, at every length.

    Args:
        models: Names that `attnscope.load` knows.
        texts: Named texts or files.
        lengths: Numbers of tokens; `samples` sequences of each.
        layers, heads, tol, released, bounds, device, dtype, seed: As in `MeasureConfig`.
        parts: The maps of each layer that are measured.
        spans: Places between which the whole network is measured, such as ("0", "last").
        failure_probability: All upper bounds of the whole study hold together but with this
            probability; None for no upper bounds.
        shard: Sequences per cell, which run as one stack: a part of what a row is.
    """

    models: tuple[str, ...] = ("minilm",)
    texts: tuple[str, ...] = ("alice",)
    lengths: tuple[int, ...] = LENGTHS
    samples: int = 10
    layers: tuple[int, ...] | None = None
    heads: str | tuple[int, ...] = "none"
    parts: tuple[str, ...] = ("attention",)
    spans: tuple[tuple[str, str], ...] = ()
    tol: float = 1e-3
    failure_probability: float | None = 1e-6
    released: bool = False
    bounds: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    shard: int = SHARD


@dataclass(frozen=True, kw_only=True)
class Unavailable(Cell):
    """What stands for the cells of a model that cannot be loaded, or cannot do what is asked."""

    model: str
    text: str
    part: str
    reason: str
    planned: ClassVar[bool] = False

    @property
    def group(self) -> str:
        return self.model


def share(config: SweepConfig) -> float | None:
    """The failure probability of each piece: all pieces share that of the study evenly."""
    count = len(config.models) * len(config.texts) * (len(config.parts) + len(config.spans))
    chance = config.failure_probability
    return None if chance is None else chance / count


def pieces(config: SweepConfig) -> Iterator[MeasureConfig]:
    """One model on one text in one part, as `measure` takes it."""
    same = {name: getattr(config, name) for name in (*ALIKE, *MACHINE)}
    for model in config.models:
        for part in config.parts:
            for text in config.texts:
                yield MeasureConfig(
                    model=model,
                    text=text,
                    part=part,
                    failure_probability=share(config),
                    **same,
                )


def spans(config: SweepConfig) -> Iterator[SpanConfig]:
    """One model on one text between two places, without its blocks."""
    same = {name: getattr(config, name) for name in ("lengths", "samples", "tol", *MACHINE)}
    for model in config.models:
        for start, stop in config.spans:
            for text in config.texts:
                yield SpanConfig(
                    model=model,
                    text=text,
                    start=start,
                    stop=stop,
                    pieces=False,
                    failure_probability=share(config),
                    **same,
                )


def cells(config: SweepConfig, workbench: Workbench) -> Iterator[Cell]:
    """The cells of all pieces. What one model cannot do is its failure; what no model could do is
    raised.
    """
    check(config)
    reasons, any_planned = list[str](), False
    every: list[MeasureConfig | SpanConfig] = [*pieces(config), *spans(config)]
    every.sort(key=lambda one: config.models.index(one.model))  # each model is loaded once
    for piece in every:
        study: Study = Measure() if isinstance(piece, MeasureConfig) else Spans()
        part = piece.part if isinstance(piece, MeasureConfig) else f"{piece.start} to {piece.stop}"
        try:
            made = list(study.cells(piece, workbench))
        except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            reasons.append(reason)
            yield Unavailable(model=piece.model, text=piece.text, part=part, reason=reason)
            continue
        any_planned = True
        workbench.once(("width", piece.model), _width(piece, workbench))
        yield from made
    if not any_planned:
        raise ValueError(reasons[0])


def _width(piece: MeasureConfig | SpanConfig, workbench: Workbench) -> Callable[[], int]:
    return lambda: workbench.model(piece.model, piece.device, piece.dtype).dim


def check(config: SweepConfig) -> None:
    """What can be refused before any model is loaded."""
    for name in ("models", "texts", "parts", "spans", "lengths"):
        given = getattr(config, name)
        either = config.parts or config.spans if name in ("parts", "spans") else given
        if not either:
            raise ValueError(f"{name} must hold at least one entry, got none.")
        twice = [entry for entry in given if given.count(entry) > 1]
        if twice:
            raise ValueError(f"{name} must hold each entry once, got {twice[0]!r} again.")
    if config.samples < 1:
        raise ValueError(f"samples must be at least 1, got {config.samples}.")
    for piece in pieces(dataclasses.replace(config, models=config.models[:1])):
        check_names(piece)
    for start, stop in config.spans:
        place(start), place(stop)
