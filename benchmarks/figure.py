"""The papers' figure: 49 lengths x 10 sequences of one layer to 1e-6, against the power method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope import Particles, jacobian, load, spectral_norm
from attnscope.attention import Attention
from attnscope.data.texts import windows
from attnscope.models import Model
from attnscope.studies.measure.ladder import Memory, ladders
from benchmarks.baselines import eager, p2, power_method
from benchmarks.smoothness import TOLERANCE, Case, pinned_text
from benchmarks.timing import seconds

LENGTHS = range(2, 100, 2)
BRACKETED, POWERED = LENGTHS[::4], LENGTHS[::8]
"""Lengths at which brackets and the power method are timed, scaled to all."""
SEQUENCES, SAMPLED = 10, 3
"""Of every length, and those of them on which the power method is timed."""
BARS = {"gpt2-random": (22.0, 30.0), "bert-random": (42.0, 55.0)}


def main() -> dict[str, Any]:
    """Estimates as `measure --estimate` makes them, on ladders, and the bracketed ratio beside."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, (must, stretch) in BARS.items():
        ours, bracketed, theirs, pairs = _side_by_side(load(name), 6)
        found[f"the papers' figure to 1e-6 vs P2, {name} layer 6"] = {
            "ratio": theirs / ours,
            "must": must,
            "stretch": stretch,
            "with brackets of 1e-3 instead": theirs / bracketed,
            "pairs of P2": pairs,
        }
    return found


def _side_by_side(model: Model, layer: int) -> tuple[float, float, float, list[int]]:
    """CPU time of estimates, brackets and the power method, length by length, so that a machine
    that is slow for a while is slow for all of them; and the pairs of the last.
    """
    ids, attention = model.encode(pinned_text()), model.attention(layer)
    ours, bracketed, theirs, pairs = 0.0, 0.0, 0.0, list[int]()
    for rungs in ladders(LENGTHS, dict.fromkeys(LENGTHS, ()), climb=True):
        memory = Memory(0)
        for n in rungs:
            x = model.tokens(windows(ids, n, SEQUENCES), layer)
            ours += _timed(lambda n=n, x=x, memory=memory: _estimated(attention, x, memory, n))
            if n in BRACKETED:
                bracketed += _timed(lambda x=x: _bracketed(attention, x))
            if n in POWERED:
                for number in range(SAMPLED):
                    theirs += _power(attention, x[number], number, pairs)
    bracketed *= len(LENGTHS) / len(BRACKETED)
    theirs *= len(LENGTHS) * SEQUENCES / (len(POWERED) * SAMPLED)
    return ours, bracketed, theirs, pairs


def _timed(action: Callable[[], object]) -> float:
    return seconds(action, repeats=1)[0]


def _estimated(attention: Attention, x: Tensor, memory: Memory, n: int) -> None:
    near = memory.near((0, ()), n)
    result = spectral_norm(jacobian(attention, Particles(x)), tol=TOLERANCE, near=near)
    memory.keep((0, ()), n, result.around)


def _bracketed(attention: Attention, x: Tensor) -> None:
    spectral_norm(jacobian(attention, Particles(x)), tol=1e-3, failure_probability=1e-6)


def _power(attention: Attention, x: Tensor, seed: int, pairs: list[int]) -> float:
    """One sequence; stopped by the truth, which is not timed."""
    truth = Case("", attention, x, normed=False).truth()
    products, shape = p2(eager(attention), x), tuple(x.shape)

    def run() -> None:
        pairs.append(power_method(products, shape, x.dtype, truth, TOLERANCE, seed)[1])

    return _timed(run)
