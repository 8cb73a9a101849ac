"""What is printed at a prompt is a line or two, however large the tensors are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import attnscope as asc
from attnscope.validation import brief

Randn = Callable[..., torch.Tensor]


@pytest.fixture
def attention(randn: Randn) -> asc.Softmax:
    size = [0.1 * randn(2, 10, 20) for _ in range(3)]
    biases = [randn(2, 10), randn(2, 10), randn(2, 10), randn(20)]
    return asc.Softmax(asc.Heads(*size, randn(2, 20, 10), *biases), causal=True)


def test_heads_and_attention_say_their_sizes_and_parts(attention: asc.Softmax) -> None:
    biases = "query_bias, key_bias, value_bias, output_bias"
    heads = f"Heads(2 x k=10, d=20, output, {biases}, scale=0.316228, float64)"
    assert repr(attention.heads) == heads
    assert repr(attention) == f"Softmax(heads={heads}, causal=True)"
    q, v, w = torch.zeros(1, 4, 3), torch.zeros(1, 2, 3), torch.zeros(1, 3, 2)
    rotary = asc.Heads(q, q, v, w, rotary=torch.ones(2))
    assert repr(rotary) == "Heads(1 x k=4, d=3, v=2, output, rotary, scale=0.5, float32)"


def test_measures_say_their_shapes(randn: Randn) -> None:
    x = randn(30, 20)
    assert repr(asc.Particles(x)) == "Particles(x=float64 (30, 20), weights=float64 (30,))"
    gaussian = asc.Gaussian(torch.zeros(2), torch.eye(2))
    assert repr(gaussian) == "Gaussian(mean=[0, 0], cov=float32 (2, 2))"


def test_operators_and_what_is_found_of_them(attention: asc.Softmax, randn: Randn) -> None:
    op = asc.jacobian(attention, asc.Particles(randn(30, 20)))
    assert repr(op) == (
        "LinearOperator(in_shape=(30, 20), out_shape=(30, 20), dtype=torch.float64, device=cpu)"
    )
    norm = asc.spectral_norm(op)
    assert repr(norm).startswith(f"SpectralNorm(lower={norm.lower!r}, residual=")
    assert repr(norm).endswith(
        "left=float64 (30, 20), right=float64 (30, 20), finish='float64 on cpu')"
    )
    assert repr(asc.singular_values(op, k=2)).startswith("SingularValues(values=[")


def test_everything_is_a_line_or_two(attention: asc.Softmax, randn: Randn) -> None:
    mu = asc.Particles(randn(30, 20))
    op = asc.jacobian(attention, mu)
    matrix = torch.eye(3, dtype=torch.float64)
    small, start = asc.Sinkhorn(asc.Heads.from_matrices(matrix, -matrix)), randn(3, 3)
    gaussian = asc.Gaussian(start[0], start @ start.mT)
    made = [
        attention,
        attention.heads,
        mu,
        gaussian,
        small,
        small.affine(gaussian),
        op,
        asc.jacobian(attention, asc.Particles(randn(2, 30, 20))),
        asc.spectral_norm(op, failure_probability=1e-3),
        asc.singular_values(op, k=8),
        asc.flow(small, asc.Particles(start), [0.0, 0.1, 0.2]),
        asc.attacks.split(asc.Softmax(attention.heads), mu),
        asc.Ellipsoid(torch.ones(20)),
        asc.Certificate(1, 0.1, True, 0.2, 0.3, "NT4"),
    ]
    long = [repr(one) for one in made if len(repr(one)) > 250 or "\n" in repr(one)]
    assert long == []
    assert all(repr(one).startswith(f"{type(one).__name__}(") for one in made)


def test_long_tuples_are_counted_and_scalars_shown(randn: Randn) -> None:
    states = tuple(asc.Particles(randn(2, 1)) for _ in range(3))
    times = torch.tensor([0.0, 0.5, 1.0])
    made = asc.Trajectory(times, states, (), 7, float("nan"))
    assert brief(made) == (
        "Trajectory(times=[0, 0.5, 1], states=<3 of Particles>, evaluations=7, field_error=nan)"
    )
