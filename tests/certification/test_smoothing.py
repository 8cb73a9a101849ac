"""Randomized smoothing: closed forms, coverage, abstention, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from attnscope.certification import smoothed
from attnscope.certification.smoothing import clopper_pearson


def linear(weight: Tensor, bias: float = 0.0) -> nn.Linear:
    """Two classes with logits (0, <w, x> + b), in float64."""
    made = nn.Linear(weight.numel(), 2).double().eval().requires_grad_(False)
    made.weight.copy_(torch.stack([torch.zeros_like(weight), weight]))
    made.bias.copy_(torch.tensor([0.0, bias]))
    return made


@pytest.mark.parametrize(("count", "samples"), [(1, 5), (7, 10), (995, 1000), (1000, 1000)])
@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_the_bound_of_a_probability(count: int, samples: int, alpha: float) -> None:
    lower = clopper_pearson(count, samples, alpha)
    assert lower == pytest.approx(stats.beta.ppf(alpha, count, samples - count + 1), rel=1e-10)
    assert stats.binom.sf(count - 1, samples, lower) <= alpha
    assert stats.binom.sf(count - 1, samples, lower * (1 + 1e-6)) > alpha


def test_the_ends_of_the_bound() -> None:
    assert clopper_pearson(0, 50, 0.01) == 0.0
    assert clopper_pearson(50, 50, 0.01) == pytest.approx(0.01 ** (1 / 50))


def test_where_all_samples_agree_the_radius_is_the_largest(
    randn: Callable[..., Tensor],
) -> None:
    (one,) = smoothed(linear(randn(6), 1e3), randn(1, 6), 0.5, samples=700, alpha=0.01)
    assert (one.label, one.count) == (1, 700)
    quantile = stats.norm.ppf(0.01 ** (1 / 700))
    assert one.radius == pytest.approx(0.5 * quantile, rel=1e-9)
    assert one.radius <= 0.5 * quantile
    assert one.kind == "probable"
    assert one.failure_probability == 0.01
    assert "smoothed classifier" in str(one)
    assert "smoothed classifier" in one.assumptions


def test_radii_of_a_linear_classifier_exceed_the_true_one_as_rarely_as_is_said(
    randn: Callable[..., Tensor],
) -> None:
    r"""$P(f(x + \sigma\xi) = 1) = \Phi(m/(\sigma|w|))$: the smoothed classifier is the classifier
    itself, and its radius $m/|w|$.
    """
    weight, x, sigma, alpha, trials = randn(3), randn(3), 0.7, 0.1, 600
    bias = float(0.6 * weight.norm() - weight @ x)  # the radius is 0.6
    network, images = linear(weight, bias), x.expand(trials, 3)
    found = smoothed(network, images, sigma, samples=150, selection=20, alpha=alpha, seed=1)
    assert all(one.label in (1, None) for one in found)
    allowed = stats.binom.ppf(0.9999, trials, alpha)
    wrong = sum(one.radius > 0.6 for one in found)
    assert 0 < wrong <= allowed
    assert sum(one.radius for one in found) / trials > 0.4
    planted = [sigma * stats.norm.ppf(min(one.count, 149.9) / 150) for one in found]
    assert sum(radius > 0.6 for radius in planted) > allowed  # the frequency itself is no bound


def test_it_abstains_where_the_samples_do_not_tell(randn: Callable[..., Tensor]) -> None:
    weight = randn(4)
    (even,) = smoothed(linear(weight), torch.zeros(1, 4, dtype=torch.float64), 1.0, samples=200)
    assert even.label is None
    assert even.radius == 0.0
    assert even.lower <= 0.5
    assert "abstains" in str(even)
    (few,) = smoothed(linear(weight, 1e3), torch.zeros(1, 4), 1.0, samples=5, alpha=0.01)
    assert few.count == 5  # 0.01 ** (1 / 5) is below 1/2
    assert few.label is None


def test_logits_that_are_not_finite_are_no_class() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x[:, 0], torch.log(x[:, 0] - 100.0)], 1)

    (one,) = smoothed(Broken().eval(), torch.zeros(1, 1), 0.1, samples=50)
    assert one.label is None


def test_rows_repeat_with_their_seed(randn: Callable[..., Tensor]) -> None:
    network, x, seen = linear(randn(3), 0.5), randn(2, 3), list[float]()
    first = smoothed(network, x, 1.0, samples=600, seed=3, watch=seen.append)
    assert first == smoothed(network, x, 1.0, samples=600, seed=3)
    assert first != smoothed(network, x, 1.0, samples=600, seed=4)
    assert seen == [0.5, 1.0]
    assert [math.isfinite(one.radius) for one in first] == [True, True]


class Mixing(nn.Module):
    """Answers depend on the other images of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.sum(1), x.sum(1).mean().expand(len(x))], 1)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (Mixing().eval(), {}, "otherwise to an image alone"),
        (nn.Linear(3, 2), {}, "training mode"),
        (nn.Linear(3, 1).eval(), {}, "at least 2 classes"),
        (nn.Linear(4, 2).eval(), {}, "do not fit the network"),
        (nn.Linear(3, 2).eval(), {"sigma": 0.0}, "sigma must be"),
        (nn.Linear(3, 2).eval(), {"samples": 0}, "samples must be a whole number"),
        (nn.Linear(3, 2).eval(), {"alpha": 1.0}, "alpha must be a probability"),
    ],
)
def test_refusals(network: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smoothed(network, torch.rand(2, 3), **{"sigma": 0.5, **options})


def test_noise_is_added_before_a_network_rounds() -> None:
    """Two pictures on either side of a rounding midpoint of bfloat16, hardly apart: rounded first,
    they would be read as different classes, and both for sure.
    """
    size, middle = 3072, 0.5 + 2**-9
    network = linear(torch.ones(size, dtype=torch.float64), -size * middle).to(torch.bfloat16)
    pictures = middle + torch.tensor([[-2e-6], [2e-6]]).expand(2, size)
    distance = float((pictures[0] - pictures[1]).norm())
    found = smoothed(network, pictures, 0.02, samples=400, alpha=1e-4)
    for one in found:
        for other in found:
            apart = distance if one is not other else 0.0
            assert one.label is None or one.label == other.label or one.radius < apart
