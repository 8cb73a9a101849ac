"""The attack stays in its ball, finds the worst point of functions whose worst point is known, and
says when it is blind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope.attacks.projected import _descend, pgd


def linear(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x.flatten(1) @ w.mT


def test_a_linear_function_loses_eps_times_its_slope(randn: Callable[..., Tensor]) -> None:
    w, x = randn(2, 12), randn(6, 3, 4)
    function = linear(w)
    labels = function(x).argmax(1)
    slope = torch.linalg.vector_norm(w[0] - w[1])
    gap = (function(x)[:, 0] - function(x)[:, 1]).abs()
    found = pgd(function, x, labels, 0.3, steps=20, restarts=2)
    assert torch.allclose(found.gap, gap - 0.3 * slope, rtol=1e-5)
    assert torch.equal(found.succeeded, found.gap <= 0)


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_it_succeeds_exactly_beyond_the_distance_to_the_boundary(
    factor: float, randn: Callable[..., Tensor]
) -> None:
    w, x = randn(5, 8), randn(7, 8)
    z = x @ w.mT
    labels = z.argmax(1)
    distances = (z.gather(1, labels[:, None]) - z) / torch.linalg.vector_norm(
        w[labels][:, None] - w, dim=-1
    )
    radius = distances.masked_fill(distances.isnan() | (distances <= 0), torch.inf).amin(1)
    found = pgd(linear(w), x, labels, factor * radius, steps=200, restarts=3)
    assert found.succeeded.all() if factor > 1 else not found.succeeded.any()


def test_the_worst_point_of_a_curved_function_is_on_the_known_side(
    randn: Callable[..., Tensor],
) -> None:
    x = torch.zeros(1, 5, dtype=torch.float64)
    stretch = torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2], dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        return torch.stack([1 - (stretch * x.square()).sum(1), torch.zeros_like(x[:, 0])], dim=1)

    found = pgd(function, x, torch.zeros(1, dtype=torch.int64), 0.9, steps=100, restarts=3)
    assert float(found.gap) == pytest.approx(1 - 0.81, rel=1e-3)


def test_attacked_images_stay_in_ball_and_box(randn: Callable[..., Tensor]) -> None:
    x = torch.rand(4, 2, 3, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    x[0] = 0
    w = randn(3, 6, dtype=torch.float32)
    labels = linear(w)(x).argmax(1)
    free = pgd(linear(w), x, labels, 0.4, steps=10)
    boxed = pgd(linear(w), x, labels, 0.4, steps=10, box=(0.0, 1.0))
    for found in (free, boxed):
        assert (torch.linalg.vector_norm((found.x - x).flatten(1).double(), dim=1) <= 0.4).all()
    assert boxed.x.min() >= 0
    assert boxed.x.max() <= 1
    assert free.x.min() < 0
    assert (boxed.gap >= free.gap - 1e-6).all()


def test_its_gradient_is_that_of_differences(randn: Callable[..., Tensor]) -> None:
    w, x = randn(4, 6), randn(3, 6)
    labels = torch.tensor([0, 1, 2])

    def function(x: Tensor) -> Tensor:
        return torch.sin(x @ w.mT)

    gap, gradient = _descend(function, x, labels)
    for k in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[k] = 1e-6
        slope = (
            _descend(function, x + step, labels)[0] - _descend(function, x - step, labels)[0]
        ) / 2e-6
        assert torch.allclose(gradient[:, k], slope, atol=1e-8)
    assert gap.shape == (3,)


def test_success_is_checked_on_the_image_that_is_returned(randn: Callable[..., Tensor]) -> None:
    w, x = randn(3, 5), randn(20, 5)
    labels = torch.zeros(20, dtype=torch.int64)
    found = pgd(linear(w), x, labels, 0.5, steps=10)
    z = found.x @ w.mT
    assert torch.equal(found.succeeded, z[:, 0] <= z[:, 1:].amax(1))
    assert 0 < int(found.succeeded.sum()) < 20


def test_flat_and_broken_gradients_are_reported(randn: Callable[..., Tensor]) -> None:
    x, labels = randn(3, 4), torch.zeros(3, dtype=torch.int64)
    steps = pgd(
        lambda x: torch.stack([torch.ones_like(x[:, 0]) + 0 * x[:, 0], x[:, 0] * 0], dim=1),
        x,
        labels,
        0.1,
        steps=3,
    )
    assert steps.blind.all()
    assert not steps.succeeded.any()
    broken = pgd(
        lambda x: torch.stack([2 + torch.sqrt(0 * x[:, 0]), 0 * x[:, 0]], dim=1),
        x,
        labels,
        0.1,
        steps=3,
    )
    assert broken.blind.all()
    assert broken.x.isfinite().all()
    assert not pgd(linear(randn(2, 4)), x, labels, 0.1, steps=3).blind.any()


def test_an_attack_is_repeatable(randn: Callable[..., Tensor]) -> None:
    w, x = randn(3, 5), randn(4, 5)
    labels = torch.zeros(4, dtype=torch.int64)
    a, b, c = (
        pgd(lambda x: torch.sin(3 * x @ w.mT), x, labels, 0.3, steps=5, seed=seed).x
        for seed in (1, 1, 2)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_chunks_see_the_same_worst_case(
    randn: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = randn(2, 5), randn(6, 5)
    labels = torch.zeros(6, dtype=torch.int64)
    whole = pgd(linear(w), x, labels, 0.3, steps=30)
    monkeypatch.setattr(sys.modules["attnscope.attacks.projected"], "ROWS", 10)
    assert torch.allclose(pgd(linear(w), x, labels, 0.3, steps=30).gap, whole.gap, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"eps": 0.0}, "eps must be a finite number above 0"),
        ({"eps": torch.ones(3, dtype=torch.float64)}, "one for each of the 2 images"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"restarts": 1.5}, "restarts must be a whole number"),
        ({"labels": torch.tensor([0, 7])}, "between 0 and 2"),
        ({"labels": torch.tensor([0])}, "one for each of the 2 images"),
        ({"labels": torch.tensor([0.0, 1.0])}, "whole numbers"),
        ({"x": torch.full((2, 4), torch.nan, dtype=torch.float64)}, "x must be finite"),
        ({"x": torch.zeros(4, dtype=torch.float64)}, "a batch of images"),
        ({"box": (0.0, 0.5)}, "box must be two values"),
        ({"function": lambda x: x[:, 0]}, "logits"),
        (
            {"function": lambda x: (x @ torch.ones(4, 3, dtype=torch.float64)).detach()},
            "no gradient",
        ),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], says: str) -> None:
    good: dict[str, object] = {
        "function": linear(torch.eye(3, 4, dtype=torch.float64)),
        "x": torch.ones(2, 4, dtype=torch.float64),
        "labels": torch.tensor([0, 1]),
        "eps": 0.1,
    }
    with pytest.raises((ValueError, TypeError), match=says):
        pgd(**(good | change))  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_a_function_must_be_callable() -> None:
    with pytest.raises(TypeError, match="function must map images"):
        pgd(3, torch.ones(2, 4), torch.tensor([0, 1]), 0.1)  # type: ignore[arg-type]


def test_a_search_in_single_precision_is_judged_in_double(randn) -> None:  # type: ignore[no-untyped-def]
    """On a linear classifier the best attack is known: it is reached to single precision, on the
    sphere, and the gap is that of the function in float64.
    """
    weight, x = randn(2, 6), randn(5, 6)
    labels = (x @ weight.mT).argmax(1)
    attack = pgd(
        lambda u: u @ weight.mT, x, labels, 0.3, steps=20, restarts=2,
        search=lambda u: u @ weight.mT.float(),
    )  # fmt: skip
    apart = weight[labels] - weight[1 - labels]
    best = (apart * x).sum(1) - 0.3 * torch.linalg.vector_norm(apart, dim=1)
    assert attack.x.dtype == torch.float64
    assert torch.allclose(attack.gap, best, atol=1e-5)
    assert bool((torch.linalg.vector_norm(attack.x - x, dim=1) <= 0.3).all())
    logits = attack.x @ weight.mT
    own, other = (logits.gather(1, which[:, None])[:, 0] for which in (labels, 1 - labels))
    assert torch.equal(attack.gap, own - other)
