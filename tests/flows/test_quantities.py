"""Energies obey their dissipation identities; bounds hold along flows; ranks and clusters are what
they are defined to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import scipy.cluster.hierarchy
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope import (
    L2,
    Exponential,
    Gaussian,
    Heads,
    Linear,
    Particles,
    Sigmoid,
    Sinkhorn,
    Softmax,
    wasserstein,
)
from attnscope.flows import (
    Sphere,
    anisotropy,
    clusters,
    distances,
    energy,
    flow,
    radius_bound,
    rank,
    spectral_gap_rank,
    stability_bound,
    velocity_lipschitz,
)

Randn = Callable[..., torch.Tensor]


def symmetric(randn: Randn, d: int = 2) -> torch.Tensor:
    z = randn(d, d)
    return 0.3 * (z + z.mT)


def slope_of(att: Softmax, mu: Particles | Gaussian, space: Sphere | None = None) -> float:
    """The energy's time derivative by central differences along the flow."""
    h = 1e-5
    states = flow(att, mu, [0, h, 2 * h], space=space, rtol=1e-12, atol=1e-14, settle=None).states
    before, _, after = (energy(att, state, space).value for state in states)
    assert energy(att, states[1], space).rate != 0
    return (after - before) / (2 * h) / energy(att, states[1], space).rate


@pytest.mark.parametrize("sign", [1.0, -2.0])
@pytest.mark.parametrize("variant", [Softmax, Exponential, Sinkhorn])
def test_particle_energies_change_at_the_rate_of_the_theorem(
    variant: type[Softmax], sign: float, randn: Randn
) -> None:
    a, weights = symmetric(randn), randn(5).exp()
    att, mu = (
        variant(Heads.from_matrices(a, sign * a)),
        Particles(randn(5, 2), weights / weights.sum()),
    )
    assert slope_of(att, mu) == pytest.approx(1, abs=2e-5)
    assert energy(att, mu).rate * sign > 0


@pytest.mark.parametrize("variant", [Softmax, Exponential])
def test_the_energy_on_the_sphere_climbs_and_is_the_one_of_the_literature(
    variant: type[Softmax], randn: Randn
) -> None:
    beta, eye, x = 2.0, torch.eye(3, dtype=torch.float64), Sphere()(randn(6, 3))
    att, mu = variant(Heads.from_matrices(beta * eye, eye)), Particles(x)
    assert energy(att, mu).value / beta == pytest.approx(
        float((beta * x @ x.mT).exp().sum()) / (2 * beta * 36)
    )
    assert slope_of(att, mu, Sphere()) == pytest.approx(1, abs=2e-5)
    values = [
        energy(att, state).value
        for state in flow(att, mu, [0, 1.0, 2.0, 4.0], space=Sphere()).states
    ]
    assert values == sorted(values)


@pytest.mark.parametrize("variant", [Softmax, Sinkhorn, L2])
def test_gaussian_energies_change_at_the_rate_of_the_theorem(
    variant: type[Softmax], randn: Randn
) -> None:
    a, z = symmetric(randn), randn(2, 2)
    if variant is L2:
        key = 0.6 * randn(1, 2, 2)
        heads = Heads(key, key, (0.7 * key.mT @ key), scale=0.8)
    else:
        heads = Heads.from_matrices(a, -1.5 * a)
    start = Gaussian(torch.zeros(2, dtype=torch.float64), z @ z.mT)
    assert slope_of(variant(heads), start) == pytest.approx(1, abs=2e-5)


def test_sinkhorn_energy_of_a_gaussian_is_that_of_its_quadrature_cloud(randn: Randn) -> None:
    a = symmetric(randn)
    att = Sinkhorn(Heads.from_matrices(a, a), eps=0.8)
    start = Gaussian(torch.zeros(2, dtype=torch.float64), 0.4 * torch.eye(2, dtype=torch.float64))
    assert energy(att, start).value == pytest.approx(
        energy(att, start.quadrature(14)).value, abs=1e-8
    )


@pytest.mark.usefixtures("unchecked")
def test_no_energy_where_the_flow_is_no_gradient_flow(randn: Randn) -> None:
    mu, a = Particles(randn(4, 2)), symmetric(randn)
    for att, message in [
        (Softmax(Heads.from_matrices(randn(2, 2), a)), "symmetric"),
        (Softmax(Heads.from_matrices(a, randn(2, 2))), "multiple of A"),
        (Softmax(Heads.from_matrices(0 * a, a)), "multiple of A"),
        (Softmax(Heads.from_matrices(a, a), causal=True), "no mask"),
        (Sigmoid(Heads.from_matrices(a, a)), "no energy on particles"),
    ]:
        with pytest.raises(ValueError, match=message):
            energy(att, mu)


