"""When a flow has ended before its last time: it blew up, or it has come to rest. Neither is read
off the size of the field alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CLOSE = 1e-5
"""A blow-up is declared when the time left to it is this small a part of the time since the start.
"""
CHANGE = 1e-2
"""The growth rate is measured over relative changes of size of at least this, well above the
solver's error.
"""
STEEPEST = 1e3
"""Poles of order down to one over this are recognised: 1 / rho is at most this times the time left.
"""
WINDOW = 1.25
"""Movement is measured over windows that end at times in this ratio."""
FIRST_WINDOW = 0.01
"""End of the first window, as a part of the whole time asked."""
SLOWED = 1e-3
"""A flow at rest moves at most at this part of the highest speed it had."""


class BlowUp:
    r"""Watches $\rho = d \log|y| / dt$. A flow that blows up like $(T - t)^{-p}$ has $1/\rho = (T -
    t)/p$, a line that reaches 0 at $T$.

    Exponential growth has constant $\rho$ and is never taken for a blow-up, however large $|y|$
    becomes.
    """

    def __init__(self, start: float, size: Array) -> None:
        self.start, self.before, self.size = start, np.full_like(size, start), size
        self.middle, self.inverse = np.full_like(size, np.nan), np.full_like(size, np.nan)
        self.rising = np.zeros(size.shape, dtype=int)
        self.time = np.full_like(size, np.inf)

    def step(self, members: NDArray[np.int64], t: float | Array, size: Array) -> None:
        """Take in the sizes of these members at time t, one for all or one each, and extrapolate
        the line to zero. Small changes wait until they have added up.
        """
        with np.errstate(all="ignore"):
            grown = np.log(size / self.size[members])
            ready = np.abs(grown) >= CHANGE
            t = np.broadcast_to(t, size.shape)[ready]
            members, size, grown = members[ready], size[ready], grown[ready]
            inverse = (t - self.before[members]) / grown
            middle = (t + self.before[members]) / 2
            drop = self.inverse[members] - inverse
            falling = (inverse > 0) & (drop > 0)
            self.rising[members] = np.where(falling, self.rising[members] + 1, 0)
            zero = middle + inverse * (middle - self.middle[members]) / drop
        self.time[members] = np.where(self.rising[members] >= 3, np.maximum(zero, t), np.inf)
        self.before[members], self.size[members] = t, size
        self.middle[members], self.inverse[members] = middle, inverse

    def reached(
        self, members: NDArray[np.int64], t: float | Array, close: float = CLOSE
    ) -> NDArray[np.bool_]:
        """Whose pole is near: little time is left, and the size changes on that scale of time."""
        near = close * (t - self.start)
        with np.errstate(invalid="ignore"):
            return (self.time[members] - t <= near) & (self.inverse[members] <= STEEPEST * near)


class Rest:
    """Watches the movement over windows of time, each member relative to its own size.

    At rest: at the speed of the last window the rest of the asked time would move it by less than
    `settle`, that speed is far below the highest one, and it is not rising. An estimate: a
    metastable state that lasts longer than a window passes too.
    """

    def __init__(
        self, start: float, stop: float, members: int, settle: float, noise: float
    ) -> None:
        self.start, self.stop, self.settle, self.noise = start, stop, settle, noise
        self.window_start, self.window_end = start, start + FIRST_WINDOW * (stop - start)
        self.fastest, self.speed = np.zeros(members), np.full(members, np.inf)

    def due(self, t: float) -> bool:
        return t >= self.window_end

    def step(self, members: NDArray[np.int64], t: float, moved: Array) -> NDArray[np.bool_]:
        """Close the window at t: which of these members, having moved this far in it, are at
        rest.
        """
        speed = moved / (t - self.window_start)
        slow = speed * (self.stop - self.window_start) <= self.settle
        calm = (speed <= self.speed[members]) | (moved <= self.noise)
        self.fastest[members] = np.maximum(self.fastest[members], speed)
        self.speed[members] = speed
        slowed = speed <= SLOWED * self.fastest[members]
        while self.window_end <= t:
            self.window_end = self.start + WINDOW * (self.window_end - self.start)
        self.window_start = t
        return slow & calm & slowed
