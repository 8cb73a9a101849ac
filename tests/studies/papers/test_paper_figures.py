"""Every figure of the papers, at small size: its verdicts hold, a planted wrong row is found, and
it is drawn from its rows alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny_figures import FIGURES, TINY, bench, chosen, rows_of, table_of

from attnscope.studies import Table, drawing
from attnscope.studies import find as find_studies
from attnscope.studies.papers.gaussian_against_particles import QUADRATURE
from attnscope.studies.papers.to_zero import ToZeroConfig
from attnscope.studies.study import same

PAPERS = {"ablin24", "behrmann19", "castin24", "castin25", "chen19", "geshkovski25", "havens24"}
ONCE = {"point_cloud_flow", "certified_cifar10", "certified_digits", "certified_svhn"} | {
    "certified_strips"
}
"""Trained, or with seconds among their rows."""
OPEN = {
    "adversarial",
    "bound_against_attack",
    "certified_cifar10",
    "certified_digits",
    "certified_strips",
    "certified_svhn",
    "constant_against_radius",
    "duplicated_text",
    "growth",
    "lipschitz_against_length",
    "masked_against_unmasked",
    "radius_against_length",
    "released_estimator",
    "splitting_gain",
    "tokens_through_depth",
}
"""Figures whose outcome is a matter of the network or of the sizes: their verdicts are tested on
planted rows.
"""


def test_every_figure_is_found_and_tested_here() -> None:
    assert set(FIGURES) == set(TINY)
    assert set(FIGURES) < set(find_studies())
    for figure in FIGURES.values():
        assert figure.paper in PAPERS
        assert figure.figure


@pytest.mark.parametrize("name", sorted(set(TINY) - OPEN))
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


def grown(power: float, field: str = "lower") -> Callable[[Any], Any]:
    """A planted exponent of n."""
    return lambda row: row._replace(**{field: float(row.n) ** power})


def halved_bound(row: Any) -> Any:
    return row._replace(value=1e-3 * row.value) if row.side == "upper" else row


WRONG: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("growth", "GPT2Model, layer 0: sigma grows like n^0.25", grown(0.5)),
    ("growth", "GPT2Model, layer 0: sigma grows no faster", grown(0.7)),
    ("released_estimator", "GPT2Model, layer 0: both", grown(0.9)),
    ("radius_against_length", "GPT2Model, layer 0", grown(0.4, "radius")),
    (
        "constant_against_radius",
        "GPT2Model, layer 0",
        lambda row: row._replace(lower=row.radius**3),
    ),
    ("layer_norm", "GPT2Model: behind", lambda row: row._replace(largest=1.01 * row.proved)),
    ("layer_norm", "GPT2Model: the norm", lambda row: row._replace(behind=1e3**row.layer)),
    (
        "masked_against_unmasked",
        "GPT2Model, layer 0: under a mask",
        lambda row: row._replace(sigma=1 / row.n),
    ),
    (
        "masked_against_unmasked",
        "GPT2Model, layer 1: masked and unmasked",
        lambda row: row._replace(sigma=float(row.n)),
    ),
    (
        "heads_by_layers",
        "GPT2Model",
        lambda row: row._replace(lower=row.lower * (4 if row.head is None else 0.5)),
    ),
    ("adversarial", "GPT2Model, layer 1, head 0, R = 20: sigma grows", grown(0.3, "sigma")),
    ("adversarial", "GPT2Model, layer 1, head 0, R = 20: sigma is", grown(0.0, "sigma")),
    ("large_radius", "unmasked: the local", lambda row: row._replace(sigma=1.1 * row.limit)),
    ("large_radius", "causal: the limit", lambda row: row._replace(sigma=1.1 * row.most)),
    ("lipschitz_against_length", "no input found", halved_bound),
    (
        "lipschitz_against_length",
        "unmasked: the lower bound U2",
        lambda row: row._replace(value=float(row.n) ** 3) if row.name == "U2" else row,
    ),
    ("lipschitz_against_radius", "no input found", halved_bound),
    (
        "lipschitz_against_radius",
        "M1' is the tighter",
        lambda row: row._replace(value=1e9) if row.name == "M1'" else row,
    ),
    (
        "lipschitz_against_radius",
        "the largest constant",
        lambda row: row._replace(value=1 / row.radius) if row.name == "found" else row,
    ),
    ("two_regimes", "R = 2: no two clusters", lambda row: row._replace(upper=0.5 * row.value)),
    ("two_regimes", "R = 2: a plateau", grown(0.5, "value")),
    ("two_regimes", "R = 2: the root of n", grown(0.25, "single")),
    ("few_diracs", "at most 3", lambda row: row._replace(diracs=4)),
    ("few_diracs", "their masses", lambda row: row._replace(rarest=row.radius * row.heaviest)),
    ("few_diracs", "the constant lies", lambda row: row._replace(value=1.01 * row.upper)),
    ("splitting_gain", "with every token", lambda row: row._replace(repeated=1.1 * row.repeated)),
    ("equal_cost_attacks", "move: for small", lambda row: row._replace(moved=2 * row.spent)),
    (
        "equal_cost_attacks",
        "the law says",
        lambda row: (
            row._replace(law=9.0, moved=row.spent)
            if row.kind == "split"
            else row._replace(law=1.0, moved=2 * row.spent)
        ),
    ),
    ("duplicated_text", "GPT2Model: on real", lambda row: row._replace(split=0.5 * row.move)),
    ("equivariance", "softmax attention: f(PX)", lambda row: row._replace(value=1e-6)),
    ("equivariance", "causal softmax: f(PX)", lambda row: row._replace(value=1e-6)),
    ("pushforward", "softmax written out", lambda row: row._replace(value=1e-6)),
    ("positional_encoding", "[x_i, i/n]: the order", lambda row: row._replace(value=1e-12)),
    ("euler_order", "softmax, draw 0", lambda row: row._replace(error=row.depth**-2.0)),
    ("invertible_layers", "contraction 0.5: the error", lambda row: row._replace(error=1.0)),
    ("invertible_layers", "contraction 0.5: the tokens", lambda row: row._replace(error=1e-3)),
    ("backward_memory", "stored activations", lambda row: row._replace(stored=10)),
    ("backward_memory", "with invertible", lambda row: row._replace(inverted=row.depth)),
    ("backward_memory", "both ways", lambda row: row._replace(apart=0.01)),
    (
        "bound_against_attack",
        "1 head: no attack",
        lambda row: row._replace(moved=0.9 * row.moved) if row.by == "T3" else row,
    ),
    (
        "bound_against_attack",
        "1 head: the local bound",
        lambda row: row._replace(moved=1e9) if row.by == "L1" else row,
    ),
    (
        "certified_digits",
        "eps = 0.1: some accuracy",
        lambda row: row._replace(certified=False) if hasattr(row, "certified") else row,
    ),
    (
        "certified_svhn",
        "no attack breaks",
        lambda row: row._replace(certified=True, broken=True) if hasattr(row, "eps") else row,
    ),
    ("tokeniser", "equal pieces", lambda row: row._replace(apart=1.0)),
    ("tokeniser", "the vectors of an image", lambda row: row._replace(apart=1.0)),
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


def test_a_chosen_seed_is_found_out() -> None:
    """Two heads go to zero under the matrices of one seed, and not under those of others."""
    figure = FIGURES["to_zero"]
    config = ToZeroConfig(points=1, draws=6)
    cells = [cell for cell in figure.cells(config, bench()) if cell.attention == "two heads"]
    rows = [row for cell in cells for row in figure.run(cell, bench())]
    chosen_seed, all_of_them = (
        Table(figure, config, {"results": some}).verdicts()[0] for some in (rows[:1], rows)
    )
    assert chosen_seed.outcome == "holds"
    assert all_of_them.outcome == "does not hold"
    assert "of 6" in all_of_them.measured


def test_more_layers_foreseen_than_not_is_told_by_the_interval_alone() -> None:
    (row, *_) = rows_of("tokens_through_depth")
    good, bad = row._replace(mean=0.1), row._replace(mean=3.0)
    for rows, outcome in (
        ([good] * 20, "holds"),
        ([bad] * 20, "does not hold"),
        ([good, bad], "cannot be told"),
    ):
        assert table_of("tokens_through_depth", rows).verdicts()[0].outcome == outcome


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
    if name not in ONCE:
        again = FIGURES[name].run(pickle.loads(pickle.dumps(cells[-1])), bench())
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
            assert all(ax.get_xlabel() or ax.get_title() or ax.get_ylabel() for ax in figure.axes)
            if some is rows:
                assert drawing.as_svg(figure).startswith(b"<?xml")
            else:
                figure.canvas.draw()
                assert np.ptp(np.asarray(figure.canvas.buffer_rgba())[..., :3]) > 100
        if some is rows:
            assert name in figures
            assert table.summary()[0].lines


def test_an_empty_table_has_no_verdict() -> None:
    for name, figure in FIGURES.items():
        assert figure.verdicts(Table(figure, TINY[name], {})) == []
