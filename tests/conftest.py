"""Shapes in signatures are checked during tests; everything is seeded, single-threaded and in
float64 unless a test says otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

jaxtyping.install_import_hook("attnscope", "shape_checks.checked")

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore"
    )  # deprecations inside POT and torch, seen once at their first import
    import ot  # noqa: F401
    import torch._decomp.decompositions_for_jvp

torch.set_num_threads(1)
settings.register_profile(
    "attnscope",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("attnscope")


@pytest.fixture
def generator() -> torch.Generator:
    """A source of randomness that starts afresh in every test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def randn(generator: torch.Generator) -> Callable[..., torch.Tensor]:
    """`randn(3, 2)`: a seeded standard normal tensor in float64."""

    def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, generator=generator)

    return draw


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the shape checks of the signatures off, so that bad input reaches the hand-written
    errors as it does for users.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
