"""The integrator: scipy's adaptive solvers stepped one by one, each member of a stack leaving when
it has ended.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.integrate
from numpy.typing import NDArray

from attnscope.attention import Attention
from attnscope.flows.events import BlowUp, Rest
from attnscope.flows.motions import Array, Motion
from attnscope.flows.trajectory import Outcome

METHODS = ("DOP853", "RK45", "RK23", "Radau", "BDF", "LSODA")
FINEST = 1e-13
"""The smallest relative tolerance that the solvers accept."""
LARGEST = 1e150
"""A state beyond this cannot be squared."""
POLE = "its size grows like a pole at this time"


@dataclass(frozen=True)
class Segment:
    """A stretch of time on which the attention is smooth in time."""

    stop: float
    attention: Callable[[float], Attention]


class Run:
    """One integration. `asked` fills row by row with the states at the asked times; a member that
    has ended keeps its last state.
    """

    def __init__(
        self,
        motion: Motion,
        times: Array,
        method: str,
        rtol: float,
        atol: float,
        settle: float | None,
        progress: Callable[[float], object] | None,
        max_steps: int,
    ) -> None:
        self.motion, self.times, self.method, self.progress = motion, times, method, progress
        self.steps_left = max_steps
        count = len(motion.start)
        self.rtol, self.atol = max(rtol / count**0.5, FINEST), atol / count**0.5
        self.t, self.y = float(times[0]), motion.start.copy()
        self.asked: list[Array] = [self.y.copy()]
        self.active: NDArray[np.int64] = np.arange(count)
        self.outcomes: list[Outcome | None] = [None] * count
        self.evaluations = 0
        self.blow_up = BlowUp(self.t, motion.size(self.y))
        self.rest = (
            None if settle is None else Rest(self.t, float(times[-1]), count, settle, 10 * rtol)
        )
        self.snapshot = self.y.copy()

    def through(self, segments: Sequence[Segment]) -> None:
        """Integrate all segments, then mark what is still moving as finished."""
        for segment in segments:
            while len(self.active) and self.t < segment.stop:
                self._advance(segment)
        self._end(self.active, "finished", "reached the last time asked", float(self.times[-1]))

    def _advance(self, segment: Segment) -> None:
        """Step until the segment ends or some member has ended: the solver then starts again
        without it.
        """
        members = self.active

        def velocity(t: float, flat: Array) -> Array:
            self.evaluations += 1
            if not np.isfinite(flat).all():
                return np.full_like(flat, np.nan)
            return self.motion.velocity(
                segment.attention(t), flat.reshape(len(members), -1), members
            ).ravel()

        start = self.y[members].ravel()
        if self.evaluations == 0:
            velocity(self.t, start)
        solver = None
        while len(self.active) == len(members) and self.t < segment.stop:
            if self.steps_left == 0:
                return self._give_up("it has used all its steps. Try a larger max_steps")
            self.steps_left -= 1
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", category=UserWarning, module="scipy")
                    if solver is None:
                        kind = getattr(scipy.integrate, self.method)
                        solver = kind(
                            velocity, self.t, start, segment.stop, rtol=self.rtol, atol=self.atol
                        )
                    problem = solver.step()
                    if solver.status == "failed" or not np.abs(solver.y).max() < LARGEST:
                        return self._give_up(
                            problem or "the state left the range of floating-point numbers"
                        )
                    self._accept(solver)
            except (ArithmeticError, RuntimeError, RuntimeWarning, ValueError) as problem:
                return self._give_up(str(problem))
            if self.progress is not None and self.progress(self.t) is False:
                self._end(self.active, "stopped", "the progress callback asked to stop", self.t)
        return None

    def _accept(self, solver: Any) -> None:
        """Take in one step: states at the asked times inside it, then the two events."""
        members = self.active
        due = self.times[len(self.asked) :]
        due = due[due <= solver.t]
        within = solver.dense_output() if (due < solver.t).any() else None
        for time in due:
            row = self.y.copy()
            row[members] = (
                within(time) if within is not None and time < solver.t else solver.y
            ).reshape(len(members), -1)
            self.asked.append(row)
        self.t = float(solver.t)
        self.y[members] = solver.y.reshape(len(members), -1)
        self.blow_up.step(members, self.t, self.motion.size(self.y[members]))
        ended = self.blow_up.reached(members, self.t) & (
            self.blow_up.time[members] <= self.times[-1]
        )
        for member in members[ended]:
            self._end(
                np.array([member]),
                "blew up",
                POLE,
                float(self.blow_up.time[member]),
            )
        if self.rest is not None and self.rest.due(self.t):
            members = self.active
            resting = self.rest.step(
                members, self.t, self.motion.moved(self.snapshot[members], self.y[members])
            )
            self.snapshot = self.y.copy()
            if self.t < self.times[-1]:
                self._end(
                    members[resting],
                    "converged",
                    "it has stopped moving, by the size it has and the time asked",
                    self.t,
                )

    def _end(self, members: NDArray[np.int64], status: str, reason: str, time: float) -> None:
        for member in members:
            self.outcomes[member] = Outcome(status, time, reason)
        self.active = np.setdiff1d(self.active, members)

    def _give_up(self, problem: str) -> None:
        """The solver cannot go on: those about to blow up have done so; else the largest member
        failed here, and the others go on.
        """
        close = self.blow_up.reached(self.active, self.t, close=1e-3)
        for member in self.active[close]:
            self._end(
                np.array([member]),
                "blew up",
                POLE,
                float(self.blow_up.time[member]),
            )
        if close.any():
            return
        largest = self.active[np.argmax(self.motion.size(self.y[self.active]))]
        blamed = self.active if self.steps_left == 0 else np.array([largest])
        reason = (
            f"could not be integrated past t = {self.t:.6g}: {problem.rstrip('.')}. Try another"
            " method, or looser tolerances."
        )
        self._end(blamed, "failed", reason, self.t)
