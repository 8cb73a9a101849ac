r"""How long a sweep will take, roughly, before it begins.

A pair of products with the Jacobian of attention costs $2(8nd^2 + 8n^2d)$ operations for each
sequence and layer; the solver needs a few dozen pairs. The speed of this machine is that of a
product of matrices, timed here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from attnscope.studies.cell import Cell
from attnscope.studies.measure.rows import Constants, Theorems
from attnscope.studies.span.rows import SpanCell
from attnscope.studies.workbench import Workbench

PAIRS = {True: 25, False: 15}
"""Of a bracket of 1e-3, and of an estimate."""
SHARE_OF_SPEED = 0.5
"""Of a product of matrices, that the solver reaches."""
CALL = 0.02
"""Seconds of a call of the solver beside its products."""
BLOCK = 3
"""A block costs as much as its attention so many times."""
USUAL_DEPTH = 12
THEOREMS = 8
"""Every proved bound of a layer costs as much as so many constants."""


def expected_seconds(cells: Sequence[Cell], workbench: Workbench) -> float:
    """Seconds of one core; cells of models that cannot be loaded cost nothing."""
    speed = SHARE_OF_SPEED * operations_per_second()
    return sum(_operations(cell, workbench) / speed + _calls(cell) * CALL for cell in cells)


def _operations(cell: Cell, workbench: Workbench) -> float:
    if not isinstance(cell, Constants | Theorems | SpanCell):
        return 0.0
    d = workbench.found(("width", cell.model)) or 768
    lengths = cell.rungs if isinstance(cell, Constants) else (cell.n,)
    each = sum(2 * (8 * n * d**2 + 8 * n**2 * d) for n in lengths)
    if isinstance(cell, SpanCell):
        return PAIRS[cell.certified] * each * BLOCK * _blocks(cell)
    pair = each * len(cell.layers) * cell.samples
    if isinstance(cell, Theorems):
        return THEOREMS * PAIRS[True] * pair
    whole = BLOCK if cell.part in ("mlp", "block") else 1
    return PAIRS[cell.certified] * pair * (1 + bool(cell.heads)) * whole


def _blocks(cell: SpanCell) -> int:
    """Of a span; of one whose end has a name, as many as usual."""
    ends = [int(end) if end.isdecimal() else None for end in (cell.start, cell.stop)]
    return max(1, (ends[1] or USUAL_DEPTH) - (ends[0] or 0))


def _calls(cell: Cell) -> int:
    if isinstance(cell, Theorems):
        return THEOREMS * len(cell.layers)
    if not isinstance(cell, Constants):
        return 0
    return len(cell.layers) * (1 + bool(cell.heads)) * len(cell.rungs)


def operations_per_second(size: int = 512) -> float:
    """Of a product of matrices in float32 on one thread, whatever else the machine is doing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = torch.ones(size, size)
        matrix @ matrix
        times = []
        for _ in range(3):
            begun = time.thread_time()
            matrix @ matrix
            times.append(time.thread_time() - begun)
        return 2 * size**3 / min(times)
    finally:
        torch.set_num_threads(threads)
