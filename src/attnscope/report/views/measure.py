"""The page of `measure`: which layer is how sensitive, at which length, by which head and token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnscope.report.content import Block, Number, Opening, Standing
from attnscope.report.heatmap import Cell, heat_map
from attnscope.report.markup import Markup, number, tag
from attnscope.report.panels import Bound, Panel, Point, Stop, panels
from attnscope.report.tokens import tinted_text
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.measure import BoundRow, Measure, Row
from attnscope.studies.measure.summary import LayerSummary, summarise, tightest

MOST_PANELS = 12
KEYS = (
    ("line", "median over the sequences; dots: each sequence with its bracket"),
    ("curve", "fitted power law (an estimate)"),
    ("bound", "tightest proved bound, at the first sequence of the longest length"),
)


class MeasureView(View):
    kind = Measure
    instead = ("constant-against-length", "heads-by-layers")

    def opening(self, table: Table) -> Opening:
        rows, config = _finite(table.rows), table.config
        model, text = Path(config.model).name, Path(config.text).name
        lines = summarise(rows, config.fit_from)
        worst = max(lines, key=lambda line: line.median)
        calmest = min(lines, key=lambda line: line.median)
        lengths = sorted({row.n for row in rows})
        samples = len({row.sequence for row in rows})
        words = [
            f"How much can the output of {_part(config.part)} of {model} move when its input, real"
            f" text ({text}), moves a little? The local Lipschitz constant σ says it: the output"
            " moves at most σ times as far, to first order, in the worst direction.",
            f"{len(lines)} layer{'s' * (len(lines) > 1)}, {_range(lengths)} tokens, {samples}"
            f" sequence{'s' * (samples > 1)} per length. The most sensitive is layer"
            f" {worst.layer} (σ = {number(worst.median)} at {worst.n} tokens)"
            + (
                f", the least layer {calmest.layer} (σ = {number(calmest.median)})."
                if len(lines) > 1
                else "."
            ),
        ]
        return Opening(f"How smooth is {model} on {text}?", words, _numbers(table, worst, rows))

    def blocks(self, table: Table) -> list[Block]:
        rows = _finite(table.rows)
        found = [
            Block("σ against the length", _growth(table, rows), "One scale for all layers."),
            _map_of_lengths(rows),
            _map_of_heads(rows),
            _directions(table, rows),
        ]
        return [block for block in found if block is not None]


def _finite(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if math.isfinite(row.lower)]


def _part(part: str) -> str:
    names = {"attention": "the attention", "residual": "the residual attention", "mlp": "the MLP"}
    return names.get(part, part)


def _range(values: Sequence[int]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 1 else str(values[0])


def _numbers(table: Table, worst: LayerSummary, rows: Sequence[Row]) -> list[Number]:
    last = [row for row in rows if (row.layer, row.n, row.head) == (worst.layer, worst.n, None)]
    bracketed = [row.upper for row in last if row.upper is not None]
    where = f"layer {worst.layer} at {worst.n} tokens"
    if bracketed:
        wide = "" if worst.width is None else f" at most {100 * worst.width:.1g} % wide"
        sigma = Number(
            f"σ of {where}",
            number(worst.median),
            Standing.PROBABLE,
            f"Median of {len(last)} lower bounds, each in a bracket{wide} whose upper end is"
            " probable.",
        )
    else:
        sigma = Number(
            f"σ of {where}",
            number(worst.median),
            Standing.ESTIMATE,
            f"Median of {len(last)} lower bounds whose distance from the truth is estimated.",
        )
    found = [sigma]
    best = tightest([bound for bound in table["bounds"] if bound.layer == worst.layer])
    if best is not None:
        found.append(
            Number(
                f"proved bound, {where}",
                number(best.value),
                Standing.PROVED,
                f"{best.name}, on the first sequence, where σ is {number(worst.first)}"
                + (f": {best.value / worst.first:.1f} times that." if worst.first > 0 else "."),
            )
        )
    if worst.fit is not None:
        fit = worst.fit
        bent = " A power law does not fit well." if fit.bent else ""
        found.append(
            Number(
                f"growth exponent of layer {worst.layer}",
                f"{fit.exponent:.2f}",
                Standing.ESTIMATE,
                f"σ grows like n to this power, {fit.low:.2f} to {fit.high:.2f} with 95 %"
                f" confidence, from {fit.shortest:.0f} to {fit.longest:.0f} tokens.{bent}",
            )
        )
    return found


def _growth(table: Table, rows: Sequence[Row]) -> Markup:
    lines = summarise(rows, table.config.fit_from)
    made = [_panel(line, rows, table["bounds"]) for line in lines]
    spread = np.linspace(0, len(made) - 1, min(MOST_PANELS, len(made))).round().astype(int)
    first = [made[i] for i in sorted(set(spread.tolist()))]
    rest = [panel for panel in made if panel not in first]
    keys = [tag("li", tag("span", class_=f"key is-{kind}"), told) for kind, told in KEYS]
    axes = ("tokens n", "σ")
    return tag(
        "div",
        tag("ul", keys, class_="keys note"),
        panels(first, *axes),
        tag("details", tag("summary", f"{len(rest)} more layers"), panels(rest, *axes))
        if rest
        else None,
    )


class _AtLength(NamedTuple):
    n: int
    rows: list[Row]

    @property
    def median(self) -> float:
        return float(np.median([row.lower for row in self.rows]))

    def told(self, who: str) -> str:
        """What a reader learns on hover."""
        lows, highs = ([row.lower for row in self.rows], [row.upper for row in self.rows])
        said = f"{who}, {self.n} tokens: σ = {number(self.median, 5)}"
        if len(self.rows) > 1:
            said += (
                f"\nmedian of {len(self.rows)} sequences, {number(min(lows), 5)} to"
                f" {number(max(lows), 5)}"
            )
        ends = [high for high in highs if high is not None and math.isfinite(high)]
        if not ends:
            return f"{said}\nno upper bound was asked for"
        middle = min(self.rows, key=lambda row: abs(row.lower - self.median))
        if middle.upper is None:
            return f"{said}\nsome brackets are open"
        return (
            f"{said}\nbracket of sequence {middle.sequence}: {number(middle.lower, 6)} to"
            f" {number(middle.upper, 6)}"
        )


def _by_length(rows: Iterable[Row]) -> list[_AtLength]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.n, []).append(row)
    return [_AtLength(n, held) for n, held in sorted(found.items())]


def _panel(line: LayerSummary, rows: Sequence[Row], bounds: Sequence[BoundRow]) -> Panel:
    here = [row for row in rows if row.layer == line.layer and row.head is None]
    lengths = _by_length(here)
    best = tightest([bound for bound in bounds if bound.layer == line.layer])
    proved = (
        [] if best is None else [Bound(line.n, best.value, f"{best.name} {number(best.value, 3)}")]
    )
    curve: list[tuple[float, float]] = []
    if line.fit is not None:
        span = np.linspace(line.fit.shortest, line.fit.longest, 40)
        curve = [(float(n), line.fit.factor * float(n) ** line.fit.exponent) for n in span]
    told = (
        ""
        if best is None
        else f"\nproved at the longest length: at most {number(best.value)} ({best.name})"
    )
    return Panel(
        f"layer {line.layer}",
        [Point(row.n, row.lower, row.upper) for row in here],
        [(at.n, at.median) for at in lengths],
        curve,
        proved,
        [Stop(at.n, at.told(f"layer {line.layer}") + told) for at in lengths],
    )


def _map_of_lengths(rows: Sequence[Row]) -> Block:
    whole = [row for row in rows if row.head is None]
    layers, lengths = sorted({row.layer for row in whole}), sorted({row.n for row in whole})
    cells = {}
    for i, layer in enumerate(layers):
        for at in _by_length(row for row in whole if row.layer == layer):
            cells[i, lengths.index(at.n)] = Cell(at.median, at.told(f"layer {layer}"))
    body = heat_map(cells, layers, lengths, "layer", "tokens n", "σ by layer and length")
    return Block("Layers by lengths", body, "σ, median over the sequences. " + HOVER)


HOVER = "Hover, tap or use the arrow keys for values and brackets."


def _map_of_heads(rows: Sequence[Row]) -> Block | None:
    single = [row for row in rows if row.head is not None]
    if not single:
        return None
    longest = max(row.n for row in single)
    layers = sorted({row.layer for row in single})
    heads = sorted({row.head for row in single if row.head is not None})
    cells = {}
    for i, head in enumerate(heads):
        for j, layer in enumerate(layers):
            found = [
                row for row in single if (row.head, row.layer, row.n) == (head, layer, longest)
            ]
            if found:
                at = _AtLength(longest, found)
                cells[i, j] = Cell(at.median, at.told(f"head {head} of layer {layer}"))
    body = heat_map(cells, heads, layers, "head", "layer", "σ of single heads by layer")
    return Block("Heads by layers", body, f"σ of each head by itself, {longest} tokens. " + HOVER)


def _directions(table: Table, rows: Sequence[Row]) -> Block | None:
    """The tokens that carry the top direction, on the text itself."""
    found = table["directions"]
    if not found:
        return None
    layers: dict[int, list[tuple[str, float, float]]] = {}
    for row in found:
        layers.setdefault(row.layer, []).append((row.text, row.carried, row.received))
    shares = {
        layer: [[one[1] for one in held], [one[2] for one in held]]
        for layer, held in layers.items()
    }
    worst = max(summarise(rows, table.config.fit_from), key=lambda line: line.median).layer
    begin = worst if worst in layers else next(iter(layers))
    body = tinted_text(
        [text for text, _, _ in layers[begin]],
        shares,
        begin,
        ("Who moves: the worst small change of the input", "Who answers: the change of the output"),
        ("carries", "shows"),
        "directions",
    )
    return Block(
        "The most sensitive direction, on the text",
        body,
        "Shares of the squared length of the top singular vectors, an estimate: where two singular"
        " values are nearly equal, any mixture of their vectors would do.",
    )
