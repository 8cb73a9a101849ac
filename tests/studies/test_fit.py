"""Exponents of growth: the interval holds the truth as often as it says, and a curve that is no
power law is found out.
"""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.studies.measure.fit import Fit, growth

LENGTHS = np.repeat(2.0 ** np.arange(1, 9), 6)


def fitted(curve: np.ndarray, noise: float, seed: int, common: float = 0.0) -> Fit:
    """Noise per sequence, and noise that all sequences of one length share."""
    generator = np.random.default_rng(seed)
    shared = np.repeat(generator.normal(size=8), 6)
    log = noise * generator.normal(size=len(LENGTHS)) + common * shared
    found = growth(LENGTHS, curve * np.exp(log))
    assert found is not None
    return found


@pytest.mark.parametrize("common", [0.0, 0.1])
def test_a_power_law_is_covered_and_rarely_doubted(common: float) -> None:
    """95 % up to four standard deviations over 400 curves, also when the misfit belongs to a length
    and not to a sequence, which resampling of sequences takes for signal.
    """
    fits = [fitted(3 * LENGTHS**0.4, 0.2, seed, common) for seed in range(400)]
    covered = np.mean([one.low <= 0.4 <= one.high for one in fits])
    assert 0.95 - 4 * np.sqrt(0.95 * 0.05 / 400) <= covered <= 0.985
    assert np.mean([one.bent for one in fits]) <= 0.03
    assert np.median([one.factor for one in fits]) == pytest.approx(3, rel=0.05)
    assert np.median([one.local for one in fits]) == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("kind", ["broken", "saturating"])
def test_a_curve_that_is_no_power_law_is_found_out(kind: str) -> None:
    curve = {
        "broken": np.where(LENGTHS < 16, LENGTHS / 16, 1.0) * np.maximum(LENGTHS / 16, 1) ** 0.2,
        "saturating": 1 / (1 + 12 / LENGTHS),
    }[kind]
    fits = [fitted(curve, 0.15, seed) for seed in range(50)]
    assert np.mean([one.bent for one in fits]) >= 0.9
    assert np.mean([one.local < one.low for one in fits]) >= 0.9
    late = growth(LENGTHS, curve, fit_from=32)
    assert late is not None
    assert (late.shortest, late.longest) == (32, 256)
    if kind == "broken":
        assert late.exponent == pytest.approx(0.2)
        assert not late.bent


def test_exact_curves_and_too_few_lengths() -> None:
    exact = growth([2, 4, 8, 16, 64], [2 * n**0.5 for n in (2, 4, 8, 16, 64)])
    assert exact is not None
    assert exact.exponent == exact.low == exact.high == pytest.approx(0.5)
    assert exact.local == pytest.approx(0.5)
    assert not exact.bent
    assert growth([2, 4, 4], [1.0, 2.0, 3.0]) is None
    assert growth([2, 4, 8], [1.0, 2.0, 0.0]) is None
    assert growth([2, 4, 8, 16], [1.0, 2.0, 3.0, 4.0], fit_from=4) is not None
    assert growth([2, 4, 8, 16], [1.0, 2.0, 3.0, 4.0], fit_from=5) is None


def test_growth_recovers_a_power_law() -> None:
    n = np.repeat([2, 4, 8, 16, 32], 10)
    held, widths = 0, []
    for seed in range(40):
        noise = np.exp(0.1 * np.random.default_rng(seed).standard_normal(len(n)))
        fit = growth(n, 3.0 * n**0.25 * noise)
        assert fit is not None
        assert fit.low < fit.exponent < fit.high
        held += fit.low < 0.25 < fit.high
        widths.append(fit.high - fit.low)
    assert held >= 33  # 38 expected at 95 %
    assert np.mean(widths) < 0.1
    assert growth([2, 2, 4], [1, 1, 1]) is None
