"""`Trajectory`: a measure at increasing times, and why the flow stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.measures import Gaussian, Particles
from attnscope.validation import brief

Measure = TypeVar("Measure", Particles, Gaussian)


class Outcome(NamedTuple):
    """How one flow ended: a status, the time it refers to, and a sentence."""

    status: str
    """"finished": reached the last time asked. "converged": an estimate, it had stopped moving.
    "blew up": left every bounded set at `time`. "stopped": by the progress callback. "failed":
    could not be continued past `time`.
    """
    time: float
    reason: str


@final
@dataclass(frozen=True, eq=False)
class Trajectory(Generic[Measure]):
    """States at `times`, the asked times that were reached; a flow that stopped early ends with its
    state at `stop_time`.

    In a stack each member has its own outcome, and a member that has stopped keeps its last state.
    """

    times: Float[Tensor, " steps"]
    states: tuple[Measure, ...]
    outcomes: tuple[Outcome, ...]
    evaluations: int
    """How often the field was evaluated."""
    field_error: float = 0.0
    """Largest estimated relative error of the field when it was interpolated; 0 when every
    evaluation was exact.
    """

    __repr__ = brief

    @property
    def status(self) -> str:
        """What became of the flow; "mixed" for a stack whose members ended differently (see
        `outcomes`).
        """
        found = {outcome.status for outcome in self.outcomes}
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def stop_time(self) -> float:
        """When the flow stopped: the latest time over a stack."""
        return max(outcome.time for outcome in self.outcomes)

    @property
    def final(self) -> Measure:
        return self.states[-1]

    @property
    def x(self) -> Float[Tensor, "steps *stack n d"]:
        """The particles at all times."""
        return torch.stack([_part(state, "x") for state in self.states])

    @property
    def mean(self) -> Float[Tensor, "steps *stack d"]:
        """The mean at all times."""
        return torch.stack(
            [state.mean() if isinstance(state, Particles) else state.mean for state in self.states]
        )

    @property
    def cov(self) -> Float[Tensor, "steps *stack d d"]:
        """The covariance at all times."""
        return torch.stack(
            [state.cov() if isinstance(state, Particles) else state.cov for state in self.states]
        )


def _part(state: Particles | Gaussian, name: str) -> Tensor:
    if not hasattr(state, name):
        raise TypeError(
            f"a trajectory of {type(state).__name__} has no {name}: read .mean and .cov instead."
        )
    return getattr(state, name)
