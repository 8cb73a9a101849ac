"""The explorer computes what the library computes: steps, constants, bounds, energies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from explorer_cases import CLOUDS, RUN_CLOUDS, RUN_ELLIPSES, VARIANTS, flat, made

import attnscope as asc
from attnscope.report import explorer

TIME = 0.5


@pytest.fixture
def page(open_page: Callable[..., Any], tmp_path: Path) -> Any:
    path = tmp_path / "explorer.html"
    path.write_text(explorer.page())
    return open_page(path)


def test_tokens_move_and_stretch_as_in_the_library(page: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    cases, expected = [], []
    for variant, dim, round_, causal, heads, weighted in CLOUDS:
        attention, told = made(variant, dim, heads, causal, generator)
        x = torch.randn(7, dim, dtype=torch.float64, generator=generator)
        x = asc.Sphere()(x) if round_ else x
        weights = torch.rand(7, dtype=torch.float64, generator=generator) * weighted + 0.3
        mu = asc.Particles(x, weights / weights.sum())
        cases.append(
            {
                "told": told,
                "x": flat(x),
                "masses": flat(weights),
                "dim": dim,
                "round": round_,
                "time": TIME,
            }
        )
        expected.append((attention, mu, asc.Sphere() if round_ else None))
    for case, got, (attention, mu, space) in zip(
        CLOUDS, page.evaluate(RUN_CLOUDS, cases), expected, strict=True
    ):
        flown = asc.flow(attention, mu, [0.0, TIME], 1e-7, 1e-9, space, settle=None).states[-1].x
        assert got["state"] == pytest.approx(flat(flown), abs=1e-6), case
        operator = asc.jacobian(attention, mu)
        top = asc.spectral_norm(operator, tol=1e-8)
        assert got["sigma"] == pytest.approx(float(top.lower), rel=1e-4), case
        move = torch.tensor(got["direction"], dtype=torch.float64).reshape(mu.x.shape)
        moved, image = (
            torch.linalg.vector_norm(mu.weights.sqrt()[:, None] * v)
            for v in (move, operator.mv(move))
        )
        assert float(image / moved) == pytest.approx(got["sigma"], rel=1e-6), case
        proved = {bound.name: bound.value for bound in asc.bounds.smoothness(attention, mu)}
        assert len(got["bounds"]) >= (1 if variant_of(case) in ("sinkhorn", "sigmoid") else 3)
        for name, value in got["bounds"].items():
            assert value == pytest.approx(proved[name], rel=1e-6), (case, name)
            assert value >= float(top.lower), (case, name)


def variant_of(case: tuple[Any, ...]) -> str:
    return str(case[0])


def test_gaussians_move_as_in_the_library(page: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    cases, expected = [], []
    for variant, heads in (("softmax", 1), ("softmax", 2), ("l2", 1), ("sinkhorn", 2)):
        attention, told = made(variant, 2, heads, False, generator)
        mean, factor = (
            0.5 * torch.randn(*shape, dtype=torch.float64, generator=generator)
            for shape in ((2,), (2, 2))
        )
        cases.append({"told": told, "mean": flat(mean), "factor": flat(factor), "time": 0.5})
        expected.append((attention, asc.Gaussian(mean, factor @ factor.mT)))
    for got, (attention, gaussian) in zip(
        page.evaluate(RUN_ELLIPSES, cases), expected, strict=True
    ):
        flown = asc.flow(attention, gaussian, [0.0, 0.5], settle=None)
        assert got["mean"] == pytest.approx(flat(flown.mean[-1]), abs=1e-6)
        assert got["cov"] == pytest.approx(flat(flown.cov[-1]), abs=1e-6)
        norm = torch.linalg.matrix_norm(attention.affine(gaussian).matrix, 2)
        assert got["stretch"] == pytest.approx(float(norm), rel=1e-9)


def test_energies_are_those_of_the_library(page: Any, randn: Callable[..., torch.Tensor]) -> None:
    """A symmetric, V twice A (for L2: Q = K and V twice K^T K), the one case with an energy."""
    root, x = randn(2, 2), randn(6, 2)
    symmetric = (root + root.mT) / 2
    gram = 2 * root.mT @ root
    told: dict[str, Any] = {"causal": False, "eps": 1.0, "bias": 0.0}
    head = {"A": flat(symmetric), "Q": flat(root), "K": flat(root), "V": flat(2 * symmetric)}
    clouds, ellipses, expected = [], [], []
    gaussian = asc.Gaussian(torch.zeros(2, dtype=torch.float64), root @ root.mT)
    for variant in ("softmax", "sinkhorn", "l2"):
        own = {**head, "V": flat(gram)} if variant == "l2" else head
        heads = (
            asc.Heads(root[None], root[None], gram[None], scale=1.0)
            if variant == "l2"
            else asc.Heads.from_matrices(symmetric, 2 * symmetric)
        )
        attention = VARIANTS[variant](heads)
        about = {**told, "variant": variant, "heads": [own]}
        cloud = {"told": about, "x": flat(x), "masses": [1] * 6, "dim": 2, "round": False}
        clouds.append({**cloud, "time": 0.01})
        ellipses.append({"told": about, "mean": [0, 0], "factor": flat(root), "time": 0.01})
        of_cloud = None if variant == "l2" else asc.flows.energy(attention, asc.Particles(x)).value
        expected.append((of_cloud, asc.flows.energy(attention, gaussian).value))
    found = zip(
        page.evaluate(RUN_CLOUDS, clouds), page.evaluate(RUN_ELLIPSES, ellipses), strict=True
    )
    for (cloud, ellipse), (of_cloud, of_ellipse) in zip(found, expected, strict=True):
        assert cloud["energy"] == (of_cloud and pytest.approx(of_cloud, rel=1e-9))
        assert ellipse["energy"] == pytest.approx(of_ellipse, rel=1e-9)


def test_clusters_and_rank_are_those_of_the_library(
    page: Any, randn: Callable[..., torch.Tensor]
) -> None:
    x = torch.cat([0.02 * randn(9, 3), torch.ones(3, dtype=torch.float64) + 0.02 * randn(5, 3)])
    flattened = randn(12, 3) * torch.tensor([1.0, 1e-4, 0.1], dtype=torch.float64)
    counted, ranks = page.evaluate(
        """([x, y]) => {
          const { Clusters, covariance, rank } = explorer["shape.js"];
          const w = new Float64Array(y.length / 3).fill(3 / y.length);
          const gaps = [0.03, 0.1, 3].map((gap) =>
            new Clusters(x.length / 3).count(Float64Array.from(x), 3, gap));
          return [gaps, [1e-3, 1].map((s) => {
            const cov = covariance(Float64Array.from(y, (v) => s * v), w, 3);
            return rank(cov, 3);
          })];
        }""",
        [flat(x), flat(flattened)],
    )
    mu = asc.Particles(x)
    assert counted == [asc.flows.clusters(mu, gap).number for gap in (0.03, 0.1, 3.0)]
    assert len(set(counted)) == 3
    cov = (flattened - flattened.mean(0)).mT @ (flattened - flattened.mean(0)) / 12
    assert ranks == [int(asc.flows.rank(cov))] * 2
