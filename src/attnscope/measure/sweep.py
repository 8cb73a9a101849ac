r"""The local Lipschitz constant of each layer, head and length, one row per sequence.

Sequence s of length n is tokens [s n, (s+1) n) of the text; all sequences of one length run as one
stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.attention.softmax import Softmax
from attnscope.data.texts import windows
from attnscope.measures import Particles
from attnscope.models import Model, Part
from attnscope.models._jacobian import part_jacobian
from attnscope.operators import LinearOperator, jacobian, spectral_norm
from attnscope.validation import check_positive

HeadChoice = Sequence[int] | str


class Row(NamedTuple):
    """One measurement. `head` is None for the whole layer; `radius` is the RMS token norm at the
    attention input.
    """

    model: str
    layer: int
    head: int | None
    part: str
    n: int
    sequence: int
    start: int
    radius: float
    largest_norm: float
    lower: float
    upper: float | None
    residual: float
    pairs: int
    converged: bool
    released_estimator: float | None


@dataclass(frozen=True, eq=False)
class Plan:
    """What to measure. `heads`: "none", "longest" (each head at the longest length), "all", or head
    numbers at every length.
    """

    model: Model
    ids: Int[Tensor, " total"]
    layers: Sequence[int]
    lengths: Sequence[int]
    samples: int = 10
    part: Part = "attention"
    heads: HeadChoice = "longest"
    tol: float = 1e-6
    failure_probability: float | None = None
    released: bool = False
    seed: int = 0
    double: Model | None = field(default=None)

    def __post_init__(self) -> None:
        check_positive("tol", self.tol)
        if self.failure_probability is not None and not 0 < self.failure_probability < 1:
            raise ValueError(
                "the failure probability must lie strictly between 0 and 1, got"
                f" {self.failure_probability}. Try 1e-6."
            )
        if not self.layers or not self.lengths:
            raise ValueError("there must be at least one layer and one length to measure.")
        wrong = [layer for layer in self.layers if not 0 <= layer < self.model.layers]
        if wrong:
            raise ValueError(
                f"{self.model.name} has layers 0 to {self.model.layers - 1}, got {wrong[0]}."
            )
        longest = max(self.lengths)
        if min(self.lengths) < 1:
            raise ValueError(f"lengths must be at least 1, got {min(self.lengths)}.")
        if longest > self.model.positions:
            raise ValueError(
                f"{self.model.name} takes at most {self.model.positions} tokens, got a length of"
                f" {longest}."
            )
        windows(self.ids, longest, self.samples)
        asked = [] if isinstance(self.heads, str) else list(self.heads)
        wrong = [head for head in asked if not 0 <= head < self.model.heads]
        if wrong:
            raise ValueError(
                f"{self.model.name} has heads 0 to {self.model.heads - 1}, got {wrong[0]}."
            )
        if self.part != "attention" and self.heads not in ("none", "longest"):
            raise ValueError(
                f"single heads are measured for the part attention only, got part {self.part}."
                " Leave --heads out."
            )
        if not self.model.rebuilt and self.heads not in ("none", "longest"):
            raise ValueError(
                f"the heads of {self.model.name} cannot be rebuilt, so they cannot be measured"
                " alone. Leave --heads out."
            )

    def heads_at(self, n: int) -> list[int | None]:
        """The whole layer first, then the heads that are measured at this length."""
        absent = self.part != "attention" or not self.model.rebuilt or self.heads == "none"
        if absent or (self.heads == "longest" and n != max(self.lengths)):
            return [None]
        every = range(self.model.heads) if isinstance(self.heads, str) else self.heads
        return [None, *every]

    @property
    def calls(self) -> int:
        """Stacks of problems in the whole sweep."""
        return sum(len(self.heads_at(n)) for n in self.lengths) * len(self.layers)


def sweep(plan: Plan) -> Iterator[list[Row]]:
    """Measure length by length, layer by layer: each step yields the rows of one stack of
    sequences.

    With a failure probability, all upper bounds of the sweep hold together with that probability:
    each call gets its share.
    """
    share = None if plan.failure_probability is None else plan.failure_probability / plan.calls
    for n in plan.lengths:
        ids = windows(plan.ids, n, plan.samples)
        for layer, stream, attended in plan.model.points(ids, plan.layers):
            point = attended if plan.part == "attention" else stream
            if plan.double is not None and not plan.double.rebuilt:
                plan.double.tokens(
                    ids[:1], layer, plan.part
                )  # a network of unknown structure learns its mask by running
            for head in plan.heads_at(n):
                op, value = _problem(plan, layer, head, point)
                yield _measured(plan, op, value, layer, head, n, attended, share)


def _problem(
    plan: Plan, layer: int, head: int | None, x: Tensor
) -> tuple[LinearOperator, Tensor | None]:
    """The Jacobian to measure, and the value of the map when the released estimator needs it."""
    if head is not None:
        attention = Softmax(
            plan.model.attention(layer).heads.select(head), causal=plan.model.causal
        )
        mu = Particles(x)
        return jacobian(attention, mu), attention(x, mu) if plan.released else None
    with torch.no_grad():
        value = plan.model.function(layer, plan.part)(x) if plan.released else None
    return part_jacobian(plan.model, layer, plan.part, x, plan.double), value


def _measured(
    plan: Plan,
    op: LinearOperator,
    value: Tensor | None,
    layer: int,
    head: int | None,
    n: int,
    attended: Tensor,
    share: float | None,
) -> list[Row]:
    found = spectral_norm(op, tol=plan.tol, failure_probability=share, seed=plan.seed)
    norms = torch.linalg.vector_norm(attended, dim=-1, dtype=torch.float64)
    released = [None] * plan.samples
    if value is not None:
        released = (
            torch.linalg.vector_norm(op.rmv(value).flatten(1), dim=1, dtype=torch.float64)
            .sqrt()
            .tolist()
        )
    columns = [
        torch.as_tensor(part).tolist()
        for part in (found.lower, found.residual, found.pairs, found.converged)
    ]
    upper = [None] * plan.samples if found.upper is None else torch.as_tensor(found.upper).tolist()
    return [
        Row(
            model=plan.model.name,
            layer=layer,
            head=head,
            part=plan.part,
            n=n,
            sequence=s,
            start=s * n,
            radius=float(norms[s].square().mean().sqrt()),
            largest_norm=float(norms[s].max()),
            lower=columns[0][s],
            upper=None if upper[s] is None or upper[s] != upper[s] else upper[s],
            residual=columns[1][s],
            pairs=columns[2][s],
            converged=columns[3][s],
            released_estimator=released[s],
        )
        for s in range(plan.samples)
    ]
