"""The flow of invertible attention on sets of points: its density is one and its samples are its
own. That it learns is a verdict of its figure.
"""

from __future__ import annotations

import math

import pytest
import torch

from attnscope.studies.papers import _point_clouds as experiment


def test_the_law_of_one_point_is_normal() -> None:
    x = torch.tensor([[[0.3, -1.0]]], dtype=torch.float64)
    variance = 1 + experiment.SPREAD**2
    expected = -math.log(2 * math.pi * variance) - float(x.square().sum()) / (2 * variance)
    assert float(experiment.law_log_density(x)) == pytest.approx(expected, rel=1e-12)


def test_the_law_of_two_points_is_a_mixture_of_two_gaussians(generator: torch.Generator) -> None:
    x = experiment.clouds(20, 2, generator)
    s, eye = experiment.SPREAD**2, torch.eye(2, dtype=torch.float64)
    apart, together = (torch.kron(cov, eye) for cov in (eye * (1 + s), s * eye + 1))
    laws = [
        torch.distributions.MultivariateNormal(torch.zeros(4, dtype=x.dtype), cov)
        for cov in (apart, together)
    ]
    expected = torch.stack([law.log_prob(x.flatten(1)) for law in laws]).logsumexp(0) - math.log(2)
    assert torch.allclose(experiment.law_log_density(x), expected)


def test_the_density_of_the_flow_has_mass_one(generator: torch.Generator) -> None:
    network = experiment.Flow(3, 1, 1, generator)
    with torch.no_grad():
        network.matrices.add_(0.2 * torch.randn(3, 2, 2, dtype=torch.float64, generator=generator))
        side = torch.linspace(-30, 30, 241, dtype=torch.float64)
        mass = (
            network.log_density(torch.cartesian_prod(side, side)[:, None]).exp().sum()
            * (side[1] - side[0]) ** 2
        )
    assert float(mass) == pytest.approx(1, abs=1e-6)


def test_samples_are_noise_through_the_inverse_and_order_does_not_matter(
    generator: torch.Generator,
) -> None:
    network = experiment.Flow(3, 4, 2, generator)
    x = network.sample(5, 4, torch.Generator().manual_seed(3))
    with torch.no_grad():
        z = x
        for layer, matrix, shift in zip(
            network.layers, network.matrices, network.shifts, strict=True
        ):
            z = layer(z) @ matrix.mT + shift
        assert torch.allclose(
            z,
            torch.randn(5, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),
            atol=1e-10,
        )
        assert torch.allclose(network.log_density(x), network.log_density(x[:, [2, 0, 3, 1]]))
