"""What `Model.perturb` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from jaxtyping import Float
from torch import Tensor

from attnscope.attacks.splitting import Split
from attnscope.validation import brief


class Step(NamedTuple):
    r"""Tokens moved by a displacement $\varepsilon v$, $|v| = 1$ over all tokens together."""

    eps: float
    predicted: float
    r"""$\varepsilon\|Jv\|$, what the linear approximation says."""
    actual: float
    r"""$|f(X + \varepsilon v) - f(X)|$."""
    error: float
    r"""$|f(X + \varepsilon v) - f(X) - \varepsilon Jv|$ over what was predicted: how far the
    linearisation is off.
    """


@final
@dataclass(frozen=True, eq=False)
class Duplication:
    r"""Every token written twice, as the model itself reads it (its own mask and positions).

    `move` is the constant when both copies of a token move together, `split` when they move apart
    by opposite moves, `token` the token whose copies then move most; the steps follow the best
    direction of each. `law` is the law of mass splitting for attention as a map between measures,
    where copies share a position: the same two numbers when the attention has neither mask nor
    positions.
    """

    move: float
    split: float
    token: int
    move_steps: tuple[Step, ...]
    split_steps: tuple[Step, ...]
    law: Split | None

    __repr__ = brief


@final
@dataclass(frozen=True, eq=False)
class Perturbation:
    r"""A layer's tokens moved along the top singular direction of its Jacobian, in the sense that
    changes the output more.

    `sigma` is the local constant: a lower bound, for whole blocks and unknown networks up to the
    rounding of the model's own dtype, and within 1e-8 as far as its residual can tell. `carried`
    says which share of the squared move each token makes, `received` which share of the squared
    response it shows. `duplication` is None where the model cannot read twice as many tokens;
    `refusal` then says why.
    """

    layer: int
    part: str
    sigma: float
    direction: Float[Tensor, "n d"]
    carried: Float[Tensor, " n"]
    received: Float[Tensor, " n"]
    steps: tuple[Step, ...]
    duplication: Duplication | None
    refusal: str | None

    __repr__ = brief

    def linear_until(self, tolerance: float = 0.1) -> float:
        """The largest of the sizes up to which the linearisation is off by no more than the
        tolerance; 0 if there is none.
        """
        good = 0.0
        for step in sorted(self.steps):
            if step.error > tolerance:
                break
            good = step.eps
        return good

    def carriers(self, count: int = 5) -> list[tuple[int, float]]:
        """The tokens that carry most of the direction, with their shares."""
        return [
            (int(i), float(self.carried[i])) for i in self.carried.argsort(descending=True)[:count]
        ]
