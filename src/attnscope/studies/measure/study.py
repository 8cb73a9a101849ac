"""`Measure`: how smooth is the attention of this model on this text?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from attnscope.data.texts import windows
from attnscope.models import PARTS, Model
from attnscope.studies.cell import Cell
from attnscope.studies.measure import figures as drawn
from attnscope.studies.measure.rows import BoundRow, Constants, MeasureConfig, Row, Theorems
from attnscope.studies.measure.summary import sheets, summarise
from attnscope.studies.measure.sweep import constants, text_ids, theorems
from attnscope.studies.study import Sheet, Study
from attnscope.studies.table import Table
from attnscope.studies.workbench import DTYPES, Workbench, hash_ids
from attnscope.validation import check_positive


class Measure(Study):
    """Local Lipschitz constants of layers and heads at growing lengths, next to every proved
    bound.
    """

    name = "measure"
    Config = MeasureConfig
    fast = MeasureConfig(lengths=(8, 16, 32, 64), samples=2, heads="none")
    tables: ClassVar[dict[str, type]] = {"results": Row, "bounds": BoundRow}
    aside = ("fit_from",)

    def cells(self, config: MeasureConfig, workbench: Workbench) -> Iterator[Cell]:
        _check_names(config)
        model = workbench.model(config.model, config.device, config.dtype)
        ids = text_ids(workbench, model, config.text)
        layers = _attending(model, config.part) if config.layers is None else config.layers
        wrong = [layer for layer in layers if not 0 <= layer < model.layers]
        if wrong:
            raise ValueError(f"{model.name} has layers 0 to {model.layers - 1}, got {wrong[0]}.")
        known = tuple(layer for layer in layers if model.rebuilt(layer))
        _check(config, model, heads_known=known == layers)
        windows(ids, max(config.lengths), config.samples)
        place: dict[str, Any] = {
            "model": config.model,
            "weights": workbench.weights(config.model, config.device, config.dtype),
            "device": config.device,
            "dtype": config.dtype,
            "text": config.text,
            "tokens": hash_ids(ids),
            "part": config.part,
            "layers": layers,
        }
        yield from _stacks(config, place, model.heads if known == layers else 0)
        # no theorem covers an MLP or a whole block, or heads that are not known
        if config.bounds and config.part not in ("mlp", "block") and known:
            where = place | {"layers": known}
            yield Theorems(**where, n=max(config.lengths), first=0, samples=1)

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if isinstance(cell, Constants):
            return list(constants(cell, workbench))
        return list(theorems(cell, workbench))

    def figures(self, table: Table) -> dict[str, Any]:
        return drawn.figures(table.rows, table.config) if len(table) else {}

    def summary(self, table: Table) -> list[Sheet]:
        return sheets(table.rows, table["bounds"], table.config) if len(table) else []

    def remarks(self, table: Table) -> list[str]:
        if not len(table):
            return []
        lines = summarise(table.rows, table.config.fit_from)
        left = sum(line.unconverged for line in lines)
        said = [f"{left} problems did not converge to the tolerance."] if left else []
        bent = [str(line.layer) for line in lines if line.fit is not None and line.fit.bent]
        if bent:
            said.append(
                f"layer{'s' * (len(bent) > 1)} {', '.join(bent)}: the growth is no power law over"
                " these lengths, so the exponent depends on which of them are fitted."
            )
        return said

    def files(self, table: Table) -> dict[str, bytes]:
        """Every bound; a value that is infinite in floating point is null."""
        rows = [row._asdict() for row in table["bounds"]]
        if not rows:
            return {}
        finite = [
            row | {"value": row["value"] if math.isfinite(row["value"]) else None} for row in rows
        ]
        return {"bounds.json": (json.dumps(finite, indent=1, allow_nan=False) + "\n").encode()}


def _stacks(config: MeasureConfig, place: dict[str, Any], count: int) -> Iterator[Constants]:
    """The cells of all lengths, of layers with so many heads; each call of the solver gets the same
    share of the probability.
    """
    size = config.samples if config.shard is None else config.shard
    starts = range(0, config.samples, size)
    heads = {n: _heads_at(config, count, n) for n in config.lengths}
    calls = sum(1 + len(here) for here in heads.values()) * len(place["layers"]) * len(starts)
    total = 0.0 if config.failure_probability is None else config.failure_probability
    for n in config.lengths:
        for first in starts:
            yield Constants(
                **place,
                n=n,
                first=first,
                samples=min(size, config.samples - first),
                heads=heads[n],
                tol=config.tol,
                certified=config.failure_probability is not None,
                released=config.released,
                seed=config.seed,
                failure_probability=total / calls * len(place["layers"]) * (1 + len(heads[n])),
            )


def _attending(model: Model, part: str) -> tuple[int, ...]:
    """The layers that have the part; hybrids have layers without attention, which are blocks."""
    every = range(model.layers)
    return tuple(layer for layer in every if part == "block" or model.attends(layer))


def _heads_at(config: MeasureConfig, count: int, n: int) -> tuple[int, ...]:
    """The heads that are measured at this length."""
    absent = config.part != "attention" or not count or config.heads == "none"
    if absent or (config.heads == "longest" and n != max(config.lengths)):
        return ()
    return tuple(range(count)) if isinstance(config.heads, str) else config.heads


def _check_names(config: MeasureConfig) -> None:
    """What can be refused before a model is loaded."""
    check_positive("tol", config.tol)
    if config.part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {config.part!r}.")
    if config.dtype not in DTYPES:
        raise ValueError(f"dtype must be {' or '.join(DTYPES)}, got {config.dtype!r}.")
    chance = config.failure_probability
    if chance is not None and not 0 < chance < 1:
        raise ValueError(
            f"the failure probability must lie strictly between 0 and 1, got {chance}. Try 1e-6."
        )
    if config.layers == () or not config.lengths:
        raise ValueError("there must be at least one layer and one length to measure.")
    if min(config.lengths) < 1:
        raise ValueError(f"lengths must be at least 1, got {min(config.lengths)}.")
    if len(set(config.lengths)) < len(config.lengths):
        raise ValueError("each length can be measured once only.")
    if config.fit_from < 1:
        raise ValueError(f"a fit begins at a length of at least 1, got {config.fit_from}.")
    if config.shard is not None and config.shard < 1:
        raise ValueError(f"a shard holds at least 1 sequence, got {config.shard}.")
    if isinstance(config.heads, str) and config.heads not in ("none", "longest", "all"):
        raise ValueError(
            f'heads must be "none", "longest", "all" or numbers, got {config.heads!r}.'
        )


def _check(config: MeasureConfig, model: Model, heads_known: bool) -> None:
    """What this model cannot do."""
    longest = max(config.lengths)
    if longest > model.positions:
        raise ValueError(
            f"{model.name} takes at most {model.positions} tokens, got a length of {longest}."
        )
    asked = () if isinstance(config.heads, str) else config.heads
    wrong = [head for head in asked if not 0 <= head < model.heads]
    if wrong:
        raise ValueError(f"{model.name} has heads 0 to {model.heads - 1}, got {wrong[0]}.")
    single = config.heads not in ("none", "longest")
    if single and config.part != "attention":
        raise ValueError(
            "single heads are measured for the part attention only, got part"
            f" {config.part}: leave the heads out."
        )
    if single and not heads_known:
        raise ValueError(
            f"the heads of {model.name} cannot be rebuilt, so they cannot be measured alone: leave"
            " the heads out."
        )
