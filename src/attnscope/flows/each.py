r"""`flow_each`: many Gaussians at once, each under an attention of its own.

A member is $m' = Bm + b$, $L' = BL$ with $S = LL^T$, as in `motions` [castin25]. All members step
together by a Rosenbrock method (`rosenbrock`), with exact Jacobians by forward differentiation of
the closed form; each has its own time, its own step size and its own end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.flows import rosenbrock
from attnscope.flows.events import BlowUp
from attnscope.flows.integrate import check_tolerances, checked_times, fitting
from attnscope.flows.motions import Array, GaussianMotion, Members, gaussian_velocity
from attnscope.flows.rosenbrock import Rows
from attnscope.flows.solver import LARGEST, POLE
from attnscope.flows.trajectory import Outcome, Trajectory
from attnscope.measures import Gaussian
from attnscope.validation import check_kind, check_tensor, described

SMALLEST = 16 * torch.finfo(torch.float64).eps
"""Steps below this part of the time no longer move it."""
NEARLY = 1.01
"""A step that would end this near to an asked time ends there."""

HEADS = tuple(field.name for field in dataclasses.fields(Heads))


def flow_each(
    attentions: Sequence[Attention],
    measure: Gaussian,
    times: Sequence[float] | Tensor,
    rtol: float = 1e-8,
    atol: float = 1e-10,
    *,
    progress: Callable[[float], object] | None = None,
    max_steps: int = 5_000,
) -> Trajectory[Gaussian]:
    r"""Move the stack `measure` of Gaussians, member i under `attentions[i]`, from the first of
    `times` to the last: `flow` for many small stiff runs at once.

    Attentions are of one variant with heads of one shape; they differ in their weights. The method
    is implicit, so that time scales may differ by many orders; it takes $8(d + d^2)^2$ bytes per
    member. A member "finished", "blew up", or "failed" after `max_steps` steps or where the closed
    form has no derivative (Sinkhorn's, where singular values are equal); rest is not looked for.
    `progress(t)` gets the earliest time of those still moving; when it returns False the rest has
    "stopped". A member that has ended keeps its last state.
    """
    asked = checked_times(times)
    check_tolerances(rtol, atol)
    fields = Fields.of(_fitting_each(attentions, measure))
    motion = GaussianMotion(measure)
    run = StackRun(fields, motion, asked, rtol, atol, max_steps)
    with torch.no_grad():
        while len(run.active):
            run.advance()
            earliest = run.earliest()
            if progress is not None and earliest is not None and progress(earliest) is False:
                run.end(run.active, "stopped", "the progress callback asked to stop")
    return run.trajectory()


class Fields(NamedTuple):
    """The velocity of each member: a variant, and the parts of everyone's heads as stacks."""

    variant: Attention
    parts: Mapping[str, Tensor]

    @classmethod
    def of(cls, attentions: Sequence[Attention]) -> Fields:
        every = [attention.heads.parts() for attention in attentions]
        parts = {
            name: torch.stack(
                [torch.as_tensor(parts[name]).to(every[0]["query"]) for parts in every]
            )
            for name, part in every[0].items()
            if part is not None
        }
        return cls(attentions[0], parts)

    def among(self, members: Members) -> Fields:
        return Fields(self.variant, {name: part[members] for name, part in self.parts.items()})

    def _one(self, parts: Mapping[str, Tensor], row: Tensor) -> Tensor:
        heads = Heads.from_parts({**dict.fromkeys(HEADS), **parts})
        return gaussian_velocity(dataclasses.replace(self.variant, heads=heads), row)

    def velocity(self, y: Rows) -> Rows:
        # a decomposition of one member that is not finite would raise for all
        fine = y.isfinite().all(-1, keepdim=True)
        got = torch.func.vmap(self._one)(self.parts, torch.where(fine, y, 0.0))
        return torch.where(fine, got, torch.nan)

    def jacobian(self, y: Rows) -> Float64[Tensor, "members numbers numbers"]:
        return torch.func.vmap(torch.func.jacfwd(self._one, argnums=1))(self.parts, y)


class StackRun:
    """One integration. Of each member: its time, its state, the size of its next step, and the
    number of the asked time that it goes to.
    """

    def __init__(
        self,
        fields: Fields,
        motion: GaussianMotion,
        times: Array,
        rtol: float,
        atol: float,
        max_steps: int,
    ) -> None:
        self.fields, self.motion, self.rtol, self.atol = fields, motion, rtol, atol
        self.y = torch.from_numpy(motion.start).to(motion.device)
        self.times = torch.from_numpy(times).to(self.y)
        count = len(self.y)
        self.t = self.times[:1].repeat(count)
        self.asked = self.y.repeat(len(times), 1, 1)
        self.due: Int64[Tensor, " members"] = torch.ones(count, dtype=torch.long)
        self.steps_left = np.full(count, max_steps)
        self.h = rosenbrock.first_size(self.y, fields.velocity(self.y), rtol, atol)
        self.first = self.h.clone()
        self.active: Members = np.arange(count)
        self.moving = fields
        self.outcomes: list[Outcome | None] = [None] * count
        self.evaluations = 1
        self.blow_up = BlowUp(float(times[0]), motion.size(motion.start))

    def advance(self) -> None:
        """One step of every member that is still moving; it may be refused for some."""
        members = self.active
        y, t, h = self.y[members], self.t[members], self.h[members]
        goal = self.times[self.due[members]]
        lands = NEARLY * h >= goal - t
        tried = torch.where(lands, goal - t, h)
        made = rosenbrock.step(self.moving.velocity, self.moving.jacobian(y), y, tried)
        self.evaluations += len(rosenbrock.A) + 1
        norm = rosenbrock.error_norm(made.error, y, made.y, self.rtol, self.atol)
        good = norm <= 1
        wanted = rosenbrock.next_size(tried, norm)
        # a step that was cut at an asked time says little about the next
        self.h[members] = torch.where(good & lands, torch.maximum(wanted, h), wanted)
        self.y[members] = torch.where(good[:, None], made.y, y)
        self.t[members] = torch.where(good, torch.where(lands, goal, t + tried), t)
        self.steps_left[members] -= 1
        there = members[(good & lands).cpu().numpy()]
        self.asked[self.due[there], there] = self.y[there]
        self.due[there] += 1
        self._look(members[good.cpu().numpy()])

    def earliest(self) -> float | None:
        """The time of the member that is farthest behind; None when all have ended."""
        return float(self.t[self.active].min()) if len(self.active) else None

    def _look(self, moved: Members) -> None:
        """Who has ended: by a pole, at the last time, or because it cannot go on."""
        t = self.t.cpu().numpy()
        self.blow_up.step(moved, t[moved], self.motion.size(self.y[moved].cpu().numpy()))
        blown = self.blow_up.reached(moved, t[moved]) & (
            self.blow_up.time[moved] <= float(self.times[-1])
        )
        self._blow(moved[blown])
        over = (self.due[self.active] == len(self.times)).numpy()
        self.end(self.active[over], "finished", "reached the last time asked")
        members = self.active
        largest = self.y[members].abs().amax(-1)
        floor = SMALLEST * torch.maximum(self.t[members].abs(), self.first[members])
        for problem, those in (
            ("it has used all its steps; try a larger max_steps", self.steps_left[members] <= 0),
            ("its steps became too small", (self.h[members] < floor).cpu().numpy()),
            ("its state left the range of numbers", (largest >= LARGEST).cpu().numpy()),
        ):
            self._give_up(np.intersect1d(members[those], self.active), problem)
        if len(self.active) < len(members) or over.any() or blown.any():
            self.moving = self.fields.among(self.active)

    def _blow(self, members: Members) -> None:
        for member in members:
            self.end(np.array([member]), "blew up", POLE, float(self.blow_up.time[member]))

    def _give_up(self, members: Members, problem: str) -> None:
        """Those about to blow up have done so, the others have failed."""
        close = self.blow_up.reached(members, self.t[members].cpu().numpy(), close=1e-3)
        self._blow(members[close])
        self.end(members[~close], "failed", f"could not be integrated further: {problem}.")

    def end(self, members: Members, status: str, reason: str, time: float | None = None) -> None:
        for member in members:
            at = float(self.t[member]) if time is None else time
            self.outcomes[member] = Outcome(status, at, reason)
            self.asked[int(self.due[member]) :, member] = self.y[member]
        self.active = np.setdiff1d(self.active, members)

    def trajectory(self) -> Trajectory[Gaussian]:
        """The asked times that some member reached, and the last states where none came to the
        end.
        """
        outcomes = tuple(outcome for outcome in self.outcomes if outcome is not None)
        stop = max(outcome.time for outcome in outcomes)
        reached = int(self.due.max())
        rows, times = list(self.asked[:reached]), self.times[:reached].cpu()
        if reached < len(self.times) and float(times[-1]) < stop:
            rows.append(self.y)
            times = torch.cat([times, torch.tensor([stop], dtype=times.dtype)])
        states = tuple(self.motion.state(row.cpu().numpy()) for row in rows)
        return Trajectory(times, states, outcomes, self.evaluations)


def _fitting_each(attentions: object, measure: object) -> list[Attention]:
    """The attentions in float64, refused where they fit neither the measure nor each other."""
    check_kind("measure", measure, Gaussian)
    assert isinstance(measure, Gaussian)
    check_tensor("measure.mean", measure.mean, "members d")
    if not isinstance(attentions, Sequence) or len(attentions) != len(measure.mean):
        raise ValueError(
            f"attentions must be a list of {len(measure.mean)}, one for each Gaussian of the"
            f" stack, got {described(attentions)}."
        )
    made = [
        fitting(attention, Gaussian(mean, cov))
        for attention, mean, cov in zip(attentions, measure.mean, measure.cov, strict=True)
    ]
    if any(_kind(attention) != _kind(made[0]) for attention in made):
        raise ValueError(
            "attentions of a stack must be of one variant, with heads of one shape, and differ in"
            " their weights alone. Call flow_each once for each kind."
        )
    return made


def _kind(attention: Attention) -> tuple[Any, ...]:
    """What all attentions of a stack have in common."""
    options = {
        field.name: getattr(attention, field.name)
        for field in dataclasses.fields(attention)
        if field.name != "heads"
    }
    shapes = {
        name: getattr(part, "shape", part is None) for name, part in attention.heads.parts().items()
    }
    return type(attention), options, shapes
