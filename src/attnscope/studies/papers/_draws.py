"""What the figures on indefinite scores share: many random draws of Q, K and V, and what became of
all covariances of a grid under each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attnscope.attention import Attention
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, COLOURS, GREY, RED
from attnscope.studies.papers._covariances import (
    RANK_ONE,
    Array,
    entries,
    grid,
    matrix,
    moved,
    normal,
    ratio,
    scores,
    single,
    trace,
)
from attnscope.studies.papers._figure import PaperFigure, drawn
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

GROWN = 1e3
"""A covariance that grew by this factor without coming to rest is not bounded."""
MOST = 1e30
"""Larger entries do not fit into the paths that are kept for pictures."""
MOST_STEPS = 400
"""Of the solver: what then neither rests nor has grown may turn for ever, and is not told."""
KINDS = ("bounded", "some of each", "unbounded", "not told")
SHADES = dict(zip(KINDS, (BLUE, COLOURS[4], RED, GREY), strict=True))


class Draw(NamedTuple):
    """What became of all starts under one draw of matrices. Paths are (times, starts, 3)."""

    attention: str
    draw: int
    starts: int
    rested: int
    """Starts that came to rest: their limits are bounded."""
    exploded: int
    """Starts that blew up, or grew a thousandfold."""
    rank_one: int
    """Of those that came to rest."""
    isotropy: float
    r"""Largest $|p^T A p| / |A|$ of the limits' main directions p; NaN where none rested."""
    paths: np.ndarray
    unbounded: np.ndarray
    """Which starts exploded."""

    @property
    def kind(self) -> str:
        """One of KINDS."""
        if self.rested + self.exploded < self.starts:
            return KINDS[3]
        return KINDS[0] if self.exploded == 0 else KINDS[1] if self.rested else KINDS[2]


@dataclass(frozen=True)
class DrawsConfig:
    """Draws of Q, K (with an indefinite symmetric part) and V, all normal; starts as in the other
    figures, on the whole disc.
    """

    draws: int = 100
    points: int = 20
    limit: float = 1.0
    end: float = 1e3
    steps: int = 40
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DrawCell(DrawsConfig, Cell):
    attention: str
    draw: int


class DrawsFigure(PaperFigure):
    paper = "castin25"
    tables: ClassVar[dict[str, type]] = {"results": Draw}

    def attentions(self, config: Any, draw: int) -> dict[str, Attention]:
        """Those of one draw of matrices."""
        return attentions(config.seed, draw)

    def cells(self, config: Any, workbench: Workbench) -> Iterable[DrawCell]:
        check_positive("end", config.end)
        check_positive("draws", config.draws)
        grid(config.points, config.limit)
        for draw in range(config.draws):
            for name in ("softmax", "L2"):
                # how many other draws there are changes nothing in this one
                told = asdict(config) | {"draws": 1}
                yield DrawCell(**told, attention=name, draw=draw)

    def run(self, cell: DrawCell, workbench: Workbench) -> list[Draw]:
        attention = self.attentions(cell, cell.draw)[cell.attention]
        what = f"{cell.attention}, draw {cell.draw}"
        starts = grid(cell.points, cell.limit)
        got = moved(attention, starts, cell.end, cell.steps, workbench, what, MOST_STEPS)
        paths, status = entries(got), np.array([outcome.status for outcome in got.outcomes])
        rested = status == "converged"
        exploded = (status == "blew up") | (~rested & (trace(paths[-1]) > GROWN * trace(paths[0])))
        limits = paths[-1, rested]
        return [
            Draw(
                cell.attention,
                cell.draw,
                len(starts),
                int(rested.sum()),
                int(exploded.sum()),
                int((ratio(limits) < RANK_ONE).sum()),
                isotropy(attention, limits),
                np.clip(paths, -MOST, MOST).astype(np.float32),
                exploded,
            )
        ]


def attentions(seed: int, draw: int) -> dict[str, Attention]:
    generator = drawn(seed, draw)
    q, k = scores(generator, False)
    return single(q, k, normal(generator, 2, 2))


def isotropy(attention: Attention, limits: Array) -> float:
    r"""Largest $|p^T A p| / |A|$ over the main directions p of these covariances."""
    if not len(limits):
        return float("nan")
    a = attention.heads.a[0].numpy()
    p = np.linalg.eigh(matrix(limits)).eigenvectors[..., -1]
    return float(np.abs(np.einsum("mi,ij,mj->m", p, a, p)).max() / np.linalg.norm(a, 2))


def by_draw(table: Table) -> list[dict[str, Draw]]:
    """The rows of each draw, by attention; draws that are not whole are left out."""
    found: dict[int, dict[str, Draw]] = {}
    for row in table:
        found.setdefault(row.draw, {})[row.attention] = row
    return [rows for rows in found.values() if len(rows) == 2]


def paths_of(row: Draw) -> list[tuple[Array, bool]]:
    """The paths of a draw, and which exploded."""
    return [
        (row.paths[:, start].astype(np.float64), bool(row.unbounded[start]))
        for start in range(row.starts)
    ]


def draw_shares(ax: Any, draws: list[dict[str, Draw]]) -> None:
    """How many draws end how, for each attention, as bars."""
    names = ("softmax", "L2")
    left = np.zeros(len(names))
    for kind in KINDS:
        width = np.array([sum(rows[name].kind == kind for rows in draws) for name in names])
        if width.any():
            ax.barh(names, width, left=left, color=SHADES[kind], label=kind, height=0.55)
        left += width
    ax.set(xlabel="draws", title=f"all {len(draws)} draws", xlim=(0, max(len(draws), 1)))
    ax.grid(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=4)
