"""The papers' figure: 49 lengths x 10 sequences of one layer to 1e-6, against the power method."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import Tensor

from attnscope import Particles, jacobian, load, spectral_norm
from attnscope.data.texts import windows
from attnscope.models import Model
from attnscope.studies.measure.ladder import Memory, ladders
from benchmarks.baselines import eager, p2, power_method
from benchmarks.smoothness import TOLERANCE, Case, pinned_text
from benchmarks.timing import seconds

LENGTHS = range(2, 100, 2)
BARS = {"gpt2-random": (22.0, 30.0), "bert-random": (42.0, 55.0)}


def main() -> dict[str, Any]:
    """Estimates as `measure --estimate` makes them, on ladders, and the bracketed ratio beside."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, (must, stretch) in BARS.items():
        model = load(name)
        ours, bracketed, theirs, pairs = _ours(model, 6), _bracketed(model, 6), *_power(model, 6)
        found[f"the papers' figure to 1e-6 vs P2, {name} layer 6"] = {
            "ratio": theirs / ours,
            "must": must,
            "stretch": stretch,
            "with brackets of 1e-3 instead": theirs / bracketed,
            "pairs of P2": pairs,
        }
    return found


def _ours(model: Model, layer: int) -> float:
    ids, attention, total = model.encode(pinned_text()), model.attention(layer), 0.0
    for rungs in ladders(LENGTHS, dict.fromkeys(LENGTHS, ()), climb=True):
        memory = Memory(0)
        for n in rungs:
            x = model.tokens(windows(ids, n, 10), layer)
            begun = time.process_time()
            near = memory.near((layer, ()), n)
            result = spectral_norm(jacobian(attention, Particles(x)), tol=TOLERANCE, near=near)
            memory.keep((layer, ()), n, result)
            total += time.process_time() - begun
    return total


def _bracketed(model: Model, layer: int, every: int = 4) -> float:
    """Every fourth length, scaled to all."""
    ids, attention, total = model.encode(pinned_text()), model.attention(layer), 0.0
    timed = LENGTHS[::every]
    for n in timed:
        x = model.tokens(windows(ids, n, 10), layer)
        total += seconds(
            lambda x=x: spectral_norm(
                jacobian(attention, Particles(x)), tol=1e-3, failure_probability=1e-6
            ),
            repeats=1,
        )[0]
    return total * len(LENGTHS) / len(timed)


def _power(model: Model, layer: int, sampled: int = 3) -> tuple[float, list[int]]:
    """Three sequences of every eighth length, scaled to all; stopped by the truth."""
    ids, attention, total = model.encode(pinned_text()), model.attention(layer), 0.0
    timed, function, pairs = LENGTHS[::8], eager(attention), list[int]()
    for n in timed:
        for sequence, x in enumerate(model.tokens(windows(ids, n, sampled), layer)):
            truth = Case("", attention, x, normed=False).truth()

            def run(x: Tensor = x, truth: float = truth, seed: int = sequence) -> None:
                shape = tuple(x.shape)
                made = power_method(p2(function, x), shape, x.dtype, truth, TOLERANCE, seed)
                pairs.append(made[1])

            total += seconds(run, repeats=1)[0]
    return total / (sampled * len(timed)) * 10 * len(LENGTHS), pairs
