"""What the rows say agrees with what is proved and attacked; an unsound certificate is seen;
figures are pictures of these numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from attnscope.bounds import sensitivity
from attnscope.certification import branches, certify
from attnscope.data import Images
from attnscope.nets import Config, Transformer
from attnscope.operators import jacobian
from attnscope.studies import Table, Workbench, drawing, run
from attnscope.studies.certify import Certify, CertifyConfig, Row, evaluation, layer
from attnscope.studies.certify.nearest import nearest_of_all
from attnscope.studies.certify.summary import broken_certificates, summarise

EPS = (0.02, 0.3)
CONFIG = CertifyConfig(
    checkpoint="tiny",
    data="patterns",
    eps=EPS,
    eps_names=("0.02", "0.3"),
    steps=20,
    restarts=2,
    shard=5,
    bisections=3,
    nearest=4,
    layers=(),
    explained=0,
)


@pytest.fixture(scope="module")
def bench() -> Workbench:
    """A tiny network and images that it reads rightly, but for the last two."""
    network = Transformer(
        Config.vit((1, 4, 4), 3, 2, dim=4, heads=2, head_dim=2, value_dim=2, hidden=4), seed=1
    ).double()
    pixels = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = network(pixels.double()).argmax(-1)
    labels[-2:] = (labels[-2:] + 1) % 3
    made = Workbench()
    made.put(("network", "tiny"), network)
    made.put(("notes", "tiny"), {"minutes": 1.0, "steps": "many"})
    made.put(("images", "patterns", "test"), Images(pixels, labels, ("a", "b", "c"), "patterns"))
    return made


@pytest.fixture(scope="module")
def table(bench: Workbench) -> Table:
    return run(Certify(), CONFIG, workbench=bench).table


@pytest.fixture(scope="module")
def rows(table: Table) -> list[Row]:
    return table.rows


def network_of(bench: Workbench) -> Any:
    return evaluation.network_of(bench, "tiny")


def pixels_of(bench: Workbench) -> torch.Tensor:
    return evaluation.images_of(bench, "patterns", "test").pixels.double()


def test_rows_agree_with_the_network_and_with_themselves(bench: Workbench, rows: list[Row]) -> None:
    assert [(row.image, row.eps) for row in rows] == [(i, eps) for i in range(8) for eps in EPS]
    with torch.no_grad():
        logits = network_of(bench)(pixels_of(bench))
        twin = network_of(bench).with_content_off().eval()
        off = twin(pixels_of(bench)).argmax(-1)
    labels = evaluation.images_of(bench, "patterns", "test").labels
    proved = {eps: certify(twin, pixels_of(bench), eps, labels) for eps in EPS}
    for row in rows:
        assert row.predicted == int(logits[row.image].argmax())
        assert row.content_off == int(off[row.image])
        assert row.content_off_certified == proved[row.eps][row.image].verdict
        others = [float(logit) for j, logit in enumerate(logits[row.image]) if j != row.label]
        assert row.margin == pytest.approx(float(logits[row.image, row.label]) - max(others))
        assert row.certified == (row.radius >= row.eps)
        assert (row.radius > 0) <= (row.margin > 0)
        assert not row.unsound
        assert (row.broken is None) == (row.label != row.predicted)
    assert any(row.certified for row in rows)
    assert any(row.broken for row in rows)


def test_the_summary_counts_images(rows: list[Row]) -> None:
    made = summarise(rows)
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
    assert broken_certificates(rows) == ""
    right = sum(row.content_off == row.label for row in rows) / len(rows)
    assert made.accuracy_without == pytest.approx(right)


def test_the_smoothed_network_stands_in_the_same_table(bench: Workbench) -> None:
    asked = {"method": "both", "sigma": 0.1, "samples": 60, "alpha": 0.01, "images": 4}
    quick = {"bisections": 0, "nearest": 0, "steps": 2, "restarts": 1}
    config = replace(CONFIG, **asked, **quick)
    outcome = run(Certify(), config, workbench=bench)
    found = outcome.table["smoothed"]
    assert [row.image for row in found] == list(range(4))
    assert outcome.failure_probability == pytest.approx(4 * 0.01)
    assert {(row.kind, row.failure_probability, row.samples) for row in found} == {
        ("probable", 0.01, 60)
    }
    for row in found:
        lower = stats.beta.ppf(0.01, row.agreeing, 61 - row.agreeing) if row.agreeing else 0.0
        assert row.lower == pytest.approx(lower)
        assert row.radius == pytest.approx(max(0.0, 0.1 * stats.norm.ppf(lower)))
        assert (row.predicted is None) == (row.radius == 0)
        assert row.rightly == (row.radius if row.predicted == row.label else 0)
    assert any(row.radius > 0 for row in found)
    (sheet,) = outcome.table.summary()
    share = sum(row.rightly >= 0.02 for row in found) / 4
    line = next(line for line in sheet.lines if line[1] == "this network, smoothed")
    assert line[3] == f"{100 * share:.1f}"
    assert line[5].endswith("(probable)")
    assert "It speaks of another classifier" in sheet.note
    assert "at most 0.01; that one of the 4 is, at most 0.04" in sheet.note
    alone = run(Certify(), replace(config, method="smoothing", shard=3), workbench=bench).table
    assert len(alone) == 0
    timeless = {"seconds": 0.0}
    again = [row._replace(**timeless) for row in alone["smoothed"]]
    assert again == [row._replace(**timeless) for row in found]
    pytest.importorskip("matplotlib")
    assert list(alone.figures()) == ["accuracy-against-eps"]


def test_what_each_layer_takes(bench: Workbench) -> None:
    quick = {"nearest": 0, "steps": 2, "restarts": 1, "images": 1, "bisections": 1}
    table = run(Certify(), replace(CONFIG, explained=2, **quick), workbench=bench).table
    shares, network = table["shares"], network_of(bench)
    norms = network.attention_norms()
    attention = [row for row in shares if "Attention" in row.layer]
    assert attention
    for row in attention:
        assert row.norm == pytest.approx(float(norms[0].max()))
    assert all(row.norm is None for row in shares if row not in attention)
    for image in {row.image for row in shares}:
        here = [row for row in shares if row.image == image]
        told = branches.explained(
            network.eval(), pixels_of(bench)[image : image + 1], here[0].radius
        )
        assert [(row.layer, row.reach, row.remainder) for row in here] == [
            (one.place, pytest.approx(one.reach), pytest.approx(one.remainder)) for one in told
        ]
        (limit,) = [row for row in here if row.limits]
        assert limit.remainder == max(row.remainder for row in here)
        assert here[0].radius == next(row.radius for row in table if row.image == image)
    sheet = table.summary()[-1]
    assert len(sheet.lines) == len({row.layer for row in shares})
    assert sheet.lines[0][1] == f"{float(norms[0].max()):.3g}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "both"}, "smoothing needs sigma"),
        ({"method": "guess"}, "method must be one of"),
        ({"method": "smoothing", "sigma": 0.1, "alpha": 0.5}, "must lie between 0 and 0.2"),
        ({"method": "smoothing", "sigma": -1.0}, "sigma must be"),
    ],
)
def test_smoothing_is_refused_before_a_network_is_read(
    bench: Workbench, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(Certify().cells(replace(CONFIG, **changed), bench))


@pytest.mark.parametrize("lie", ["verdict", "radius"])
def test_an_unsound_certificate_is_seen(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    honest = evaluation.certify

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

    monkeypatch.setattr(evaluation, "certify", unsound)
    outcome = run(Certify(), replace(CONFIG, bisections=0, shard=20), workbench=bench)
    rows = outcome.table.rows
    broken = [row for row in rows if row.broken and row.eps == max(EPS)]
    assert broken
    assert all(row.unsound for row in (broken if lie == "verdict" else rows) if row.margin > 0)
    assert summarise(rows).unsound >= len(broken)
    assert outcome.remarks[0].startswith("UNSOUND: the attack broke")


def test_an_image_broken_once_stays_broken(bench: Workbench) -> None:
    def broken(*eps: float) -> dict[float, list[bool | None]]:
        config = replace(CONFIG, eps=eps, eps_names=(), bisections=0, shard=20, nearest=0)
        rows = run(Certify(), config, workbench=bench).table.rows
        return {one: [row.broken for row in rows if row.eps == one] for one in eps}

    found = broken(2.0, 0.1, 1.0)
    assert found[0.1] == broken(0.1)[0.1]
    assert sum(map(bool, found[0.1])) < sum(map(bool, found[1.0]))
    for smaller, larger in ((0.1, 1.0), (1.0, 2.0)):
        assert all(
            not before or after for before, after in zip(found[smaller], found[larger], strict=True)
        )


def test_the_nearest_images_are_misread_outside_their_certificate(
    bench: Workbench, table: Table, rows: list[Row]
) -> None:
    near = nearest_of_all(table["nearest"], 4)
    radii = sorted({row.image: row.radius for row in rows if row.radius > 0}.values())
    assert [one.radius for one in near] == radii[:4]
    assert any(one.misread is not None for one in near)
    network = network_of(bench)
    for one in near:
        assert torch.equal(torch.from_numpy(one.pixels), pixels_of(bench)[one.image])
        assert one.class_name == "abc"[one.label]
        if one.misread is None or one.distance is None:
            continue
        pixels, misread = torch.from_numpy(one.pixels), torch.from_numpy(one.misread)
        assert one.distance > one.radius
        assert float((misread - pixels).norm()) == pytest.approx(one.distance)
        logits = network(misread[None])[0].detach()
        assert float(logits[one.read_as]) >= float(logits[one.label])
        assert one.read_as_name == "abc"[one.read_as]
        closer = pixels + 0.999 * (misread - pixels)
        assert int(network(closer[None])[0].argmax()) == one.label


def test_a_network_that_reads_nothing_rightly_has_no_nearest_images(bench: Workbench) -> None:
    images = evaluation.images_of(bench, "patterns", "test")
    with torch.no_grad():
        read = network_of(bench)(images.pixels.double()).argmax(-1)
    wrong = Workbench()
    wrong.put(("network", "tiny"), network_of(bench))
    wrong.put(("notes", "tiny"), {})
    wrong.put(("images", "patterns", "test"), replace(images, labels=(read + 1) % 3))
    table = run(Certify(), CONFIG, workbench=wrong).table
    assert table["nearest"] == []
    assert all(row.radius == 0 and row.broken is None for row in table)
    assert list(table.figures()) == ["accuracy-against-eps"]


def test_rows_do_not_depend_on_who_ran_before(bench: Workbench, table: Table) -> None:
    cells = list(Certify().cells(CONFIG, bench))
    last = Certify().run(cells[-1], bench)
    timeless = {"certify_seconds": 0.0, "attack_seconds": 0.0}
    again = [row._replace(**timeless) for row in last if isinstance(row, Row)]
    assert again == [row._replace(**timeless) for row in table if row.image >= 5]


def test_the_attack_on_one_layer_lies_between_its_slope_and_its_bound() -> None:
    attention, x = layer.random_layer(2, 0)
    eps = torch.tensor([1e-4, 0.3], dtype=torch.float64)
    found = layer.deviation(attention, x, eps, steps=60, restarts=2)
    assert (found <= sensitivity(attention, x.expand(2, *x.shape), eps, residual=1.0).value).all()

    def residual(at: torch.Tensor) -> torch.Tensor:
        from attnscope.measures import Particles

        return at + attention(at, Particles(at))

    slope = torch.linalg.matrix_norm(jacobian(residual, x).to_dense(), 2)
    assert 0.95 * float(slope) < float(found[0] / eps[0]) < 1.001 * float(slope)


def test_figures_are_pictures(bench: Workbench, table: Table) -> None:
    pytest.importorskip("matplotlib")
    layers = run(Certify(), replace(CONFIG, layers=(1,), steps=2, images=1), workbench=bench).table
    near = table["nearest"][:2]
    coloured = [
        row._replace(pixels=np.tile(row.pixels, (3, 1, 1)), misread=None, class_name="$x[b]")
        for row in near
    ]
    whole = Table(
        Certify(),
        CONFIG,
        {
            "certificates": [*table, *(row._replace(network="control") for row in table)],
            "networks": table["networks"],
            "nearest": [*near, *coloured],
            "layers": layers["layers"],
        },
    )
    made = whole.figures()
    assert list(made) == ["accuracy-against-eps", "bound-against-attack", "nearest-images"]
    for figure in made.values():
        assert len(drawing.as_png(figure)) > 10_000
        assert drawing.as_svg(figure).startswith(b"<?xml")
    smallest, found = (
        [row.moved for row in layers["layers"] if row.by == by]
        for by in (layer.SMALLEST, layer.FOUND)
    )
    assert len(smallest) == len(found) == 7
    assert all(below <= above for below, above in zip(found, smallest, strict=True))
