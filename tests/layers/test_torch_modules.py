"""Bounds of torch's own layers against dense Jacobians and against perturbations that try to break
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnscope.layers import torch_layer


def dense_norm(layer: nn.Module, x: Tensor) -> float:
    jacobian = torch.func.jacrev(lambda x: layer(x).flatten())(x)
    return float(torch.linalg.matrix_norm(jacobian.detach().reshape(-1, x.numel()), 2))


def declared(layer: nn.Module, x: Tensor) -> float:
    found = torch_layer(layer)
    assert found is not None
    return float(found.over(x, torch.ones(1, dtype=torch.float64)).radius)


def left(layer: nn.Module, x: Tensor, eps: Tensor, gradients: Tensor) -> float:
    """The remainder that the rule allows against one direction, or the largest of several."""
    found = torch_layer(layer)
    assert found is not None
    remainder = found.over(x, eps).remainder
    assert remainder is not None
    return float(remainder(gradients).within(eps).abs().max())


@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.integers(0, 2),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    groups=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_the_norm_of_a_convolution_is_never_too_small(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: int,
    dilation: tuple[int, int],
    groups: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    size = [d * (k - 1) + 2 for d, k in zip(dilation, kernel, strict=True)]
    layer = nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups).double()
    x = torch.zeros(1, 2, *size, dtype=torch.float64)
    assert dense_norm(layer, x) <= declared(layer, x)


def test_the_norm_of_patches_is_exact_and_that_of_a_convolution_is_near() -> None:
    torch.manual_seed(0)
    x = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    patches, usual = nn.Conv2d(3, 5, 4, stride=4).double(), nn.Conv2d(3, 5, 3, padding=1).double()
    assert declared(patches, x) == pytest.approx(dense_norm(patches, x), rel=1e-8)
    assert declared(usual, x) <= 1.1 * dense_norm(usual, x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 1),
        nn.AvgPool2d((2, 3), (1, 2)),
        nn.Flatten(),
        nn.Dropout().eval(),
    ],
)
def test_linear_layers_of_torch(layer: nn.Module) -> None:
    x = torch.zeros(1, 2, 6, 7, dtype=torch.float64)
    assert dense_norm(layer, x) <= declared(layer, x)


def test_a_linear_layer_has_its_largest_singular_value_and_no_remainder(
    randn: Callable[..., Tensor],
) -> None:
    layer = nn.Linear(5, 4).double()
    assert declared(layer, randn(1, 3, 5)) == pytest.approx(
        float(torch.linalg.matrix_norm(layer.weight.detach(), 2)), rel=1e-8
    )
    one = torch.ones(1, dtype=torch.float64)
    assert left(layer, randn(1, 3, 5), one, randn(6, 1, 3, 4)) == 0


ACTIVATIONS = [
    nn.ReLU(),
    nn.LeakyReLU(0.2),
    nn.LeakyReLU(1.5),
    nn.LeakyReLU(-0.5),
    nn.Tanh(),
    nn.Sigmoid(),
]


def worst_remainder(layer: nn.Module, x: Tensor, eps: float, g: Tensor) -> float:
    """The largest $-<g, R>$ that ascent on the sphere and on single entries finds."""
    with torch.enable_grad():
        slope = torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1].detach()
        starts = torch.cat(
            [
                torch.eye(len(x)),
                -torch.eye(len(x)),
                torch.randn(30, len(x), generator=torch.Generator().manual_seed(1)),
            ]
        )
        d = (
            starts.double() / torch.linalg.vector_norm(starts, dim=1, keepdim=True) * eps
        ).requires_grad_()
        best = -math.inf
        for _ in range(60):
            value = -((layer(x + d) - layer(x) - slope * d) * g).sum(1)
            best = max(best, float(value.detach().max()))
            (up,) = torch.autograd.grad(value.sum(), d)
            step = d + 0.3 * eps * up / torch.linalg.vector_norm(up, dim=1, keepdim=True).clamp(
                min=1e-12
            )
            d = (
                (step / torch.linalg.vector_norm(step, dim=1, keepdim=True).clamp(min=eps) * eps)
                .detach()
                .requires_grad_()
            )
    return best


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("eps", [0.05, 0.5, 3.0])
def test_remainders_of_activations_hold_and_are_near(
    layer: nn.Module, eps: float, randn: Callable[..., Tensor]
) -> None:
    ratios = []
    for _ in range(8):
        x, g = randn(5), randn(5)
        bound = left(layer, x[None], torch.tensor([eps], dtype=torch.float64), g[None, None])
        worst = worst_remainder(layer, x, eps, g)
        assert worst <= bound * (1 + 1e-9) + 1e-12
        if worst > 1e-9:
            ratios.append(worst / bound)
    assert not ratios or max(ratios) > 0.3


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=repr)
def test_slopes_of_activations(layer: nn.Module) -> None:
    u = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    steepest = float((layer(u).diff() / u.diff()).abs().max())
    assert steepest == pytest.approx(declared(layer, u[None]), rel=1e-5)


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.Sigmoid()], ids=repr)
def test_curvatures_of_smooth_activations(layer: nn.Module) -> None:
    u = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    second = (layer(u).diff().diff() / (u[1] - u[0]) ** 2).abs().max()
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    assert 2 * left(layer, one[0], one[0, 0], one) == pytest.approx(float(second), rel=1e-4)
