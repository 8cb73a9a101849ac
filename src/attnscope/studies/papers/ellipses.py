"""Figure "ellipses": two covariances in time, one that clusters onto a line and one that blows up
[castin25].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.flows import flow
from attnscope.measures import Gaussian
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import MAP, new_figure
from attnscope.studies.papers._covariances import Array, entries, matrix, ratio
from attnscope.studies.papers._figure import PaperFigure, between, falls
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench

START = ((1.0, 0.3), (0.3, 0.6))
FLAT = 1e-2
EXACT = 1e-5
CASES = ("clustering", "blow-up")


class Ellipse(NamedTuple):
    """A covariance at one time."""

    case: str
    time: float
    s11: float
    s12: float
    s22: float


@dataclass(frozen=True)
class EllipsesConfig:
    """The angle is that of q; `end` the time of the clustering, `until` the share of the time of
    blow-up that is shown.
    """

    angle: float = 0.5
    frames: int = 7
    end: float = 200.0
    until: float = 0.93


@dataclass(frozen=True, kw_only=True)
class EllipsesCell(EllipsesConfig, Cell):
    case: str


class Ellipses(PaperFigure):
    """Two covariances in time: one clusters onto a line, one blows up in finite time."""

    name = "ellipses"
    paper = "castin25"
    figure = "ellipses"
    topic = "dynamics"
    seconds = (1, 1)
    Config = EllipsesConfig
    fast = EllipsesConfig()
    tables: ClassVar[dict[str, type]] = {"results": Ellipse}

    def cells(self, config: EllipsesConfig, workbench: Workbench) -> Iterable[EllipsesCell]:
        if config.frames < 3 or not 0 < config.until < 1 or not config.end > 0.2:
            raise ValueError(
                "there are at least 3 frames, until lies in (0, 1) and end is above 0.2, got"
                f" {config}."
            )
        for case in CASES:
            yield EllipsesCell(**asdict(config), case=case)

    def run(self, cell: EllipsesCell, workbench: Workbench) -> list[Ellipse]:
        r"""Softmax with V = I: $A = -qq^T$ flattens the ellipse across q, $A = qq^T$ stretches it
        to infinity at a known time.
        """
        q = torch.from_numpy(_row(cell.angle))
        sign = -1.0 if cell.case == CASES[0] else 1.0
        attention = Softmax(
            Heads.from_matrices(sign * torch.outer(q, q), torch.eye(2, dtype=torch.float64))
        )
        start = Gaussian(
            torch.zeros(2, dtype=torch.float64), torch.tensor(START, dtype=torch.float64)
        )
        times = (
            [0.0, *np.geomspace(0.2, cell.end, cell.frames - 1)]
            if cell.case == CASES[0]
            else np.linspace(0, cell.until * blow_up(cell.angle), cell.frames).tolist()
        )
        got = flow(attention, start, times, settle=None)
        pairs = zip(got.times.tolist(), entries(got).tolist(), strict=True)
        return [Ellipse(cell.case, time, *entry) for time, entry in pairs]

    def figures(self, table: Table) -> dict[str, Any]:
        from matplotlib import colormaps

        figure = new_figure(10, 4)
        cases = [case for case in CASES if _of(table, case)]
        for place, case in enumerate(cases, start=1):
            ax = figure.add_subplot(1, len(cases), place, aspect="equal")
            rows = _of(table, case)
            shades = colormaps[MAP](np.linspace(0, 0.9, len(rows)))
            for row, shade in zip(rows, shades, strict=True):
                around = outline(np.array(row[2:]))
                ax.plot(*around.T, color=shade, linewidth=1.5, label=f"t = {row.time:.3g}")
            ax.set(title=f"softmax, $V = I$: {case}", xlabel="$x_1$", ylabel="$x_2$")
            ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        flat, tall = (_of(table, case) for case in CASES)
        if len(flat) > 1:
            end, before = (float(ratio(np.array(row[2:]))) for row in (flat[-1], flat[-2]))
            made.append(
                Verdict(
                    "A = -qq^T: the ellipse goes to a segment across q",
                    "it clusters",
                    f"ratio of the eigenvalues {end:.2e} at t = {flat[-1].time:g}",
                    falls(end, before, FLAT),
                    f"below {FLAT:g} counts as flat",
                )
            )
        if tall:
            apart = [distance_to_exact(row, table.config.angle) for row in tall]
            made.append(
                Verdict(
                    "A = qq^T: S(t) = S_0^(1/2) (I - 2tM)^(-1) S_0^(1/2), which blows up",
                    f"at t = {blow_up(table.config.angle):.4g}",
                    f"relative distances to the formula {between(apart)}",
                    max(apart) < EXACT,
                    f"below {EXACT:g} counts as none",
                )
            )
        return made


def _of(table: Table, case: str) -> list[Ellipse]:
    return [row for row in table if row.case == case]


def _row(angle: float) -> Array:
    return np.array([np.cos(angle), np.sin(angle)])


def blow_up(angle: float) -> float:
    """When the second ellipse is infinite: 1 / (2 q^T S_0 q)."""
    q = _row(angle)
    return float(1 / (2 * q @ np.array(START) @ q))


def distance_to_exact(row: Ellipse, angle: float) -> float:
    """From the closed form (I - 2t S_0 A_s)^(-1) S_0, relative."""
    start, q = np.array(START), _row(angle)
    exact = np.linalg.solve(np.eye(2) - 2 * row.time * start @ np.outer(q, q), start)
    return float(np.linalg.norm(matrix(np.array(row[2:])) - exact) / np.linalg.norm(exact))


def outline(entry: Array, points: int = 120) -> Array:
    """The ellipse of all points one standard deviation from the origin."""
    angle = np.linspace(0, 2 * np.pi, points)
    values, vectors = np.linalg.eigh(matrix(entry))
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return circle * np.sqrt(values.clip(min=0)) @ vectors.T
