"""All heads of a layer in one stack against head by head."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch import Tensor

from attnscope import Particles, Softmax, jacobian, load, spectral_norm
from attnscope.data.texts import windows
from attnscope.operators.heads import of_heads
from benchmarks.smoothness import pinned_text
from benchmarks.timing import seconds


def main() -> dict[str, Any]:
    """Brackets of 1e-3 of every head of four sequences, and their agreement in float64."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, layer, n in (("minilm", 3, 128), ("gpt2-random", 6, 64)):
        model = load(name)
        whole = model.attention(layer)
        x = model.tokens(windows(model.encode(pinned_text()), n, 4), layer)
        fast, slow = seconds(
            lambda whole=whole, x=x: _together(whole, x, 1e-3, 1e-6),
            lambda whole=whole, x=x: _one_by_one(whole, x, 1e-3, 1e-6),
            repeats=3,
        )
        double, short = whole.to(torch.float64), x[:1, :24].double()
        gap = _together(double, short, 1e-13, None) / _one_by_one(double, short, 1e-13, None) - 1
        where = f"{name} layer {layer}"
        found[f"all heads in one stack vs head by head, {where}, n = {n}, 4 sequences"] = {
            "ratio": slow / fast, "must": 2.8, "stretch": 4.0,
        }  # fmt: skip
        found[f"largest difference of the two in float64, {where}, n = 24"] = {
            "value": float(gap.abs().max()), "at most": 1e-12,
        }  # fmt: skip
    return found


def _together(whole: Softmax, x: Tensor, tol: float, chance: float | None) -> Tensor:
    op = of_heads(whole, Particles(x))
    return torch.as_tensor(spectral_norm(op, tol=tol, failure_probability=chance).lower)


def _one_by_one(whole: Softmax, x: Tensor, tol: float, chance: float | None) -> Tensor:
    made = []
    for head in range(whole.heads.count):
        one = dataclasses.replace(whole, heads=whole.heads.select(head))
        share = None if chance is None else chance / whole.heads.count
        op = jacobian(one, Particles(x))
        made.append(torch.as_tensor(spectral_norm(op, tol=tol, failure_probability=share).lower))
    return torch.stack(made)
