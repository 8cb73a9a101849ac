"""What the rows say agrees with what is proved and attacked; an unsound certificate is seen;
figures are pictures of these numbers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.bounds import sensitivity
from attnscope.certification import figures, report, report_nearest
from attnscope.data import Images
from attnscope.nets import Config, Transformer
from attnscope.operators import jacobian

EPS = (0.02, 0.3)


@pytest.fixture(scope="module")
def plan() -> report.Plan:
    """A tiny network and images that it reads rightly, but for the last two."""
    network = Transformer(
        Config.vit((1, 4, 4), 3, 2, dim=4, heads=2, head_dim=2, value_dim=2, hidden=4), seed=1
    ).double()
    pixels = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = network(pixels.double()).argmax(-1)
    labels[-2:] = (labels[-2:] + 1) % 3
    return report.Plan(network, Images(pixels, labels, ("a", "b", "c")), EPS, steps=20, restarts=2)


@pytest.fixture(scope="module")
def rows(plan: report.Plan) -> list[report.Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "BATCH", 5)
        patch.setattr(report, "BISECTIONS", 3)
        return [row for batch in report.evaluate(plan) for row in batch]


def test_rows_agree_with_the_network_and_with_themselves(
    plan: report.Plan, rows: list[report.Row]
) -> None:
    assert [(row.image, row.eps) for row in rows] == [(i, eps) for i in range(8) for eps in EPS]
    with torch.no_grad():
        logits = plan.network(plan.images.pixels.double())
    for row in rows:
        assert row.predicted == int(logits[row.image].argmax())
        others = [float(logit) for j, logit in enumerate(logits[row.image]) if j != row.label]
        assert row.margin == pytest.approx(float(logits[row.image, row.label]) - max(others))
        assert row.certified == (row.radius >= row.eps)
        assert (row.radius > 0) <= (row.margin > 0)
        assert not row.unsound
        assert (row.broken is None) == (row.label != row.predicted)
    assert any(row.certified for row in rows)
    assert any(row.broken for row in rows)


def test_the_summary_counts_images(rows: list[report.Row]) -> None:
    made = report.summarise(rows)
    assert made.images == 8
    assert made.clean == pytest.approx(6 / 8)
    for line in made.lines:
        here = [row for row in rows if row.eps == line.eps]
        assert line.certified * 8 == pytest.approx(len([row for row in here if row.certified]))
        assert line.attacked * 8 == pytest.approx(6 - len([row for row in here if row.broken]))
        assert line.certified <= line.attacked <= made.clean
        assert sum(line.methods.values()) == round(8 * line.certified)
    assert made.radius == pytest.approx(sum(row.radius for row in rows) / 16)
    assert made.unsound == 0


@pytest.mark.parametrize("lie", ["verdict", "radius"])
def test_an_unsound_certificate_is_seen(
    plan: report.Plan, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    honest = report.certify

    def unsound(
        network: torch.nn.Module,
        images: torch.Tensor,
        eps: list[float],
        labels: torch.Tensor,
        bisections: int,
    ) -> object:
        made = honest(network, images, eps, labels, bisections=bisections)
        changed = {"verdict": True, "method": "NT4"} if lie == "verdict" else {"radius": 5.0}
        return [
            [replace(one, **changed) if one.margin > 0 else one for one in several]
            for several in made
        ]

    monkeypatch.setattr(report, "certify", unsound)
    monkeypatch.setattr(report, "BISECTIONS", 0)
    rows = [row for batch in report.evaluate(plan) for row in batch]
    broken = [row for row in rows if row.broken and row.eps == max(EPS)]
    assert broken
    assert all(row.unsound for row in (broken if lie == "verdict" else rows) if row.margin > 0)
    assert report.summarise(rows).unsound >= len(broken)


def test_an_image_broken_once_stays_broken(
    plan: report.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "BISECTIONS", 0)

    def broken(*eps: float) -> dict[float, list[bool | None]]:
        rows = [row for batch in report.evaluate(replace(plan, eps=eps)) for row in batch]
        return {one: [row.broken for row in rows if row.eps == one] for one in eps}

    found = broken(2.0, 0.1, 1.0)
    assert found[0.1] == broken(0.1)[0.1]
    assert sum(map(bool, found[0.1])) < sum(map(bool, found[1.0]))
    for smaller, larger in ((0.1, 1.0), (1.0, 2.0)):
        assert all(
            not before or after for before, after in zip(found[smaller], found[larger], strict=True)
        )


def test_accuracy(plan: report.Plan) -> None:
    assert report.accuracy(plan.network, plan.images) == pytest.approx(6 / 8)


def test_the_nearest_images_are_misread_outside_their_certificate(
    plan: report.Plan, rows: list[report.Row]
) -> None:
    near = report_nearest.nearest(plan, rows, 4)
    radii = sorted({row.image: row.radius for row in rows if row.radius > 0}.values())
    assert [one.radius for one in near] == radii[:4]
    assert any(one.misread is not None for one in near)
    for one in near:
        if one.misread is None or one.distance is None:
            continue
        assert one.distance > one.radius
        assert float((one.misread - one.pixels).norm()) == pytest.approx(one.distance)
        logits = plan.network(one.misread[None])[0].detach()
        assert float(logits[one.read_as]) >= float(logits[one.label])
        closer = one.pixels + 0.999 * (one.misread - one.pixels)
        assert int(plan.network(closer[None])[0].argmax()) == one.label
    assert report_nearest.nearest(plan, [row._replace(radius=0.0) for row in rows]) == []


def test_the_attack_on_one_layer_lies_between_its_slope_and_its_bound() -> None:
    attention, x = figures.random_layer(2, 0)
    eps = torch.tensor([1e-4, 0.3], dtype=torch.float64)
    found = figures.deviation(attention, x, eps, steps=60, restarts=2)
    assert (found <= sensitivity(attention, x.expand(2, *x.shape), eps, residual=1.0).value).all()

    def layer(at: torch.Tensor) -> torch.Tensor:
        from attnscope.measures import Particles

        return at + attention(at, Particles(at))

    slope = torch.linalg.matrix_norm(jacobian(layer, x).to_dense(), 2)
    assert 0.95 * float(slope) < float(found[0] / eps[0]) < 1.001 * float(slope)


def test_figures_are_pictures(
    plan: report.Plan, rows: list[report.Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "LAYER_EPS", (0.1, 1.0))
    monkeypatch.setattr(figures, "deviation", lambda attention, x, eps: eps)
    control = [row._replace(network="control") for row in rows]
    coloured = [
        replace(one, pixels=one.pixels.expand(3, 4, 4), misread=None)
        for one in report_nearest.nearest(plan, rows, 2)
    ]
    near = [*report_nearest.nearest(plan, rows, 2), *coloured]
    made = [
        figures.accuracy_against_eps([*rows, *control]),
        figures.layer_bound_against_attack((1,)),
        figures.nearest_images(near, plan.images.classes),
    ]
    for picture in made:
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000
