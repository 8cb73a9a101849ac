"""Tokens of any size: a finite field, or an error that names the overflow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.attention.sinkhorn import NotConverged


@pytest.mark.parametrize("variant", asc.variants().values())
@pytest.mark.parametrize("size", [1e-300, 1e-160, 10.0, 1e10, 1e155, 1e300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_field_is_silently_infinite(
    variant: type[asc.Attention], size: float, dtype: torch.dtype, randn: Callable[..., Tensor]
) -> None:
    if not math.isfinite(torch.tensor(size, dtype=dtype)):
        size = 1e38
    if variant is asc.Sinkhorn and size == 10:
        size = 2.0  # it stops after 5000 iterations where scores are large, and says so
    attention = variant(asc.Heads.from_matrices(randn(3, 3).to(dtype), randn(3, 3).to(dtype)))
    x = randn(5, 3)
    mu = asc.Particles((size / 2 * x / x.abs().max()).to(dtype))
    for wanted in (
        lambda: attention.push(mu).x,
        lambda: torch.tensor(asc.spectral_norm(asc.jacobian(attention, mu)).lower),
    ):
        value, complaint = tried(wanted)
        assert complaint is not None or value.isfinite().all()
        if complaint is not None:
            assert size > 1
            assert "overflow" in complaint or "Sinkhorn stopped after" in complaint


def tried(wanted: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
    """What came, and what was said instead."""
    try:
        return wanted(), None
    except (ValueError, NotConverged) as error:
        return torch.zeros(0), str(error)


def test_exponential_attention_overflows_at_ordinary_tokens() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    attention = asc.Exponential(asc.Heads.from_matrices(8 * eye, eye))
    mu = asc.Particles(10 * eye)
    with pytest.raises(ValueError, match="exponential attention overflows"):
        attention.push(mu)
    smaller = asc.Exponential(asc.Heads.from_matrices(eye, eye))
    torch.testing.assert_close(
        smaller.push(mu).x, 5 * (eye * math.exp(100) + (1 - eye)), rtol=1e-12, atol=0
    )
