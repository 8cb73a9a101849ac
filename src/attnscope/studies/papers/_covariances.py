r"""What the covariance figures share: unit-trace starts on a grid, the attentions of the authors'
settings, and how to draw flows in the cone of 2 x 2 covariances [castin25].

A covariance has the coordinates $(s_{11} - s_{22}, 2 s_{12}, s_{11} + s_{22})$: the cone $z \ge
\sqrt{x^2 + y^2}$, rank one on its boundary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.sinkhorn import Sinkhorn
from attnscope.attention.softmax import Softmax
from attnscope.flows import Trajectory, flow
from attnscope.measures import Gaussian
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, GREY, RED, new_figure
from attnscope.studies.papers._figure import PaperFigure, every, share
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

Array = NDArray[np.float64]
SHARD = 20
"""Starts that are one cell."""
RANK_ONE = 1e-3
"""A limit has rank one when its second eigenvalue is below this share of its first."""


class Path(NamedTuple):
    """One covariance in time: how it ended, and where it was at `times` (array (times, 3))."""

    attention: str
    draw: int
    """The seed of the matrices."""
    start: int
    status: str
    stop_time: float
    s11: float
    s12: float
    s22: float
    times: np.ndarray
    path: np.ndarray


@dataclass(frozen=True)
class GridConfig:
    """Starts on a `points` x `points` grid of the square [-limit, limit]^2, those inside the unit
    disc; times grow geometrically to `end`. Matrices are drawn `draws` times, from the seeds
    `seed`, `seed` + 1, ...: no draw is chosen.
    """

    points: int = 10
    limit: float = 0.5
    end: float = 1e4
    steps: int = 61
    seed: int = 0
    draws: int = 20


@dataclass(frozen=True, kw_only=True)
class GridCell(GridConfig, Cell):
    """The starts from number `first` on, up to SHARD of them."""

    attention: str
    first: int


class GridFigure(PaperFigure):
    """A figure of covariances that start on the grid, under one or several attentions."""

    paper = "castin25"
    tables: ClassVar[dict[str, type]] = {"results": Path}
    method: ClassVar[str] = "DOP853"

    @abstractmethod
    def attentions(self, config: Any) -> dict[str, Attention]:
        """The panels, from the seed."""

    def cells(self, config: Any, workbench: Workbench) -> Iterable[GridCell]:
        check_positive("end", config.end)
        check_positive("draws", config.draws)
        count = len(grid(config.points, config.limit))
        for seed in range(config.seed, config.seed + config.draws):
            told = asdict(config) | {"seed": seed, "draws": 1}
            for name in self.attentions(config):
                for first in range(0, count, SHARD):
                    yield GridCell(**told, attention=name, first=first)

    def run(self, cell: GridCell, workbench: Workbench) -> list[Path]:
        starts = grid(cell.points, cell.limit)[cell.first : cell.first + SHARD]
        attention = self.attentions(cell)[cell.attention]
        got = moved(
            attention, starts, cell.end, cell.steps, workbench, cell.attention, method=self.method
        )
        paths = entries(got)
        return [
            Path(
                attention=cell.attention,
                draw=cell.seed,
                start=cell.first + member,
                status=outcome.status,
                stop_time=float(outcome.time),
                s11=float(paths[-1, member, 0]),
                s12=float(paths[-1, member, 1]),
                s22=float(paths[-1, member, 2]),
                times=got.times.numpy(),
                path=paths[:, member],
            )
            for member, outcome in enumerate(got.outcomes)
        ]


def grid(points: int, limit: float) -> Float[Tensor, "m 2 2"]:
    """Unit-trace covariances [[(1+u)/2, w/2], [w/2, (1-u)/2]], (u, w) in the open unit disc."""
    if points < 1 or not 0 < limit <= 1:
        raise ValueError(
            f"a grid has at least one point and a limit in (0, 1], got {points} and {limit}."
        )
    side = torch.linspace(-limit, limit, points, dtype=torch.float64)
    if points == 1:
        side = torch.zeros(1, dtype=torch.float64)
    u, w = torch.cartesian_prod(side, side).reshape(-1, 2).unbind(-1)
    inside = u.square() + w.square() < 1 - 1e-9
    u, w = u[inside], w[inside]
    return torch.stack([(1 + u) / 2, w / 2, w / 2, (1 - u) / 2], dim=-1).reshape(-1, 2, 2)


def moved(
    attention: Attention,
    starts: Float[Tensor, "m 2 2"],
    end: float,
    steps: int,
    workbench: Workbench,
    what: str,
    max_steps: int = 5000,
    method: str = "DOP853",
) -> Trajectory[Gaussian]:
    """The flow of all starts, at time 0 and at times that grow geometrically to `end`."""
    times = torch.cat(
        [
            torch.zeros(1, dtype=torch.float64),
            torch.logspace(-3, 0, steps, dtype=torch.float64) * end,
        ]
    )
    start = Gaussian(torch.zeros(len(starts), 2, dtype=torch.float64), starts)

    def going(t: float) -> bool:
        # steps grow with time, so that the logarithm tells how much is done
        workbench.check(np.log1p(1e3 * t / end) / np.log1p(1e3), what)
        return True

    return flow(
        attention,
        start,
        times,
        rtol=1e-6,
        atol=1e-9,
        method=method,
        progress=going,
        max_steps=max_steps,
    )


def entries(got: Trajectory[Gaussian]) -> Array:
    """(s11, s12, s22) at all times of all members."""
    cov = got.cov.numpy()
    return np.stack([cov[..., 0, 0], cov[..., 0, 1], cov[..., 1, 1]], axis=-1)


def single(
    q: Float[Tensor, "k 2"], k: Float[Tensor, "k 2"], v: Float[Tensor, "2 2"]
) -> dict[str, Attention]:
    """The authors' scalings: softmax divides scores by the root of the dimension, L2 its queries
    alone, Sinkhorn nothing.
    """
    query, key, value = q[None], k[None], v[None]
    return {
        "softmax": Softmax(Heads(query, key, value, scale=2**-0.5)),
        "L2": L2(Heads(query / 2**0.5, key, value, scale=1.0)),
        "Sinkhorn": Sinkhorn(Heads(query, key, value, scale=1.0)),
    }


def two_heads(
    q: Float[Tensor, "2 2"], k: Float[Tensor, "2 2"], v: Float[Tensor, "2 2"]
) -> Attention:
    """Head h has row h of Q, of K and of V, and writes coordinate h."""
    eye = torch.eye(2, dtype=torch.float64)
    return Softmax(Heads(q[:, None], k[:, None], v[:, None], eye[:, :, None]))


def scores(generator: torch.Generator, definite: bool) -> tuple[Tensor, Tensor]:
    """Normal Q and K, drawn until the symmetric part of K^T Q is positive, or indefinite."""
    while True:
        q, k = (normal(generator, 2, 2) for _ in range(2))
        a = k.mT @ q
        low, high = torch.linalg.eigvalsh(a + a.mT)
        if (low > 0) if definite else (low * high < 0):
            return q, k


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def matrix(entry: Array) -> Array:
    """The covariance with these (s11, s12, s22)."""
    a, b, c = np.moveaxis(np.asarray(entry, dtype=np.float64), -1, 0)
    return np.stack([np.stack([a, b], -1), np.stack([b, c], -1)], -2)


def ratio(entry: Array) -> Array:
    """The smaller eigenvalue over the larger one."""
    low, high = np.moveaxis(np.linalg.eigvalsh(matrix(entry)), -1, 0)
    return np.asarray(low.clip(min=0) / high.clip(min=1e-300))


def trace(entry: Array) -> Array:
    return np.asarray(entry[..., 0] + entry[..., 2])


def earlier(row: Path, share: float = 0.1) -> Array:
    """(s11, s12, s22) at this share of the time of the flow."""
    place = np.searchsorted(row.times, share * row.times[-1] * (1 + 1e-9), side="right") - 1
    return row.path[place]


def cone(entry: Array) -> Array:
    """The coordinates of covariances in the cone."""
    a, b, c = np.moveaxis(np.asarray(entry), -1, 0)
    return np.stack([a - c, 2 * b, a + c], axis=-1)


def panels(table: Table) -> dict[str, list[Path]]:
    """The rows of each attention, in the order of the run."""
    found: dict[str, list[Path]] = {}
    for row in table:
        found.setdefault(row.attention, []).append(row)
    return found


def first_draw(table: Table) -> dict[str, list[Path]]:
    """What is shown: the first draw of matrices."""
    return {
        name: [row for row in rows if row.draw == table.config.seed]
        for name, rows in panels(table).items()
    }


def by_draw(rows: Sequence[Path], told: Callable[[Path], bool | None]) -> tuple[bool | None, str]:
    """Whether something holds of every start of every draw, and of how many draws."""
    found: dict[int, list[bool | None]] = {}
    for row in rows:
        found.setdefault(row.draw, []).append(told(row))
    outcomes = [every(values) for values in found.values()]
    return every(outcomes), f"all starts in {share(outcomes.count(True), len(outcomes))} draws"


def draw_in_cone(shown: Mapping[str, Sequence[Array]], title: str) -> Any:
    """One cone per panel, from paths of (s11, s12, s22): grey, starts in blue, ends in red."""
    figure = new_figure(4.4 * max(len(shown), 1.2), 4.6)
    figure.set_layout_engine(None)  # the usual one knows nothing of three dimensions
    figure.subplots_adjust(left=0.02, right=0.94, bottom=0.08, top=0.84, wspace=0.22)
    figure.suptitle(title)
    for place, (name, paths) in enumerate(shown.items(), start=1):
        ax = figure.add_subplot(1, len(shown), place, projection="3d")
        lines = [cone(path) for path in paths]
        top = max(float(line[:, 2].max()) for line in lines)
        turn, height = np.linspace(0, 2 * np.pi, 61)[None], np.array([0.0, top])[:, None]
        surface = (height * np.cos(turn), height * np.sin(turn), height + 0 * turn)
        ax.plot_surface(*surface, color=GREY, alpha=0.12, linewidth=0)
        for line in lines:
            ax.plot(*line.T, color=GREY, linewidth=0.7)
        looks = ((0, BLUE, 8, "o", "start"), (-1, RED, 14, "^", "end"))
        for end, color, size, marker, label in looks:
            points = np.stack([line[end] for line in lines])
            ax.scatter(*points.T, s=size, color=color, marker=marker, label=label, depthshade=False)
        ax.set(title=name, xlabel="$s_{11} - s_{22}$", ylabel="$2 s_{12}$")
        ax.set(xlim=(-top, top), ylim=(-top, top), zlim=(0, top))
        ax.set_zlabel("trace")
        ax.view_init(elev=18, azim=-60)
        ax.locator_params(nbins=4)
        if place == 1:
            ax.legend(loc="upper left")
    return figure


def draw_in_disc(
    shown: Mapping[str, Sequence[tuple[Array, bool]]], title: str, word: str = "blow up"
) -> Any:
    """One disc per panel: S / tr S along the flow, rank one on the circle. Paths that are marked
    (`word` says why) end in red, others in blue.
    """
    from matplotlib.patches import Circle

    figure = new_figure(3.9 * max(len(shown), 1.3), 4.5)
    figure.suptitle(title)
    for place, (name, paths) in enumerate(shown.items(), start=1):
        ax = figure.add_subplot(1, len(shown), place, aspect="equal")
        ax.add_patch(Circle((0, 0), 1, fill=False, color="black", linewidth=0.8))
        for path, marked in paths:
            line = cone(path)
            line = line[:, :2] / line[:, 2:]
            ax.plot(*line.T, color=GREY, linewidth=0.7, zorder=1)
            color, marker = (RED, "^") if marked else (BLUE, "o")
            ax.scatter(*line[-1], s=16, color=color, marker=marker, zorder=2)
        blown = sum(marked for _, marked in paths)
        ax.set(title=f"{name}: {blown} of {len(paths)} {word}", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
        ax.set(xlabel="$(s_{11} - s_{22})/$trace", ylabel="$2 s_{12}/$trace")
        ax.locator_params(nbins=5)
    return figure
