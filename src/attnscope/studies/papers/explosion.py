"""Figure "blow-up or divergence": scores with a positive symmetric part, V = I. Softmax and two
heads blow up in finite time, L2 and Sinkhorn only grow [castin25].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attnscope.attention import Attention
from attnscope.studies.papers._covariances import (
    Array,
    GridConfig,
    GridFigure,
    Path,
    draw_in_disc,
    first_draw,
    matrix,
    panels,
    scores,
    single,
    trace,
    two_heads,
)
from attnscope.studies.papers._figure import between, drawn, every
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table

SAME_TIME = 1e-3
STEADY = 0.1
"""Growth is exponential when its rate changes by less than this between the last two quarters."""


@dataclass(frozen=True)
class ExplosionConfig(GridConfig):
    points: int = 40
    limit: float = 1.0
    end: float = 8.0


class Explosion(GridFigure):
    """Scores with a positive symmetric part: softmax blows up in finite time, L2 and Sinkhorn
    attention grow exponentially.
    """

    name = "explosion"
    figure = "blow-up or divergence"
    topic = "dynamics"
    seconds = (5, 900)
    Config = ExplosionConfig
    fast = ExplosionConfig(points=4, draws=3)

    def attentions(self, config: Any) -> dict[str, Attention]:
        """Q and K normal, drawn until the symmetric part of K^T Q is positive; V = I."""
        (q, k), v = scores(drawn(config.seed), True), torch.eye(2, dtype=torch.float64)
        made = single(q, k, v)
        return {
            "softmax": made["softmax"],
            "two heads": two_heads(q, k, v),
            "L2": made["L2"],
            "Sinkhorn": made["Sinkhorn"],
        }

    def figures(self, table: Table) -> dict[str, Any]:
        shown = {
            name: [(row.path, row.status == "blew up") for row in rows]
            for name, rows in first_draw(table).items()
        }
        return {self.name: draw_in_disc(shown, "$A_s > 0$, $V = I$: blow-up or growth")}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for name, rows in panels(table).items():
            if name in ("softmax", "two heads"):
                made.append(_blows_up(name, rows))
            else:
                made.append(_grows(name, rows))
            if name == "softmax":
                seeds = dict.fromkeys(row.draw for row in rows)
                matrices = {
                    seed: self.attentions(replace(table.config, seed=seed))[name].heads.a[0].numpy()
                    for seed in seeds
                }
                made.append(_in_time(rows, matrices))
        return made


def _blows_up(name: str, rows: list[Path]) -> Verdict:
    times = [row.stop_time for row in rows if row.status == "blew up"]
    told = {"blew up": True, "converged": False}
    draws = len({row.draw for row in rows})
    return Verdict(
        f"{name}: every covariance blows up in finite time",
        "all do",
        f"{len(times)} of {len(rows)} starts in {draws} draws, at t = {between(times, '.3g')}",
        every(told.get(row.status) for row in rows),
        "a flow that comes to rest refutes it; one that neither rests nor blows up tells nothing",
    )


def _in_time(rows: list[Path], matrices: dict[int, Array]) -> Verdict:
    r"""$T^* = 1 / (2 \lambda_{max}(S_0 A_s))$, an eigenvalue of the same matrix as that of
    $S_0^{1/2} A_s S_0^{1/2}$.
    """
    apart = []
    for row in rows:
        a = matrices[row.draw]
        top = np.linalg.eigvals(matrix(row.path[0]) @ (a + a.T) / 2).real.max()
        apart.append(abs(2 * top * row.stop_time - 1) if row.status == "blew up" else np.inf)
    return Verdict(
        "softmax: the time of the blow-up is 1/(2 lambda_max(S_0 A_s))",
        "exact for V = I",
        f"relative errors {between(apart)}",
        max(apart) < SAME_TIME,
        f"errors below {SAME_TIME:g} count as none",
    )


def _grows(name: str, rows: list[Path]) -> Verdict:
    rates, told = [], list[bool | None]()
    for row in rows:
        logs = np.log(trace(row.path))
        half, later, end = np.interp(np.array([0.5, 0.75, 1.0]) * row.times[-1], row.times, logs)
        before, rate = 4 * (later - half) / row.times[-1], 4 * (end - later) / row.times[-1]
        rates.append(float(rate))
        if row.status == "blew up" or rate <= 0:
            told.append(False)
        else:
            told.append(True if abs(rate / before - 1) < STEADY else None)
    return Verdict(
        f"{name}: every covariance grows exponentially, none blows up",
        "all do",
        f"rates of the trace {between(rates, '.3g')}, {len(rows)} starts",
        every(told),
        f"the rate changes by less than {STEADY:.0%} between the last two quarters of the time",
    )
