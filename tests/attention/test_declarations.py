"""What a variant declares is true: its kernel is its coupling, the Jacobian that follows from it is
that of autograd, energies grow at their rate, and an interpolated field is the field.
"""

from __future__ import annotations

import math

import pytest
import torch
from problems import VARIANTS, Variant, accepts_mask, cloud, heads, near, normal

from attnscope import Attention, Gaussian, Heads, Particles, jacobian
from attnscope.flows import energy
from attnscope.flows.fast import Interpolated
from attnscope.operators import attention as operators_attention


def declaring(method: str) -> pytest.MarkDecorator:
    found = {
        name: variant
        for name, variant in VARIANTS.items()
        if getattr(variant, method) is not getattr(Attention, method)
    }
    assert found, f"no variant declares {method}"
    return pytest.mark.parametrize("variant", found.values(), ids=found.keys())


def analytic() -> pytest.MarkDecorator:
    found = {
        name: variant
        for name, variant in VARIANTS.items()
        if variant.normalised and variant.bias_of != "measure"
    }
    assert {"softmax", "l2"} <= found.keys()
    return pytest.mark.parametrize("variant", found.values(), ids=found.keys())


def rotary(seed: int) -> Heads:
    parts = [normal(2, 4, 3, seed=seed + place, size=0.5) for place in range(2)]
    bias = normal(2, 4, seed=seed + 2)
    angles = torch.tensor([1.0, 0.3], dtype=torch.float64)
    return Heads(*parts, normal(2, 3, 3, seed=seed + 3), key_bias=bias, rotary=angles)


@declaring("kernel")
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_the_coupling(variant: Variant, causal: bool) -> None:
    causal = causal and accepts_mask(variant)
    attention, mu = variant(heads(0), causal=causal), cloud(1)
    kernel = attention.kernel(mu.x, mu)
    assert kernel is not None
    weights = (kernel.scale * kernel.q @ kernel.k.mT + kernel.bias[..., None, :]).exp()
    if causal:
        weights = weights.tril()
    expected = weights / weights.sum(-1, keepdim=True) if variant.normalised else weights
    near(attention.coupling(mu.x, mu), expected)


@analytic()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("place", ["anywhere", "rotary"])
def test_where_it_is_declared_the_jacobian_is_analytic(
    variant: Variant, causal: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = variant(heads(0, dim=3) if place == "anywhere" else rotary(0), causal=causal)
    mu = cloud(1, dim=3)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("autograd was asked")

    monkeypatch.setattr(operators_attention, "of_function", refused)
    size = mu.x.numel()
    expected = torch.func.jacrev(lambda x: attention.dense(x, mu.at(x)))(mu.x).reshape(size, size)
    near(jacobian(attention, mu).to_dense(), expected)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_bias_of_the_key_alone_has_a_slope_and_no_other_bias_has(variant: Variant) -> None:
    declared = variant.bias_slope is not Attention.bias_slope
    assert declared == (variant.bias_of == "key")
    if variant.bias_of != "measure":
        assert variant.kernel is not Attention.kernel


def climbing(seed: int, c: float) -> Heads:
    """One head with Q = K and V = cA: the flow of every variant with an energy climbs it."""
    q = normal(1, 2, 2, seed=seed, size=0.4)
    return Heads(q, q, c / math.sqrt(2) * q.mT @ q)


@declaring("energy")
@pytest.mark.parametrize("c", [0.7, -1.3])
def test_the_energy_of_particles_grows_at_its_rate(variant: Variant, c: float) -> None:
    attention, mu, h = variant(climbing(0, c)), cloud(1), 1e-4
    velocity = attention(mu.x, mu)
    before, after = (energy(attention, mu.at(mu.x + s * h * velocity)).value for s in (-1, 1))
    assert (after - before) / (2 * h) == pytest.approx(energy(attention, mu).rate, rel=1e-4)


@declaring("energy_on_gaussian")
@pytest.mark.parametrize("c", [0.7, -1.3])
def test_the_energy_of_a_gaussian_grows_at_its_rate(variant: Variant, c: float) -> None:
    attention, factor, h = variant(climbing(0, c)), normal(2, 2, seed=3), 1e-3
    mean = torch.zeros(2, dtype=torch.float64)
    start = Gaussian(mean, factor @ factor.mT)
    velocity = attention.affine(start).matrix @ factor
    before, after = (
        energy(attention, Gaussian.from_factor(mean, factor + s * h * velocity)).value
        for s in (-1, 1)
    )
    assert (after - before) / (2 * h) == pytest.approx(energy(attention, start).rate, rel=1e-4)


@pytest.mark.parametrize(
    "variant",
    [variant for variant in VARIANTS.values() if variant.interpolates],
    ids=[name for name, variant in VARIANTS.items() if variant.interpolates],
)
def test_an_interpolated_field_is_the_field(variant: Variant) -> None:
    attention = variant(heads(0, dim=1, size=0.3))
    mu = Particles(normal(600, 1, seed=1, size=0.5))
    field, error = Interpolated(1e-8)(attention, mu.x, mu)
    assert 0 < error <= 1e-8
    near(field, attention(mu.x, mu), 1e-7)
