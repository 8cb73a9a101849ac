r"""The finite attacks behind the law of mass splitting: equal budgets in $W_2$, outputs compared in
exact $W_2$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attacks.splitting import Split, check_splittable, split
from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.transport import conditional_wasserstein, wasserstein
from attnscope.validation import check_positive

LEAST = 1e-9
"""Budgets in norms of the largest token: below, too few digits of a distance are left."""
SQUARE_ROOT = 1e-150
"""Squares of smaller numbers underflow."""


class Attack(NamedTuple):
    """One attacked measure: the budget, the distance that was really spent on the input, and the
    distance of the outputs.
    """

    eps: float
    spent: float
    moved: float

    @property
    def ratio(self) -> float:
        """Output distance per input distance: a lower bound of the Lipschitz constant on any set
        that holds both measures.
        """
        return self.moved / self.spent


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    r"""Attacks by moving and by splitting at the same budgets; their ratios tend to `law.move` and
    `law.split` as eps tends to 0.
    """

    law: Split
    move: tuple[Attack, ...]
    split: tuple[Attack, ...]

    def __str__(self) -> str:
        lines = [
            f"{a.eps:.3g}: move {a.ratio:.6g}, split {b.ratio:.6g}"
            for a, b in zip(self.move, self.split, strict=True)
        ]
        return "\n".join([str(self.law), *lines])


def compare(attention: Attention, mu: Particles, eps: float | Sequence[float]) -> Comparison:
    r"""Attack mu with budget eps in $W_2$, or with each of several, in two ways: move all tokens,
    or send the halves of one token apart.

    Tokens move along the top singular vector of the Jacobian, the halves along the best direction
    of `split`. Under a causal mask distances are the conditional ones, which compare tokens of the
    same position.
    """
    check_splittable(attention, mu)
    budgets = list(eps) if isinstance(eps, Sequence) else [eps]
    if not budgets:
        raise ValueError("eps must be a number above 0 or several of them, got none.")
    least = max(LEAST * float(torch.linalg.vector_norm(mu.x, dim=-1).max()), SQUARE_ROOT)
    for budget in budgets:
        check_positive("eps", budget)
        if budget < least:
            raise ValueError(
                f"eps = {budget:g} is lost in the rounding of these tokens: use at least"
                f" {least:.1g}."
            )
    if attention.heads.positional:
        raise ValueError(
            "rotary heads and position biases read the number of a token in its sequence, which two"
            " halves of a token cannot share: there are no finite attacks to compare."
            " split(attention, mu) gives the law."
        )
    attention, mu = attention.to(torch.float64), mu.to(torch.float64)
    law = split(attention, mu)
    after = attention.push(mu)

    def attacked(nu: Particles, budget: float) -> Attack:
        distance = conditional_wasserstein if attention.causal else wasserstein
        return Attack(budget, distance(mu, nu), distance(after, attention.push(nu)))

    return Comparison(
        law,
        tuple(attacked(mu.at(mu.x + budget * law.motion), budget) for budget in budgets),
        tuple(attacked(halved(mu, law.token, law.direction, budget), budget) for budget in budgets),
    )


def halved(mu: Particles, token: int, direction: Float[Tensor, " d"], eps: float) -> Particles:
    r"""mu with the halves of one token at $x \pm \varepsilon w^{-1/2}e$, e of norm one: a step of
    size eps in $W_2$ while eps is small.
    """
    shift = eps / mu.weights[token].sqrt() * direction
    x = torch.cat([mu.x, mu.x[token : token + 1] - shift])
    x[token] += shift
    weights = torch.cat([mu.weights, mu.weights[token : token + 1] / 2])
    weights[token] /= 2
    places = mu.places()
    return Particles(x, weights, torch.cat([places, places[token : token + 1]]))
