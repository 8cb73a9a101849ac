"""Invertible attention while it learns: gradients without stored activations, their memory,
log-determinants.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from invertible_cases import DIM, MAKERS, stack, tokens
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope import Heads, Softmax
from attnscope.nets.invertible import Invertible
from attnscope.nets.invertible.logdet import dense_jacobian, enough_terms, remainder

EVERY = pytest.mark.parametrize("name", MAKERS)


def gradients(net: Invertible, x: torch.Tensor, store: bool) -> dict[str, torch.Tensor]:
    """Of a loss that weighs every output differently, in the input and in every weight."""
    x = x.clone().requires_grad_()
    y = net(x, store=store)
    weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    named = {"x": x, **dict(net.named_parameters())}
    return dict(
        zip(named, torch.autograd.grad((weights * y).sum(), list(named.values())), strict=True)
    )


@EVERY
def test_gradients_without_stored_activations_are_those_of_autograd(name: str) -> None:
    net, x = stack(name, squash="one head" in name), tokens(2, 8)
    plain, found = gradients(net, x, store=True), gradients(net, x, store=False)
    largest = max(float(gradient.norm()) for gradient in plain.values())
    for part, gradient in plain.items():
        assert (found[part] - gradient).norm() <= 1e-9 * gradient.norm() + 1e-14 * largest, part


@pytest.mark.parametrize("name", ["causal softmax", "sigmoid", "tied l2", "l2"])
def test_gradients_pass_through_the_scale_and_the_tracked_radii(name: str) -> None:
    net, x = stack(name, depth=2), tokens(8)
    found, width = gradients(net, x, store=False), 1e-5
    weights = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
    for part, parameter in net.named_parameters():
        direction = torch.randn(
            parameter.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(5)
        )
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * width * direction)
                values.append(float((weights * net(x)).sum()))
                parameter.sub_(sign * width * direction)
        slope = (values[0] - values[1]) / (2 * width)
        assert float((found[part] * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-8), (
            part
        )


def test_only_what_is_asked_for_is_differentiated() -> None:
    net, x = stack("softmax"), tokens(8)
    first = net.layers[0]
    first.requires_grad_(False)
    net(x).square().sum().backward()
    assert all(parameter.grad is None for parameter in first.parameters())
    assert all(parameter.grad is not None for parameter in net.layers[1].parameters())
    assert x.grad is None


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "tied l2"])
def test_training_keeps_the_contraction(name: str) -> None:
    net, x = stack(name), tokens(8)
    optimiser = torch.optim.SGD(net.parameters(), lr=3.0)
    for _ in range(5):
        optimiser.zero_grad()
        (-net(x).square().sum()).backward()
        optimiser.step()
    y = net(x).detach()
    assert all(step.constant <= 0.9 * (1 + 1e-9) for step in net.steps())
    assert (net.inverse(y).x - x).norm() < 1e-10
    if "tied" in name:
        heads = net.attentions()[0].heads
        assert torch.equal(heads.query, heads.key)


class Live(TorchDispatchMode):
    """The largest number of bytes that tensors made inside held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self.seen = 0, 0, weakref.WeakSet[Any]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for part in tree_leaves(out):
            if isinstance(part, torch.Tensor) and part.untyped_storage() not in self.seen:
                storage = part.untyped_storage()
                self.seen.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
                self.peak = max(self.peak, self.now)
        return out

    def _free(self, count: int) -> None:
        self.now -= count


