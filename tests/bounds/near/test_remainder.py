"""The Taylor remainder against fixed directions: no attack exceeds it, it is of second order, it
vanishes where attention is linear.
"""

from __future__ import annotations

import pytest
import torch
from sensitivity_cases import Layer, largest_remainder, random_case

from attnscope import L2, Heads, Sigmoid, Softmax, bounds

VARIANTS = (Softmax, L2, Sigmoid)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_attack_exceeds_the_bound(variant: type[Layer]) -> None:
    reached = 0.0
    for seed in range(500, 526):
        case = random_case(seed, variant, stack=4)
        gradient = torch.randn(
            2, *case.x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        bound = bounds.remainder(case.attention, case.x, case.eps, gradient)
        found = largest_remainder(case, gradient, steps=15)
        rounding = 1e-10 * (1 + case.x.abs().amax((-2, -1))) * torch.linalg.matrix_norm(gradient)
        assert (found <= bound + rounding).all(), f"seed {seed}"
        reached = max(reached, float((found / (bound + rounding)).max()))
    assert reached > 0.2, "the attack is too weak to test anything"


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_one_sided_and_scales_with_the_direction(variant: type[Layer]) -> None:
    case = random_case(10, variant, stack=2)
    gradient = torch.randn(
        1, *case.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    bound = bounds.remainder(
        case.attention, case.x, case.eps, torch.cat([gradient, 3 * gradient, -gradient])
    )
    torch.testing.assert_close(bound[1], 3 * bound[0])
    assert (bound[0] != bound[2]).any()
    assert (bound >= 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_falls_with_the_square_of_the_radius(variant: type[Layer]) -> None:
    case = random_case(2, variant, stack=2)
    gradient = torch.randn(
        1, *case.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    large, small = (bounds.remainder(case.attention, case.x, eps, gradient) for eps in (1e-6, 1e-7))
    torch.testing.assert_close(large / small, torch.full_like(large, 100.0), rtol=1e-2, atol=0)


def test_without_scores_attention_is_linear(randn) -> None:  # type: ignore[no-untyped-def]
    attention = Softmax(Heads.from_matrices(torch.zeros(2, 2, dtype=torch.float64), randn(2, 2)))
    bound = bounds.remainder(attention, randn(3, 2), 0.5, randn(2, 3, 2))
    assert float(bound.max()) < 1e-9
