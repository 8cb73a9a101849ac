"""Every figure of the papers, at small size: its verdicts hold, a planted wrong row is found, and
it is drawn from its rows alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from attnscope.studies import Study, Table, Workbench, drawing
from attnscope.studies import find as find_studies
from attnscope.studies.papers import find
from attnscope.studies.papers._draws import DrawsConfig
from attnscope.studies.papers.ellipses import EllipsesConfig
from attnscope.studies.papers.explosion import ExplosionConfig
from attnscope.studies.papers.gaussian_against_particles import QUADRATURE, AgreementConfig
from attnscope.studies.papers.line import LineConfig
from attnscope.studies.papers.mean_field import MeanFieldConfig
from attnscope.studies.papers.plane import PlaneConfig
from attnscope.studies.papers.point_cloud_flow import CloudConfig
from attnscope.studies.papers.rank_histogram import RankConfig
from attnscope.studies.papers.sphere_clustering import SphereConfig
from attnscope.studies.papers.to_zero import ToZeroConfig
from attnscope.studies.study import check_row, same

FIGURES = find()
TINY: dict[str, Any] = {
    "ellipses": EllipsesConfig(),
    "explosion": ExplosionConfig(points=1),
    "gaussian_against_particles": AgreementConfig(
        sizes=(20, 400), repeats=4, names=("softmax", "l2")
    ),
    "line": LineConfig(points=2),
    "mean_field": MeanFieldConfig(
        sizes=(8, 128), reference=256, repeats=3, names=("softmax", "linear")
    ),
    "mixed": DrawsConfig(draws=8, points=3, limit=0.9),
    "plane": PlaneConfig(points=2),
    "point_cloud_flow": CloudConfig(n=4, blocks=6, steps=50, batch=48, held=96, fitted=4000),
    "rank_histogram": RankConfig(dims=(3,), runs=2),
    "sphere_clustering": SphereConfig(n=24, betas=(1.0, 9.0), end=30.0, frames=20),
    "to_zero": ToZeroConfig(points=1),
    "two_lines": DrawsConfig(draws=8, points=3, limit=0.9),
}
CHOSEN = {"mixed": (7,), "two_lines": (6,)}
"""The draws of matrices that are computed here: one in which softmax does both, one in which
everything stays bounded. The verdicts say how rare they are.
"""


def chosen(name: str) -> list[Any]:
    cells = list(FIGURES[name].cells(TINY[name], Workbench()))
    return [cell for cell in cells if name not in CHOSEN or cell.draw in CHOSEN[name]]


@cache
def rows_of(name: str) -> tuple[Any, ...]:
    study, workbench = FIGURES[name], Workbench()
    return tuple(row for cell in chosen(name) for row in study.run(cell, workbench))


def table_of(name: str, rows: tuple[Any, ...] | list[Any]) -> Table:
    study: Study = FIGURES[name]
    kinds: dict[str, list[Any]] = {kind: [] for kind in study.tables}
    for row in rows:
        check_row(row)
        kinds[study.kind(row)].append(row)
    return Table(study, TINY[name], kinds)


def test_every_figure_is_found_and_tested_here() -> None:
    assert set(FIGURES) == set(TINY)
    assert set(FIGURES) < set(find_studies())
    for figure in FIGURES.values():
        assert figure.paper in ("castin25", "geshkovski25", "chen19")
        assert figure.figure


@pytest.mark.parametrize("name", sorted(TINY))
def test_the_papers_statements_hold(name: str) -> None:
    verdicts = table_of(name, rows_of(name)).verdicts()
    assert verdicts
    assert [verdict for verdict in verdicts if verdict.outcome != "holds"] == []
    assert all(all(part for part in verdict[:3]) and verdict.why for verdict in verdicts)


def standing(row: Any, *entries: float) -> np.ndarray:
    return np.tile(np.array(entries), (len(row.path), 1))


def still(row: Any) -> Any:
    """A covariance that never moves."""
    return row._replace(status="finished", path=standing(row, 0.6, 0.2, 0.4))


WRONG: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("to_zero", "softmax: every covariance", still),
    ("to_zero", "two heads: every covariance", still),
    ("to_zero", "L2: every covariance", lambda row: row._replace(status="blew up")),
    ("line", "L2: limits lie on the ray", still),
    ("plane", "limits lie on the plane", still),
    (
        "plane",
        "limits may have rank 2",
        lambda row: row._replace(path=standing(row, 1.0, 0.0, 0.0)),
    ),
    ("explosion", "softmax: every covariance blows", lambda row: row._replace(status="converged")),
    (
        "explosion",
        "softmax: the time of the blow-up",
        lambda row: row._replace(stop_time=1.01 * row.stop_time),
    ),
    ("explosion", "L2: every covariance grows", lambda row: row._replace(path=row.path[::-1])),
    ("explosion", "Sinkhorn: every covariance", lambda row: row._replace(status="blew up")),
    ("ellipses", "A = -qq^T", lambda row: row._replace(s11=1.0, s12=0.0, s22=1.0)),
    ("ellipses", "A = qq^T", lambda row: row._replace(s22=1.001 * row.s22)),
    ("two_lines", "softmax: bounded limits have rank one", lambda row: row._replace(rank_one=4)),
    ("two_lines", "L2: bounded limits have rank one", lambda row: row._replace(rank_one=4)),
    ("two_lines", "softmax: bounded limits lie on", lambda row: row._replace(isotropy=0.3)),
    ("mixed", "softmax: those that converge", lambda row: row._replace(rank_one=0)),
    (
        "mixed",
        "L2 stays bounded",
        lambda row: row._replace(rested=0, exploded=row.starts) if row.attention == "L2" else row,
    ),
    ("rank_histogram", "L2, V R^T R", lambda row: row._replace(rank=3)),
    ("rank_histogram", "softmax, V identity: the rank", lambda row: row._replace(rank=1)),
    ("sphere_clustering", "beta = 9: the energy", lambda row: row._replace(energy=-row.time)),
    (
        "sphere_clustering",
        "the sharper the kernel",
        lambda row: row._replace(clusters=5 if row.beta < 2 else 2),
    ),
    ("mean_field", "softmax, causal: the error", lambda row: row._replace(end=row.n * row.end)),
    (
        "gaussian_against_particles",
        "l2: samples approach",
        lambda row: row._replace(error=row.n * row.error) if row.cloud != QUADRATURE else row,
    ),
    (
        "gaussian_against_particles",
        "softmax: a Gaussian stays",
        lambda row: row._replace(error=0.01),
    ),
    (
        "point_cloud_flow",
        "the flow is above",
        lambda row: row._replace(ahead=-row.ahead) if hasattr(row, "ahead") else row,
    ),
    (
        "point_cloud_flow",
        "the flow is below",
        lambda row: row._replace(ahead=-row.ahead) if hasattr(row, "ahead") else row,
    ),
]


@pytest.mark.parametrize(("name", "statement", "plant"), WRONG)
def test_a_planted_wrong_row_is_found(
    name: str, statement: str, plant: Callable[[Any], Any]
) -> None:
    verdicts = table_of(name, [plant(row) for row in rows_of(name)]).verdicts()
    (found,) = (verdict for verdict in verdicts if verdict.statement.startswith(statement))
    assert found.outcome == "does not hold"


def test_an_l2_flow_that_neither_rests_nor_grows_refutes_nothing() -> None:
    rows = [
        row._replace(rested=row.starts - 1, exploded=0) if row.attention == "L2" else row
        for row in rows_of("mixed")
    ]
    assert table_of("mixed", rows).verdicts()[-1].outcome == "cannot be told"


def test_every_verdict_on_a_grid_or_a_draw_can_be_undecided() -> None:
    slow = [
        row._replace(status="finished", path=row.path / row.path[-1].max() * [0.1, 0.1, 0.1])
        for row in rows_of("to_zero")
    ]
    waiting = [row._replace(status="finished") for row in rows_of("explosion")]
    turning = [row._replace(rested=0, exploded=0) for row in rows_of("two_lines")]
    failed = [row._replace(told=False) for row in rows_of("rank_histogram")]
    for name, rows in (
        ("to_zero", slow),
        ("explosion", [row for row in waiting if row.attention == "two heads"]),
        ("two_lines", turning),
        ("rank_histogram", failed),
    ):
        outcomes = {verdict.outcome for verdict in table_of(name, rows).verdicts()}
        assert outcomes == {"cannot be told"}, name


@pytest.mark.parametrize("name", sorted(TINY))
def test_cells_can_be_sent_and_give_the_same_rows_again(name: str) -> None:
    cells = chosen(name)
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        assert pickle.loads(pickle.dumps(cell)) == cell
        assert type(cell).from_dict(cell.as_dict()) == cell
    if name != "point_cloud_flow":  # trained once
        again = FIGURES[name].run(pickle.loads(pickle.dumps(cells[-1])), Workbench())
        before = rows_of(name)[-len(again) :]
        assert all(same(one, other) for one, other in zip(before, again, strict=True))


@pytest.mark.parametrize("name", sorted(TINY))
def test_every_figure_is_drawn_from_its_rows_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    rows = rows_of(name)
    monkeypatch.setattr(type(FIGURES[name]), "run", None)
    for some in (rows, rows[: max(1, len(rows) // 2)]):
        table = table_of(name, some)
        figures = table.figures()
        assert all(key.startswith(name) for key in figures)
        for figure in figures.values():
            figure.canvas.draw()
            assert np.ptp(np.asarray(figure.canvas.buffer_rgba())[..., :3]) > 100
            assert all(ax.get_xlabel() or ax.get_title() for ax in figure.axes)
        if some is rows:
            assert drawing.as_svg(figures[name]).startswith(b"<?xml")
            assert table.summary()[0].lines


def test_an_empty_table_has_no_verdict() -> None:
    for name, figure in FIGURES.items():
        assert figure.verdicts(Table(figure, TINY[name], {})) == []