@pytest.mark.parametrize("variant", [Softmax, L2, Sigmoid])
@pytest.mark.parametrize("causal", [False, True])
def test_two_flows_stay_within_the_stability_bound(
    variant: type[Softmax], causal: bool, randn: Randn
) -> None:
    att = variant(Heads.from_matrices(0.3 * randn(2, 2), 0.5 * randn(2, 2)), causal=causal)
    x = 0.7 * Sphere()(randn(5, 2))
    first, second = (
        flow(att, Particles(y), [0, 0.3, 0.6], settle=None)
        for y in (x, 0.6 * Sphere()(x + 0.3 * randn(5, 2)))
    )
    apart = distances(first, second, causal=causal)
    for t, distance in zip(first.times.tolist()[1:], apart[1:], strict=True):
        bound = stability_bound(att, 0.7, t)
        assert (bound.side, bound.kind) == ("upper", "proved")
        assert distance <= bound.value * apart[0]
    assert apart[0] > 0.05


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("variant", [Softmax, L2, Sigmoid, Sinkhorn])
def test_the_velocity_obeys_its_lipschitz_constants(
    variant: type[Softmax], biases: bool, randn: Randn
) -> None:
    given = {"query_bias": randn(2, 2), "key_bias": randn(2, 2), "value_bias": randn(2, 2)}
    att = variant(Heads(*(randn(2, 2, 2) for _ in range(3)), **(given if biases else {})))
    x, y, p, q = (0.5 * Sphere()(randn(4, 2)) for _ in range(4))
    constants = velocity_lipschitz(att, 0.5)
    in_space = torch.linalg.vector_norm(
        att(x, Particles(p)) - att(y, Particles(p)), dim=-1
    ) / torch.linalg.vector_norm(x - y, dim=-1)
    moved = torch.linalg.vector_norm(att(x, Particles(p)) - att(x, Particles(q)), dim=-1).max()
    assert float(in_space.max()) <= constants.space
    assert float(moved) <= constants.measure * wasserstein(Particles(p), Particles(q), p=1)


@pytest.mark.parametrize("variant", [Softmax, L2, Sigmoid])
def test_the_constant_in_space_is_attained_between_two_tokens(variant: type[Softmax]) -> None:
    one, h = torch.ones(1, 1, dtype=torch.float64), 1e-5
    att, pair = (
        variant(Heads.from_matrices(0.8 * one, 1.5 * one)),
        Particles(torch.tensor([[0.7], [-0.7]], dtype=torch.float64)),
    )
    slope = float(att(h * one, pair) - att(-h * one, pair)) / (2 * h)
    assert slope == pytest.approx(velocity_lipschitz(att, 0.7).space, rel=1e-6)


def test_the_constant_in_measure_of_softmax_must_be_exponential() -> None:
    """A rare token far away: (1 - w) delta_1 + w delta_-1 read from -1 moves like e^{2a} times its
    W_1 distance 2w to delta_1.
    """
    one, w = torch.ones(1, 1, dtype=torch.float64), 1e-7
    att, places = (
        Softmax(Heads.from_matrices(1.5 * one, one)),
        torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
    )
    with_it, without = (
        att(-one, Particles(places, torch.tensor([1 - v, v], dtype=torch.float64)))
        for v in (w, 0.0)
    )
    moved = abs(float(with_it - without)) / (2 * w)
    assert moved == pytest.approx(math.exp(3), rel=1e-3)
    assert moved <= velocity_lipschitz(att, 1.0).measure


def test_bounds_refuse_what_they_are_not_proved_for(randn: Randn) -> None:
    heads = Heads.from_matrices(randn(2, 2), randn(2, 2))
    for att in (Linear(heads), Exponential(heads)):
        with pytest.raises(ValueError, match="blow up"):
            radius_bound(att, 1.0, 1.0)
    placed = Heads(heads.query, heads.key, heads.value, position_bias=randn(1, 4, 4))
    for att in (Linear(heads), Softmax(placed)):
        with pytest.raises(ValueError, match=f"proved here for {att.name}"):
            velocity_lipschitz(att, 1.0)
        with pytest.raises(ValueError, match=f"proved here for {att.name}"):
            stability_bound(att, 1.0, 1.0)
    with pytest.raises(ValueError, match="p > 1"):
        stability_bound(Softmax(heads, causal=True), 1.0, 1.0, p=1)


def test_rank_and_anisotropy_of_known_spectra(randn: Randn) -> None:
    turn = torch.linalg.qr(randn(4, 4)).Q
    cov = turn @ torch.diag(torch.tensor([2.0, 1.0, 1e-7, 0.0], dtype=torch.float64)) @ turn.mT
    assert (int(rank(cov)), int(rank(cov, 1e-9)), int(spectral_gap_rank(cov))) == (2, 3, 2)
    assert float(anisotropy(cov)) == pytest.approx(2 / 3, rel=1e-6)
    assert int(spectral_gap_rank(torch.eye(4, dtype=torch.float64))) == 4
    assert (
        int(rank(torch.zeros(3, 3, dtype=torch.float64)))
        == int(spectral_gap_rank(torch.zeros(3, 3, dtype=torch.float64)))
        == 0
    )


@pytest.mark.usefixtures("unchecked")
def test_a_floor_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="floor must be a finite number above 0"):
        spectral_gap_rank(torch.eye(2), floor=None)  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 10_000), n=st.integers(2, 60), d=st.integers(1, 4), gap=st.floats(0.05, 1.5)
)
def test_clusters_are_single_linkage(seed: int, n: int, d: int, gap: float) -> None:
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = torch.cat([x, x[: n // 2] + 1e-9])
    got = clusters(Particles(x), gap)
    expected = scipy.cluster.hierarchy.fcluster(
        scipy.cluster.hierarchy.linkage(x.numpy(), "single"), gap, criterion="distance"
    )
    assert got.number == expected.max() == len(set(got.labels.tolist()))
    assert len(set(zip(got.labels.tolist(), expected.tolist(), strict=True))) == got.number


def test_a_large_collapsed_cloud_is_counted_quickly(randn: Randn) -> None:
    centres = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    x = centres.repeat(20_000, 1) + 1e-3 * randn(60_000, 2)
    assert clusters(Particles(x), 0.5).number == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_spectra_of_half_precision(dtype: torch.dtype) -> None:
    cov = torch.diag(torch.tensor([4.0, 4.0, 0.0], dtype=dtype))
    assert (int(rank(cov)), int(spectral_gap_rank(cov))) == (2, 2)
    assert anisotropy(cov).dtype == dtype
    assert float(anisotropy(cov)) == 0.5
