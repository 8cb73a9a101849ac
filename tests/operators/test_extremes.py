"""Singular values over the whole range of floating point: right, or an error that names the
overflow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spectrum import of_matrix
from torch import Tensor

import attnscope as asc
from attnscope.operators.scaling import exponents, norms, times_powers


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), power=st.integers(-900, 1000), certified=st.booleans())
def test_a_power_of_two_times_a_map_has_that_multiple_of_its_norm(
    seed: int, power: int, certified: bool
) -> None:
    """Exactly, bracket and number of pairs included."""
    m = torch.randn(2, 12, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probability = 1e-3 if certified else None
    one, other = (
        asc.spectral_norm(of_matrix(made), tol=1e-6, failure_probability=probability)
        for made in (m, m * 2.0**power)
    )
    assert torch.equal(other.lower, one.lower * 2.0**power)
    assert torch.equal(other.pairs, one.pairs)
    assert torch.equal(other.left, one.left)
    assert torch.equal(other.right, one.right)
    if certified:
        assert torch.equal(other.upper, one.upper * 2.0**power)
    several, multiple = (
        asc.singular_values(of_matrix(made), 2).values for made in (m, m * 2.0**power)
    )
    torch.testing.assert_close(multiple, several * 2.0**power, rtol=1e-9, atol=0)


@pytest.mark.parametrize("power", [-80, 0, 100])
def test_the_same_in_single_precision(power: int, randn: Callable[..., Tensor]) -> None:
    m = randn(3, 20, 20).float()
    one, other = (
        asc.spectral_norm(of_matrix(made), tol=1e-4, failure_probability=1e-3)
        for made in (m, m * 2.0**power)
    )
    assert torch.equal(other.lower, one.lower * 2.0**power)
    assert torch.equal(other.upper, one.upper * 2.0**power)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e-160, 1e160, 1e300])
def test_a_stack_of_all_sizes(size: float, randn: Callable[..., Tensor]) -> None:
    m = randn(3, 30, 30)
    m[1] *= size
    m[2] = 0
    found = asc.spectral_norm(of_matrix(m), tol=1e-8, failure_probability=1e-6)
    truth = torch.linalg.matrix_norm(m, 2)
    torch.testing.assert_close(found.lower, truth, rtol=1e-7, atol=0)
    assert (found.lower <= truth * (1 + 1e-12)).all()
    assert (found.upper >= truth).all()
    assert found.converged.all()
    torch.testing.assert_close(found.left[:2].norm(dim=1), torch.ones(2, dtype=m.dtype))


@pytest.mark.parametrize("size", [1e-200, 1e-160, 1e-38, 1e38, 1e200])
@pytest.mark.parametrize(("tol", "off"), [(1e-10, 1e-9), (1e-6, 2e-6)])
def test_values_of_attention_of_any_size(
    size: float, tol: float, off: float, randn: Callable[..., Tensor]
) -> None:
    """At 1e-6 those of ordinary size are found by float32 products, which others have not."""
    a, v, mu = randn(3, 3), randn(3, 3), asc.Particles(randn(5, 3))
    one, other = (
        asc.spectral_norm(
            asc.jacobian(asc.Softmax(asc.Heads.from_matrices(a, made)), mu),
            tol=tol,
            failure_probability=1e-6,
        )
        for made in (v, v * size)
    )
    assert other.lower == pytest.approx(one.lower * size, rel=off)
    assert other.upper == pytest.approx(one.upper * size, rel=off)


def test_what_cannot_be_represented_is_an_error_that_says_so() -> None:
    largest = torch.full((4, 4), 1e308, dtype=torch.float64)
    with pytest.raises(ValueError, match="overflow"):
        asc.spectral_norm(of_matrix(largest))
    with pytest.raises(ValueError, match=r"overflow in torch\.float32"):
        asc.spectral_norm(of_matrix(torch.full((40, 40), 3e38)))
    with pytest.raises(ValueError, match=r"overflow in torch\.float64"):
        asc.jacobian(lambda x: x.exp(), torch.full((3,), 1e3, dtype=torch.float64))


@given(seed=st.integers(0, 10**6), power=st.integers(-1060, 1015))
def test_norms_neither_overflow_nor_vanish(seed: int, power: int) -> None:
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    made = norms(times_powers(x, np.full(4, power)))
    expected = np.ldexp(np.linalg.norm(x.numpy(), axis=1), power)
    np.testing.assert_allclose(made, expected, rtol=1e-14, atol=1e-322)
    assert (exponents(made)[np.abs(np.log2(made)) < 60] == 0).all()
