"""Shapes in signatures are checked during tests; everything is seeded, single-threaded and in
float64 unless a test says otherwise.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

import shape_checks
from browser_pages import NO_BROWSER, browser, open_page  # noqa: F401

if TYPE_CHECKING:
    import torch

shape_checks.install()
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
os.environ["ATTNSCOPE_CACHE"] = "off"  # no test knows what another one measured
settings.register_profile(
    "attnscope",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("attnscope")


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands tests out to others imports neither torch nor POT."""
    spread = config.getoption("dist") != "no" and not config.getoption("collectonly")
    if spread and not hasattr(config, "workerinput"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside them, seen once at the first import
        import ot  # noqa: F401
        import torch._decomp.decompositions_for_jvp

    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Shapes are checked afresh, and what a test draws without a generator does not depend on the
    tests that ran before it in the same process.
    """
    import torch

    shape_checks.calls.clear()
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    """A source of randomness that starts afresh in every test."""
    import torch

    return torch.Generator().manual_seed(0)


@pytest.fixture
def randn(generator: torch.Generator) -> Callable[..., torch.Tensor]:
    """`randn(3, 2)`: a seeded standard normal tensor in float64."""
    import torch

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


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at rows and words: pictures cost more than most runs."""
    monkeypatch.setattr("attnscope.studies.drawing.available", lambda: False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A skip for want of a browser is said aloud: it leaves every page untested."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_BROWSER in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_sep("!", f"{count} tests of pages did NOT run: {NO_BROWSER}")
