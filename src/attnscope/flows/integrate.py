r"""`flow`: the Transformer PDE $\partial_t \mu + \mathrm{div}(\mu\,\Gamma_\mu) = 0$, by particles
or by Gaussians.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention
from attnscope.flows.fast import Interpolated
from attnscope.flows.motions import Array, CloudMotion, GaussianMotion, Motion
from attnscope.flows.solver import METHODS, Run, Segment
from attnscope.flows.spaces import Space, check_on
from attnscope.flows.trajectory import Measure, Trajectory
from attnscope.measures import Gaussian, Particles
from attnscope.validation import check_positive, described

Schedule = Attention | Sequence[Attention] | Callable[[float], Attention]


def flow(
    attention: Schedule,
    measure: Measure,
    times: Sequence[float] | Tensor,
    rtol: float = 1e-8,
    atol: float = 1e-10,
    space: Space | None = None,
    *,
    method: str = "DOP853",
    settle: float | None = 1e-6,
    fast: float | None = None,
    progress: Callable[[float], object] | None = None,
    max_steps: int = 5_000,
) -> Trajectory[Measure]:
    r"""Move every token with the velocity $x' = \Gamma_{\mu_t}(x)$ from the first of `times` to the
    last [castin25].

    `attention` is one attention, a list (layers, each for an equal share of the time) or a function
    of time. A Gaussian flows through its closed form, its covariance in the cone by construction. A
    stack is one integration; each member ends by itself. `space` keeps particles on a `Sphere` or
    `Ellipsoid`. The solver works in float64; states come back in the dtype of `measure`.

    A flow that blows up stops there. A flow of a constant attention that has come to rest (it would
    move by less than `settle` times its size in the time left: an estimate) is "converged";
    `settle=None` turns that off. A flow that needs more than `max_steps` steps has "failed". `fast`
    is the relative error of the field, an estimate, that interpolation may make on large clouds in
    dimension <= 3: `rtol` by default, 0 for the exact field always. `progress(t)` is called after
    each step; when it returns False the flow stops. Whatever happens, what was computed is kept.
    """
    asked = checked_times(times)
    _check_options(rtol, atol, method, settle, fast)
    segments = _segments(attention, measure, asked)
    if isinstance(measure, Gaussian):
        if space is not None:
            raise ValueError(
                "a Gaussian does not live on a surface. Put particles on it: mu.at(space(mu.x)) of"
                " gaussian.sample(n, generator=seed)."
            )
        motion: Motion = GaussianMotion(measure)
    else:
        if space is not None:
            check_on(space, measure)
        interpolated = Interpolated.serving(
            segments[0].attention(asked[0]), measure, rtol if fast is None else fast
        )
        motion = CloudMotion(measure, space, interpolated)
    run = Run(
        motion,
        asked,
        method,
        rtol,
        atol,
        settle if isinstance(attention, Attention) else None,
        progress,
        max_steps,
    )
    # weights may require gradients, but the solver is SciPy's: nothing goes back through it
    with torch.no_grad():
        run.through(segments)
    return _trajectory(run, motion)


def _trajectory(run: Run, motion: Motion) -> Trajectory[Any]:
    outcomes = tuple(outcome for outcome in run.outcomes if outcome is not None)
    stop = max(outcome.time for outcome in outcomes)
    rows, times = list(run.asked), list(run.times[: len(run.asked)])
    if len(rows) < len(run.times) and times[-1] < stop:
        rows.append(run.y)
        times.append(stop)
    states: tuple[Any, ...] = tuple(motion.state(row) for row in rows)
    return Trajectory(
        torch.tensor(times, dtype=torch.float64),
        states,
        outcomes,
        run.evaluations,
        motion.field_error,
    )


def _segments(attention: Schedule, measure: object, times: Array) -> list[Segment]:
    """The attention as a function of time, cut where it jumps; every attention that can be seen is
    checked against the measure.
    """
    if isinstance(attention, Attention):
        exact = fitting(attention, measure)
        return [Segment(float(times[-1]), partial(_constant, exact))]
    if isinstance(attention, Sequence):
        if len(attention) == 0:
            raise ValueError("attention must hold at least one layer, got an empty list.")
        stops = np.linspace(times[0], times[-1], len(attention) + 1)[1:]
        layers = [fitting(layer, measure) for layer in attention]
        return [
            Segment(float(stop), partial(_constant, layer))
            for stop, layer in zip(stops, layers, strict=True)
        ]
    if not callable(attention):
        raise TypeError(
            "attention must be an Attention, a list of them or a function of time, got"
            f" {described(attention)}."
        )
    at = attention
    return [Segment(float(times[-1]), lambda t: fitting(at(t), measure))]


def _constant(attention: Attention, t: float) -> Attention:
    return attention


def fitting(attention: object, measure: object) -> Attention:
    """The attention in float64, refused when it does not fit the measure."""
    if not isinstance(attention, Attention):
        raise TypeError(
            f"expected an Attention, got {described(attention)}. Build one with"
            " Softmax(Heads.from_matrices(A, V))."
        )
    if isinstance(measure, Gaussian):
        first = Gaussian(
            measure.mean.reshape(-1, measure.dim)[0],
            measure.cov.reshape(-1, measure.dim, measure.dim)[0],
        )
        attention.affine(first)
    elif isinstance(measure, Particles):
        attention.check(measure.x, measure)
    else:
        raise TypeError(f"measure must be a Particles or a Gaussian, got {described(measure)}.")
    return attention.to(torch.float64)


def checked_times(times: Sequence[float] | Tensor) -> Array:
    asked = np.asarray(
        times.detach().cpu() if isinstance(times, Tensor) else times, dtype=np.float64
    )
    if asked.ndim != 1 or len(asked) < 2:
        raise ValueError(
            "times must be a list of at least two numbers, the start and the end, got"
            f" {described(times)}."
        )
    if not np.isfinite(asked).all() or not (np.diff(asked) > 0).all():
        raise ValueError(
            f"times must be finite and increasing, got {described(times)}. Sort them and remove"
            " repetitions."
        )
    return asked


def check_tolerances(rtol: float, atol: float) -> None:
    check_positive("rtol", rtol)
    check_positive("atol", atol)


def _check_options(
    rtol: float, atol: float, method: str, settle: float | None, fast: float | None
) -> None:
    check_tolerances(rtol, atol)
    if settle is not None:
        check_positive("settle", settle)
    if fast is not None and not (isinstance(fast, int | float) and 0 <= fast < math.inf):
        raise ValueError(
            "fast must be the relative error that the field may have, 0 for the exact field, got"
            f" {described(fast)}."
        )
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
