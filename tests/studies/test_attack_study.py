"""Rows of an attack are what the attacks find, whoever ran before; figures come from rows alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope import Heads, Particles, Softmax, attacks, jacobian, spectral_norm
from attnscope.studies import Table, Workbench, drawing, run
from attnscope.studies.attack import Attack, AttackConfig, rows
from attnscope.studies.attack.target import Target, hash_target, target_of
from attnscope.studies.study import same

CONFIG = AttackConfig(
    dim=2, tokens=4, starts=3, steps=5, lengths=(4, 2), radii=(1.0, 0.5), radius=1.5, seed=1
)


@pytest.fixture(scope="module")
def table() -> Table:
    return run(Attack(), CONFIG).table


def test_the_curves_are_those_of_one_call(table: Table) -> None:
    target = target_of(CONFIG, Workbench())
    whole = attacks.curves(target.attention, (4, 2), (1.0, 0.5), starts=3, steps=5, seed=1)
    assert [(row.n, row.radius, row.found) for row in table["curves"]] == [
        (point.n, point.radius, point.found.value) for point in whole.points
    ]
    for row, point in zip(table["curves"], whole.points, strict=True):
        mine = {
            one.name: one.value
            for one in table["curve_bounds"]
            if (one.n, one.radius) == (row.n, row.radius)
        }
        assert mine == {bound.name: bound.value for bound in point.bounds}
        assert all(row.found <= value for value in mine.values())


def test_rows_do_not_depend_on_who_ran_before(table: Table) -> None:
    """A point of the curves, alone in a new process, begins at the same earlier inputs."""
    last = list(Attack().cells(CONFIG, Workbench()))[-1]
    alone = Attack().run(last, Workbench())
    assert alone[0].n == 4
    together = [*table["curves"], *table["curve_bounds"]]
    assert all(any(same(row, other) for other in together) for row in alone)


def test_the_constant_of_the_worst_row_is_that_of_its_input(table: Table) -> None:
    (row,) = table
    mu = Particles(torch.from_numpy(row.tokens), torch.from_numpy(row.weights))
    attention = target_of(CONFIG, Workbench()).attention
    assert row.value == pytest.approx(float(spectral_norm(jacobian(attention, mu)).lower))
    assert float(mu.radius()) <= 1.5
    assert row.bound is not None
    assert row.value <= row.bound
    assert len(row.names) == row.history.shape[1]


def test_the_law_of_the_split_row(table: Table) -> None:
    target = target_of(CONFIG, Workbench())
    found = attacks.split(target.attention, target.mu)
    (row,) = table["split"]
    assert (row.move, row.split, row.token) == (found.move, found.split, found.token)
    assert row.gain == found.gain
    first = table["attacks"][0]
    assert first.ratio == pytest.approx(found.move, rel=1e-2)


def test_the_hash_sees_every_part_of_what_is_attacked() -> None:
    def made(scale: float = 1.0, causal: bool = False, x: float = 1.0) -> str:
        eye = torch.eye(2, dtype=torch.float64)
        heads = Heads(eye[None], eye[None], eye[None], scale=scale)
        return hash_target(Target("a", Softmax(heads, causal=causal), Particles(x * eye), 1.0))

    assert made() == made()
    assert len({made(), made(scale=2.0), made(causal=True), made(x=2.0)}) == 4


def test_figures_are_pictures(table: Table) -> None:
    pytest.importorskip("matplotlib")
    made = table.figures()
    assert list(made) == ["worst", "split", "curves"]
    assert "softmax attention, n = 4" in made["worst"].get_suptitle()
    for figure in made.values():
        assert drawing.as_png(figure).startswith(b"\x89PNG")
        assert len(drawing.as_svg(figure)) > 10_000
    wide = table.rows[0]._replace(tokens=np.ones((4, 1)), bound=None, target="[/b] $x")
    other = Table(Attack(), CONFIG, {"worst": [wide]})
    assert drawing.as_png(other.plot("worst")).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"only": "none"}, "only must be one of"),
        ({"radius": -1.0}, "radius must be"),
        ({"tokens": 0}, "number of tokens must be at least 1"),
        ({"eps": (0.0,)}, "eps must be"),
        ({"lengths": None}, "go with lengths"),
        ({"attention": "cosine"}, "attention must be one of"),
        ({"attention": "linear"}, "no bound is known"),
    ],
)
def test_mistakes_are_said_before_anything_runs(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        list(Attack().cells(replace(CONFIG, **change), Workbench()))
    assert "--" not in str(error.value)


def test_kinds_of_rows_are_told_apart() -> None:
    assert set(Attack.tables.values()) == {
        rows.WorstRow,
        rows.SplitRow,
        rows.FiniteRow,
        rows.CurveRow,
        rows.CurveBoundRow,
    }
