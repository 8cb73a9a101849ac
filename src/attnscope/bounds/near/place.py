r"""The places of this room: an input X and all $X'$ with $|X' - X|_F \le \varepsilon$.

A theorem at `Near` bounds how far $F(X) = rX + \Gamma(X)$ moves, one at `NearTokens` how far each
token of it moves, one at `NearCurvature` how curved it is against a direction, one at `NearBend` in
norm. The four questions are asked of the same ball: what one theorem has worked out, `at_input` or
`over_ball`, the others find there.

```python
@at_input
def reading(near):
    return ScoresAt.of(near.attention, near.x)
```
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, final

from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention

Held = TypeVar("Held")
Kind = TypeVar("Kind", bound="Around")


@dataclass(frozen=True, eq=False)
class Around(ABC):
    r"""A stack of inputs in float64, each with its ball, under $F(X) = rX + \Gamma(X)$.

    `share` is the radius in units of the ball that the query is about. `span` has orthonormal
    columns: every token moves within their span, anywhere when it is None. A theorem that does not
    read it speaks of more movements than there are.
    """

    attention: Attention
    x: Float[Tensor, "b n d"]
    eps: Float[Tensor, " b"]
    residual: float = 0.0
    share: float = 1.0
    span: Float[Tensor, "d k"] | None = None
    held: dict[Any, Any] = field(default_factory=dict, repr=False)

    def within(self, share: float) -> Self:
        """The ball of this share of the radius: it holds the first part of every segment."""
        return dataclasses.replace(self, eps=share * self.eps, share=share * self.share)

    def seen_as(self, kind: type[Kind]) -> Kind:
        """The same ball under another question."""
        known = (self.attention, self.x, self.eps, self.residual, self.share, self.span, self.held)
        return kind(*known)


@final
class Near(Around):
    r"""Theorems here return at least $|F(X') - F(X)|_F$, one number per input."""


@final
class NearTokens(Around):
    r"""Theorems here return a `Budget`: at least the norm of $DF$ over the ball, and of its blocks.

    Budgets $N$ say how far each token can move: $|F(X') - F(X)|_i \le \sum_jN_{ij}|d_j|$.
    """


@final
class NearCurvature(Around):
    r"""Theorems here return a function from directions g to symmetric non-negative matrices M.

    $-\langle g, D^2F(X')[U, U]\rangle \le \sum_{ij}M_{ij}|u_i||u_j|$ at every $X'$ of the ball.
    """


@final
class NearBend(Around):
    r"""Theorems here return at least $|D^2F(X')[U, U]|_F$ over the ball and $|U|_F \le 1$."""


@final
@dataclass(frozen=True, eq=False)
class Budget:
    r"""`constant` is at least $\|DF(X')\|$, `blocks` at least the norms $\|DF(X')_{ij}\|$.

    The constant costs far more than the blocks, and is worked out when it is asked for.
    """

    whole: Callable[[], Float[Tensor, " b"]]
    blocks: Float[Tensor, "b n n"]

    @property
    def constant(self) -> Float[Tensor, " b"]:
        return self.whole()


def at_input(make: Callable[[Around], Held]) -> Callable[[Around], Held]:
    """Work it out once for all radii: it must depend on the attention, x and the residual alone."""
    return _once(make, lambda near: None)


def over_ball(make: Callable[[Around], Held]) -> Callable[[Around], Held]:
    """Work it out once for each radius."""
    return _once(make, lambda near: near.share)


def _once(
    make: Callable[[Around], Held], radius: Callable[[Around], float | None]
) -> Callable[[Around], Held]:
    def held(near: Around) -> Held:
        key = make, radius(near)
        if key not in near.held:
            near.held[key] = make(near)
        return near.held[key]

    held.__doc__ = make.__doc__
    return held


def without_rotary(attention: Attention, near: Around) -> bool:
    """Rotary heads change the gradient of a score with the distance of two tokens."""
    return attention.heads.rotary is None
