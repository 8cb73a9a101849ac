"""Axes of drawn figures: from numbers to places, and round numbers to write beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Self

from attnscope.report.markup import number


class Axis(NamedTuple):
    """Numbers from `low` to `high` on a line from `start` to `end`, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float | None], start: float, end: float, log: bool = False
    ) -> Self:
        """An axis that holds all values that it can show, with a little room on both sides."""
        shown = [
            value
            for value in values
            if value is not None and math.isfinite(value) and (value > 0 or not log)
        ]
        low, high = (min(shown), max(shown)) if shown else (1.0, 10.0)
        if log:
            room = (high / low) ** 0.06 if high > low else 1.5
            return cls(low / room, high * room, start, end, log)
        room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        return cls(low - room, high + room, start, end, log)

    def at(self, value: float) -> float:
        """Where a number is; what lies outside is put on the edge."""
        if self.log:
            low, high, here = math.log(self.low), math.log(self.high), math.log(max(value, 1e-300))
        else:
            low, high, here = self.low, self.high, value
        share = min(max((here - low) / (high - low), 0.0), 1.0)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round numbers inside, with how they are written."""
        found = self._powers(most) if self.log else []
        if len(found) < 2:
            found = self._steps(most)
        return [(self.at(value), number(value, 3)) for value in found]

    def _steps(self, most: int) -> list[float]:
        raw = (self.high - self.low) / most
        power = 10 ** math.floor(math.log10(raw))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [
            round((first + i) * step, 12)
            for i in range(count)
            if not self.log or (first + i) * step > 0
        ]

    def _powers(self, most: int) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for sizes in ((1, 2, 5), (1, 3), (1,)):
            found = [size * 10.0**e for e in exponents for size in sizes]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= most + 1:
                return found
        return found[:: math.ceil(len(found) / most)]
