"""How often an estimate says converged and is off by more than twice its tolerance: on minilm over
ladders of small lengths, and on spectra that are dense, equal or crossing at their top.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from attnscope import Particles, jacobian, load, spectral_norm
from attnscope.data.texts import windows
from attnscope.models import Model
from attnscope.operators import LinearOperator, Near
from attnscope.studies.measure.ladder import Memory
from benchmarks.smoothness import TOLERANCE, pinned_text

RUNGS = (4, 6, 8, 10, 12, 14, 16, 18)
SEEDS = 105
"""With 6 layers, 8 lengths and 10 sequences: 50,400 runs."""


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return _ladders(load("minilm")) | _dense_tops() | _crossings()


def _ladders(model: Model) -> dict[str, Any]:
    ids = model.encode(pinned_text())
    errors, runs, largest = list[Tensor](), 0, 0.0
    for layer in range(model.layers):
        attention = model.attention(layer)
        problems = []
        for n in RUNGS:
            mu = Particles(model.tokens(windows(ids, n, 10), layer))
            double = jacobian(attention.to(torch.float64), mu.to(torch.float64))
            truth = spectral_norm(double, tol=1e-9, failure_probability=1e-9).lower
            problems.append((n, jacobian(attention, mu), torch.as_tensor(truth)))
        for seed in range(SEEDS):
            memory = Memory(0)
            for n, op, truth in problems:
                near = memory.near((layer, ()), n)
                found = spectral_norm(op, tol=TOLERANCE, seed=seed, near=near)
                memory.keep((layer, ()), n, found.around)
                off = 1 - torch.as_tensor(found.lower) / truth
                errors.append(off[torch.as_tensor(found.converged)])
                runs += len(off)
    off = torch.cat(errors)
    wrong, largest = int((off > 2 * TOLERANCE).sum()), float(off.max())
    limit = float(beta.ppf(0.95, wrong + 1, len(off) - wrong))
    return {
        "misconverged runs on minilm, ladders included: 95 % upper limit in %": {
            "at most": 0.15,
            "stretch": 0.05,
            "value": 100 * limit,
            "misconverged": wrong,
            "runs": runs,
            "largest error": largest,
        },
        "runs on minilm that did not converge, in %": {
            "at most": 0.5,
            "stretch": 0.1,
            "value": 100 * (runs - len(off)) / runs,
        },
    }


def _dense_tops(runs: int = 100, size: int = 2000, tol: float = 1e-4) -> dict[str, Any]:
    """Spectra that are dense or equal at their top, where a small residual says little."""
    one = torch.ones(size, dtype=torch.float64)
    line = torch.linspace(1, 0, size, dtype=torch.float64)
    found: dict[str, Any] = {}
    for name, values in {
        "linspace(1, 0)": line,
        "ten equal, then 0.999": torch.cat([one[:10], 0.999 * one[:1], 0.9 * line[11:]]),
    }.items():
        run = spectral_norm(_diagonal(values, runs), tol=tol)
        off = (1 - torch.as_tensor(run.lower))[torch.as_tensor(run.converged)]
        found[f"converged runs off by more than twice their tolerance, {name}, in %"] = {
            "at most": 1.0,
            "value": 100 * float((off > 2 * tol).double().mean()) if len(off) else 0.0,
            "largest error": float(off.max()) if len(off) else 0.0,
            "runs": len(off),
            "pairs": float(torch.as_tensor(run.pairs).double().mean()),
        }
    return found


def _crossings(runs: int = 200, size: int = 1500) -> dict[str, Any]:
    """A value that overtakes the largest by 0.1, 1 and 3 %: a warm search misses it no more often
    than a cold one (in %, the difference).
    """
    rest = torch.linspace(0.9, 0, size - 2, dtype=torch.float64)
    found: dict[str, Any] = {}
    for ahead in (1e-3, 1e-2, 3e-2):
        before, now = (
            torch.cat([torch.tensor([1.0, 1 + sign * ahead], dtype=torch.float64), rest])
            for sign in (-1, 1)
        )
        first = spectral_norm(_diagonal(before, runs), tol=TOLERANCE)
        shares = []
        for near in (None, Near(first.around, (2,))):
            run = spectral_norm(_diagonal(now, runs), tol=TOLERANCE, near=near)
            off = 1 - torch.as_tensor(run.lower) / float(now.max())
            wrong = (off > 2 * TOLERANCE) & torch.as_tensor(run.converged)
            shares.append(100 * float(wrong.double().mean()))
        found[f"overtaken by {100 * ahead:g} %: missed warm minus missed cold, in %"] = {
            "at most": 5.0,
            "value": shares[1] - shares[0],
            "cold": shares[0],
            "warm": shares[1],
        }
    return found


def _diagonal(values: Tensor, runs: int) -> LinearOperator:
    def product(u: Tensor) -> Tensor:
        return u * values

    shape, device = (len(values),), values.device
    return LinearOperator(product, product, shape, shape, values.dtype, device, (runs,))