def peak(depth: int, store: bool) -> int:
    net = Invertible.random("softmax", depth, tokens=192, dim=4, radius=1.0, contraction=0.3)
    x = (
        torch.rand(192, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 2
    ).requires_grad_()
    with Live() as live:
        net(x, store=store).square().sum().backward()
    return live.peak


def test_memory_of_the_backward_pass_does_not_grow_with_depth() -> None:
    assert peak(24, store=False) <= 1.3 * peak(2, store=False)
    assert peak(24, store=True) > 5 * peak(2, store=True)


@EVERY
def test_the_exact_log_determinant_is_that_of_the_whole_jacobian(name: str) -> None:
    net, x = stack(name, depth=2, squash="one head" in name), tokens(2, 4)
    found = net.log_determinant(x)
    assert found.kind == "exact"
    assert torch.allclose(found.y, net(x))
    for place in range(2):
        whole = torch.autograd.functional.jacobian(lambda z: net(z, store=True), x[place]).reshape(
            4 * DIM, 4 * DIM
        )
        sign, value = torch.linalg.slogdet(whole)
        assert sign == 1
        assert float(found.value[place].detach()) == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize("name", ["softmax", "causal softmax", "sigmoid", "tied l2"])
def test_the_series_agrees_within_its_error(name: str) -> None:
    net, x = stack(name, depth=2, contraction=0.7), tokens(2, 4)
    found, true = net.log_determinant(x, "series", probes=400, generator=2), net.log_determinant(x)
    assert found.kind == "estimate"
    assert ((found.value - true.value).abs() <= 5 * found.standard_error + found.truncation).all()
    assert (found.standard_error > 0).all()
    few = net.log_determinant(x, "series", probes=100, generator=3)
    assert float((few.standard_error / found.standard_error).mean()) == pytest.approx(2, rel=0.3)


def test_the_series_of_a_multiple_of_the_identity_is_a_logarithm() -> None:
    """One token reads itself alone: f(x) = cx, every probe sees the whole trace, and the series is
    that of log(1 + c).
    """
    heads = Heads.from_matrices(
        torch.zeros(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    )
    net = Invertible([Softmax(heads)], tokens=1, radius=1.0, contraction=0.5)
    x = torch.ones(1, 3, dtype=torch.float64) / 3
    c = float((net(x).detach() / x - 1).mean())
    found = net.log_determinant(x, "series", probes=2, terms=40, generator=0)
    assert c > 0.3
    assert float(found.value.detach()) == pytest.approx(3 * math.log1p(c), rel=1e-9)


def test_the_standard_error_is_the_spread_of_the_estimates() -> None:
    net, x = stack("sigmoid", depth=1), tokens(4)
    runs = [
        net.log_determinant(x, "series", probes=8, terms=6, generator=seed) for seed in range(40)
    ]
    values, said = (
        torch.stack([getattr(run, part).detach() for run in runs])
        for part in ("value", "standard_error")
    )
    assert float(values.std() / said.square().mean().sqrt()) == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("terms", [1, 2, 5, 10])
def test_what_the_series_leaves_out_is_below_its_bound(terms: int) -> None:
    (step,) = (step.detached() for step in stack("causal softmax, one head", depth=1).steps())
    x = tokens(4)
    entries = x.numel()
    jacobian = dense_jacobian(step, x) - torch.eye(entries, dtype=x.dtype)
    partial = sum(
        (-1) ** (k + 1) * torch.linalg.matrix_power(jacobian, k).trace() / k
        for k in range(1, terms + 1)
    )
    true = torch.linalg.slogdet(dense_jacobian(step, x)).logabsdet
    assert abs(float(partial - true)) <= remainder(step.constant, entries, terms)


@pytest.mark.parametrize("terms", [1, 3, 8])
def test_the_remainder_covers_the_worst_contraction(terms: int) -> None:
    constant, entries = 0.7, 6
    partial = sum((-1) ** (k + 1) * entries * (-constant) ** k / k for k in range(1, terms + 1))
    left_out = abs(
        partial - entries * float(torch.log1p(torch.tensor(-constant, dtype=torch.float64)))
    )
    assert left_out <= remainder(constant, entries, terms) <= 3 * left_out
    assert remainder(constant, entries, enough_terms(constant, entries)) <= 1e-3


def test_large_inputs_get_an_estimate_and_small_ones_the_truth() -> None:
    net = Invertible.random("softmax", 1, tokens=64, dim=4, radius=1.0)
    x = torch.zeros(64, 4, dtype=torch.float64)
    assert net.log_determinant(x[:32]).kind == "exact"
    found = net.log_determinant(x, terms=3)
    assert (found.kind, found.terms, found.probes) == ("estimate", (3,), 16)


@pytest.mark.parametrize("method", ["exact", "series"])
def test_log_determinants_are_differentiable(method: str) -> None:
    net, x = stack("softmax", depth=2), tokens(4)
    parameter, width = dict(net.named_parameters())["layers.0.weights.value"], 1e-5
    value = net.log_determinant(x, method, terms=5).value  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(value, parameter)
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter[0, 0, 0] += sign * width
        values.append(float(net.log_determinant(x, method, terms=5).value.detach()))  # type: ignore[arg-type]
        with torch.no_grad():
            parameter[0, 0, 0] -= sign * width
    assert float(slope[0, 0, 0]) == pytest.approx((values[0] - values[1]) / (2 * width), rel=1e-5)
