"""The interpolated field: as exact as it says, exact where it cannot serve, the same flow in the
end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnscope import L2, Exponential, Heads, Particles, Sigmoid, Sinkhorn, Softmax
from attnscope.flows import fast, flow
from attnscope.flows.fast import Interpolated

Randn = Callable[..., torch.Tensor]


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("variant", [Softmax, L2, Exponential, Sigmoid])
def test_the_estimate_covers_the_error_at_every_query(
    variant: type[Softmax], d: int, randn: Randn
) -> None:
    n = {1: 500, 2: 2000, 3: 4000}[d]
    heads = Heads(
        0.4 * randn(2, 2, d),
        0.4 * randn(2, 2, d),
        randn(2, d, d),
        query_bias=0.3 * randn(2, 2),
        key_bias=0.3 * randn(2, 2),
    )
    att, weights = variant(heads), randn(n).exp()
    mu = Particles(0.5 * randn(n, d), weights / weights.sum())
    tolerance = 1e-3 if d == 3 else 1e-8
    field, error = Interpolated(tolerance)(att, mu.x, mu)
    exact = att(mu.x, mu)
    assert 0 < error <= tolerance
    largest = torch.linalg.vector_norm(exact, dim=-1).max()
    assert torch.linalg.vector_norm(field - exact, dim=-1).max() <= 10 * tolerance * largest


def test_a_cloud_on_a_line_or_at_a_point_is_served(randn: Randn) -> None:
    att = Softmax(Heads.from_matrices(randn(2, 2), randn(2, 2)))
    on_line = randn(2000, 1) @ randn(1, 2)
    for x in (on_line, torch.ones(2000, 2, dtype=torch.float64)):
        mu = Particles(x)
        field, error = Interpolated(1e-9)(att, x, mu)
        assert error <= 1e-9
        assert torch.allclose(field, att(x, mu), atol=1e-7)


def test_a_kernel_too_sharp_to_interpolate_gets_the_exact_field(randn: Randn) -> None:
    att, mu = (
        Softmax(Heads.from_matrices(400 * torch.eye(2, dtype=torch.float64), randn(2, 2))),
        Particles(randn(2000, 2)),
    )
    field, error = Interpolated(1e-8)(att, mu.x, mu)
    assert error == 0.0
    assert torch.equal(field, att(mu.x, mu))


def test_it_serves_only_large_clouds_of_pointwise_kernels_in_low_dimension(randn: Randn) -> None:
    def serves(
        d: int, n: int, variant: type[Softmax] = Softmax, tolerance: float = 1e-8, **options: bool
    ) -> bool:
        att = variant(Heads.from_matrices(randn(d, d), randn(d, d)), **options)
        return Interpolated.serving(att, Particles(randn(n, d)), tolerance) is not None

    assert serves(2, 2000)
    assert not serves(2, 1999)
    assert not serves(4, 2000)
    assert not serves(2, 2000, Sinkhorn)
    assert not serves(2, 2000, causal=True)
    assert not serves(2, 2000, tolerance=0.0)


def test_the_flow_is_the_same_with_and_without(
    monkeypatch: pytest.MonkeyPatch, randn: Randn
) -> None:
    monkeypatch.setattr(fast, "SMALLEST_CLOUD", 500)
    att, mu = (
        Softmax(Heads.from_matrices(0.5 * randn(2, 2), randn(2, 2))),
        Particles(0.5 * randn(800, 2)),
    )
    exact, quick = (
        flow(att, mu, [0, 0.4], rtol=1e-5, atol=1e-7, fast=0),
        flow(att, mu, [0, 0.4], rtol=1e-5, atol=1e-7),
    )
    assert exact.field_error == 0 < quick.field_error <= 1e-5
    assert torch.allclose(exact.final.x, quick.final.x, atol=1e-4)
