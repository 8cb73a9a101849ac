"""`Measure`: how smooth is the attention of this model on this text?"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from attnscope.models import MEMORY, PARTS, Model
from attnscope.studies.cell import Cell
from attnscope.studies.measure import figures as drawn
from attnscope.studies.measure.directions import DirectionRow
from attnscope.studies.measure.inputs import cut, is_several, members, text_ids, token_counts
from attnscope.studies.measure.ladder import ladders
from attnscope.studies.measure.rows import BoundRow, Constants, MeasureConfig, Row, Theorems
from attnscope.studies.measure.summary import sheets, summarise
from attnscope.studies.measure.sweep import constants, supply, theorems
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
    tables: ClassVar[dict[str, type]] = {
        "results": Row,
        "bounds": BoundRow,
        "directions": DirectionRow,
    }
    aside = ("fit_from",)

    def cells(self, config: MeasureConfig, workbench: Workbench) -> Iterator[Cell]:
        check_names(config)
        model = workbench.model(config.model, config.device, config.dtype)
        ids = text_ids(workbench, model, config.text)
        layers = _attending(model, config.part) if config.layers is None else config.layers
        wrong = [layer for layer in layers if not 0 <= layer < model.layers]
        if wrong:
            raise ValueError(f"{model.name} has layers 0 to {model.layers - 1}, got {wrong[0]}.")
        single = all(model.has_heads(layer) for layer in layers)
        frame = model.frame() if config.special_tokens else ((), ())
        config = _fitted(config, model, ids, frame)
        _check(config, model, heads_known=single)
        who = {n: _sequences(config, ids, n, frame) for n in config.lengths}
        place: dict[str, Any] = {
            "model": config.model,
            "weights": workbench.weights(config.model, config.device, config.dtype),
            "device": config.device,
            "dtype": config.dtype,
            "text": config.text,
            "tokens": hash_ids(ids),
            "part": config.part,
            "layers": layers,
            "frame": tuple(map(tuple, frame)),
        }
        yield from _stacks(config, place, model.heads if single else 0, who, ids)
        # no theorem covers an MLP or a whole block, or what neither weights nor taps show
        covered = tuple(layer for layer in layers if _covered(model, layer, config.part))
        if config.bounds and covered:
            where = place | {"layers": covered}
            longest = max(config.lengths)
            chosen = who[longest][:1] if is_several(ids) else ()
            yield Theorems(**where, n=longest, first=0, samples=1, members=chosen)

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if isinstance(cell, Constants):
            return list(constants(cell, workbench))
        return list(theorems(cell, workbench))

    def supplies(self, cell: Any, workbench: Workbench) -> dict[Hashable, Any]:
        """The ids: a worker elsewhere needs neither the text nor a tokenizer."""
        ids = workbench.found(("ids", cell.model, cell.text))
        if ids is None:  # the cells were not planned on this workbench
            model = workbench.model(cell.model, cell.device, cell.dtype)
            ids = text_ids(workbench, model, cell.text)
        lengths = cell.rungs if isinstance(cell, Constants) else (cell.n,)
        return {
            supply(cell, n): cut(ids, n, cell.first, cell.samples, cell.frame, cell.members).clone()
            for n in lengths
        }

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
        known = {row.layer for row in table["bounds"]}
        bare = [str(line.layer) for line in lines if line.layer not in known]
        if bare and table.config.bounds and table.config.part not in ("mlp", "block"):
            said.append(
                f"layer{'s' * (len(bare) > 1)} {', '.join(bare)}: no proved bound, because none"
                f" covers {'them' if len(bare) > 1 else 'it'}, it would take more than"
                f" {MEMORY >> 30} GB at n = {lines[0].n}, or the run ended before."
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


def _fitted(
    config: MeasureConfig, model: Model, ids: Tensor, frame: Sequence[Sequence[int]]
) -> MeasureConfig:
    """Images, embeddings and whole texts have lengths of their own."""
    if ids.is_floating_point():
        n = model.usual_length if model.sees_images else ids.shape[-2]
        return replace(config, lengths=(n,))
    if config.whole and is_several(ids):
        counts = token_counts(ids[: config.samples], frame)
        return replace(config, lengths=tuple(sorted(set(counts))))
    return config


def _sequences(
    config: MeasureConfig, ids: Tensor, n: int, frame: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The numbers of the sequences of this length."""
    if is_several(ids):
        return members(ids[: config.samples], n, frame, config.whole)
    cut(ids, n, 0, config.samples, frame)
    return tuple(range(config.samples))


def _stacks(
    config: MeasureConfig,
    place: dict[str, Any],
    count: int,
    who: dict[int, tuple[int, ...]],
    ids: Tensor,
) -> Iterator[Constants]:
    """The cells of all lengths, of layers with so many heads, at sequences of these numbers; each
    takes a share of the probability as large as its work, where it saves the most pairs. Estimates
    climb ladders of lengths of one text.
    """
    size = config.samples if config.shard is None else config.shard
    heads = {n: _heads_at(config, count, n) for n in config.lengths}
    shards = {n: range(0, len(numbers), size) for n, numbers in who.items()}
    several, words = is_several(ids), not ids.is_floating_point()
    total = 0.0 if config.failure_probability is None else config.failure_probability

    def work(n: int, sequences: int) -> int:
        """Tokens; the heads of a layer, in one stack, take about as long as the layer."""
        return n * sequences * (2 if heads[n] else 1)

    every = sum(work(n, len(who[n])) for n in heads)
    certified = config.failure_probability is not None
    for rungs in ladders(config.lengths, heads, climb=not certified and not several):
        for first in shards[rungs[-1]]:
            here = who[rungs[-1]][first : first + size]
            share = total * sum(work(n, len(here)) for n in rungs) / every
            yield Constants(
                **place,
                n=rungs[-1],
                first=first,
                samples=len(here),
                members=here if several else (),
                heads=heads[rungs[-1]],
                tol=config.tol,
                certified=certified,
                released=config.released,
                seed=config.seed,
                directions=words and rungs[-1] == max(config.lengths) and first == 0,
                before=rungs[:-1],
                failure_probability=share,
            )


def _attending(model: Model, part: str) -> tuple[int, ...]:
    """The layers that have the part; hybrids have layers without attention, which are blocks."""
    every = range(model.layers)
    return tuple(layer for layer in every if part == "block" or model.attends(layer))


def _covered(model: Model, layer: int, part: str) -> bool:
    """Whether theorems speak of this part."""
    return part not in ("mlp", "block") and model.has_bounds(layer)


def _heads_at(config: MeasureConfig, count: int, n: int) -> tuple[int, ...]:
    """The heads that are measured at this length."""
    absent = config.part != "attention" or not count or config.heads == "none"
    if absent or (config.heads == "longest" and n != max(config.lengths)):
        return ()
    return tuple(range(count)) if isinstance(config.heads, str) else config.heads


def check_names(config: MeasureConfig) -> None:
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
            f"the heads of {model.name} can neither be rebuilt from its weights nor seen through"
            " transformers' AttentionInterface, so they cannot be measured alone: leave the heads"
            " out."
        )
