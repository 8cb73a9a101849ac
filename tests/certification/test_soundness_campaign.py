"""A small share of the campaign in benchmarks/soundness.py."""

from __future__ import annotations

import pytest
from benchmarks.soundness import campaign


@pytest.mark.parametrize("start", [2, 12])
def test_no_radius_of_the_campaign_is_broken(start: int) -> None:
    attacked, broken, worst = campaign(2, start, together=2)
    assert (attacked, broken) == (2, 0)
    assert worst < 1
