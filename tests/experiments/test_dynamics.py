"""The figures on dynamics, at small size: each shows what the theory says it shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.experiments import (
    ellipses,
    explosion,
    gaussian_against_particles,
    line,
    mean_field,
    mixed,
    plane,
    rank_histogram,
    sphere_clustering,
    to_zero,
    two_lines,
)
from attnscope.experiments._covariances import Flows, cone, disc
from attnscope.flows import rank


def statuses(flows: Flows, name: str) -> list[str]:
    return [outcome.status for outcome in flows[name].outcomes]


def test_starts_have_unit_trace_and_lie_in_the_cone() -> None:
    starts = disc(3)
    x, y, z = cone(starts).unbind(-1)
    assert len(starts) == 1 + 6 + 12 + 18
    assert torch.allclose(z, torch.ones_like(z))
    assert (torch.hypot(x, y) <= 0.95 + 1e-12).all()
    assert torch.linalg.eigvalsh(starts).min() > 0


def test_to_zero() -> None:
    for got in to_zero.run(rings=0).values():
        traces = torch.einsum("tmii->tm", got.cov)
        assert traces[-1].max() < 0.01
        assert (traces[-1] < 0.2 * traces[40]).all()


def test_line() -> None:
    q = line.row(0.6)[0, 0]
    for got in line.run(rings=1).values():
        limit = got.final.cov
        assert (
            torch.linalg.vector_norm(limit @ q, dim=-1) < 1e-3 * torch.linalg.matrix_norm(limit)
        ).all()
        assert rank(limit).tolist() == [1] * len(limit)


def test_plane() -> None:
    q = line.row(0.6)[0, 0]
    limit = plane.run(rings=1)["two heads, one empty"].final.cov
    assert ((limit @ q)[:, 0].abs() < 1e-3).all()
    assert (rank(limit) == 2).any()


def test_two_lines() -> None:
    flows = two_lines.run(rings=1)
    heads = two_lines.attentions(3)["softmax"].heads
    for got in flows.values():
        assert set(statuses(flows, "softmax")) == {"converged"}
        assert rank(got.final.cov).tolist() == [1] * 7
    directions = torch.linalg.eigh(flows["softmax"].final.cov).eigenvectors[..., -1]
    isotropy = torch.einsum("mi,ij,mj->m", directions, heads.a[0], directions)
    assert isotropy.abs().max() < 1e-3 * torch.linalg.matrix_norm(heads.a[0], 2)
    slopes = torch.round(torch.atan(directions[:, 1] / directions[:, 0]), decimals=2)
    assert len(torch.unique(slopes)) == 2


def test_explosion() -> None:
    flows = explosion.run(rings=0)
    for name in ("softmax", "two heads"):
        assert set(statuses(flows, name)) == {"blew up"}
        assert rank(flows[name].final.cov).tolist() == [1]
    for name in ("L2", "Sinkhorn"):
        assert set(statuses(flows, name)) == {"finished"}
        assert torch.einsum("mii->m", flows[name].final.cov).min() > 50


def test_mixed() -> None:
    flows = mixed.run(rings=1)
    ends = statuses(flows, "softmax")
    assert {"blew up", "converged"} <= set(ends)
    calm = [place for place, end in enumerate(ends) if end == "converged"]
    assert set(rank(flows["softmax"].final.cov[calm]).tolist()) == {1}
    assert "blew up" not in statuses(flows, "L2")


def test_rank_histogram_with_identity_values_is_the_theorem() -> None:
    for case in rank_histogram.run(dims=(3,), runs=2):
        assert case.bounded.total() + case.unbounded.total() + case.failed == 2
        if case.values == "identity":
            assert case.bounded == {(case.dim + 1) // 2: 2}


def test_ellipses() -> None:
    pair = ellipses.run()
    assert torch.linalg.eigvalsh(pair["clustering"].final.cov)[0] < 0.01
    assert pair["blow-up"].final.cov.trace() > 5 * pair["blow-up"].cov[0].trace()
    around = ellipses.outline(pair["blow-up"].final.cov, pair["blow-up"].final.mean)
    precision = torch.linalg.inv(pair["blow-up"].final.cov)
    assert torch.allclose(
        torch.einsum("pi,ij,pj->p", around, precision, around), torch.ones(120, dtype=torch.float64)
    )


def test_sphere_clustering() -> None:
    soft, sharp = sphere_clustering.run(n=24, betas=(1.0, 9.0), end=30.0)
    assert soft.numbers[0] == sharp.numbers[0] >= 20
    assert soft.numbers[-1] == 1 < sharp.numbers[-1] < 12
    for one in (soft, sharp):
        assert all(
            later >= earlier - 1e-9
            for earlier, later in zip(one.energies, one.energies[1:], strict=False)
        )


def test_mean_field_error_falls_with_the_number_of_particles() -> None:
    for curve in mean_field.run(
        sizes=(8, 128), reference=512, repeats=2, names=("softmax", "linear")
    ):
        assert curve.end[1] < 0.6 * curve.end[0]
        assert curve.end[0] < 3 * curve.start[0]


def test_samples_approach_the_gaussian_flow_and_quadrature_meets_it() -> None:
    for one in gaussian_against_particles.run(sizes=(20, 500), repeats=4, names=("softmax", "l2")):
        assert one.sampled[1] < 0.6 * one.sampled[0]
        assert one.quadrature < 1e-5


@pytest.mark.parametrize(
    ("experiment", "options"),
    [
        (line, {"rings": 1, "end": 10.0}),
        (explosion, {"rings": 1, "end": 0.1}),
        (ellipses, {}),
        (sphere_clustering, {"n": 6, "betas": (1.0,), "end": 1.0}),
        (mean_field, {"sizes": (8, 12), "reference": 16, "repeats": 1, "names": ("linear",)}),
        (gaussian_against_particles, {"sizes": (5, 10), "repeats": 1, "names": ("linear",)}),
        (rank_histogram, {"dims": (3,), "runs": 1}),
    ],
)
def test_every_figure_can_be_drawn(experiment: object, options: dict[str, object]) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = experiment.draw(experiment.run(**options))  # type: ignore[attr-defined]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert np.ptp(np.asarray(canvas.buffer_rgba())[..., :3]) > 100
    assert all(ax.get_xlabel() or ax.get_title() for ax in figure.axes)
