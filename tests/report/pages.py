"""Runs of `measure` that were never computed: rows by hand, names as hostile as names can be."""

from __future__ import annotations

from attnscope.studies import Table
from attnscope.studies.measure import BoundRow, DirectionRow, Measure, MeasureConfig, Row

HOSTILE = "<script>alert(1)\"'&]]>"
PIECES = ("alice", "##s", "</script><img src=x onerror=alert(2)>", "was", "&amp;", "tired")


def row(layer: int, head: int | None, n: int, sequence: int, lower: float) -> Row:
    return Row(
        model=HOSTILE,
        layer=layer,
        head=head,
        part="attention",
        n=n,
        sequence=sequence,
        start=0,
        radius=1.0,
        largest_norm=2.0,
        lower=lower,
        upper=None if lower != lower else 1.001 * lower,
        residual=1e-4,
        pairs=9,
        converged=True,
        released_estimator=None,
    )


def measured(
    layers: int = 3,
    lengths: tuple[int, ...] = (8, 16, 32),
    samples: int = 2,
    heads: int = 2,
    tokens: int = 24,
    worst: float = 3.0,
) -> Table:
    """A table like one of a run; `worst` is the constant of the last layer at one token."""
    rows = [
        row(layer, None, n, sequence, (layer + 1) / layers * worst * n**0.3 + 0.1 * sequence)
        for n in lengths
        for layer in range(layers)
        for sequence in range(samples)
    ]
    rows += [
        row(layer, head, max(lengths), sequence, 0.5 + layer + head)
        for layer in range(layers)
        for head in range(heads)
        for sequence in range(samples)
    ]
    bounds = [
        BoundRow(layer, 40.0 + layer, "upper", "proved", "B1-S", "paper", "nothing")
        for layer in range(layers)
    ]
    directions = [
        DirectionRow(layer, tokens, i, i, PIECES[i % len(PIECES)], (i + 1) / 300, 1 / tokens)
        for layer in range(layers)
        for i in range(tokens)
    ]
    config = MeasureConfig(model=HOSTILE, text=HOSTILE, lengths=lengths, samples=samples)
    kinds = {"results": rows, "bounds": bounds, "directions": directions}
    return Table(Measure(), config, kinds)
