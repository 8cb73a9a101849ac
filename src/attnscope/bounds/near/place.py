r"""The places of this room: an input X and all $X'$ with $|X' - X|_F \le \varepsilon$.

A theorem at `Near` bounds how far $F(X) = rX + \Gamma(X)$ moves, one at `NearTokens` how far each
token of it moves, one at `NearCurvature` how curved it is against a direction, one at `NearBend` in
norm. The four questions are asked of the same ball: what one theorem has worked out, `at_input` or
`over_ball`, the others find there. What is `kept` is found again by later questions about the same
inputs, at any radius.

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

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.attention import Attention

Held = TypeVar("Held")
Kind = TypeVar("Kind", bound="Around")


@final
@dataclass(frozen=True, eq=False)
class Kept:
    """What is known of a stack of inputs of one attention, whatever the radius: `x` are all inputs,
    `index` those that a question is about, `asked` the attention and the span of the first
    question. It lives as long as whoever asks keeps it.
    """

    x: Float[Tensor, "all n d"]
    index: Int[Tensor, " b"]
    values: dict[Any, tuple[Float[Tensor, "all ..."], Bool[Tensor, " all"]]] = field(
        default_factory=dict, repr=False
    )
    asked: list[tuple[Attention, Tensor | None]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, x: Float[Tensor, "all n d"]) -> Kept:
        return cls(x, torch.arange(len(x), device=x.device))

    def some(self, rows: Int[Tensor, " c"]) -> Kept:
        """The same about some of the inputs."""
        return Kept(self.x, self.index[rows], self.values, self.asked)

    def check(
        self,
        attention: Attention,
        x: Float[Tensor, "b n d"],
        span: Float[Tensor, "d k"] | None,
    ) -> None:
        """What is known of one input, attention or span must never answer for another."""
        if not torch.equal(self.x[self.index], x):
            raise ValueError("what was kept is about other inputs than these.")
        if not self.asked:
            self.asked.append((attention, span))
        before, narrow = self.asked[0]
        if not (_same(_parts(before), _parts(attention)) and _same(narrow, span)):
            raise ValueError("what was kept is about another attention, or another span.")

    def value(
        self,
        key: Any,
        make: Callable[[Int[Tensor, " c"]], Float[Tensor, "c ..."]],
    ) -> Float[Tensor, "b ..."]:
        """From what is known, after `make` has found what is not, by its places among the b."""
        if key not in self.values:
            unknown = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
            self.values[key] = self.x.new_empty(0), unknown
        held, known = self.values[key]
        missing = torch.nonzero(~known[self.index])[:, 0]
        if len(missing):
            found = make(missing)
            if not len(held):
                held = found.new_empty(len(self.x), *found.shape[1:])
            held[self.index[missing]], known[self.index[missing]] = found, True
            self.values[key] = held, known
        return held[self.index]


def _parts(attention: Attention) -> dict[str, Any]:
    options = {one.name: getattr(attention, one.name) for one in dataclasses.fields(attention)}
    return {"variant": type(attention), **options, "heads": attention.heads.parts()}


def _same(one: Any, other: Any) -> bool:
    """Equal in all parts, to the last bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other or (
        not isinstance(one, Tensor) and type(one) is type(other) and one == other
    )


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
    known: Kept | None = field(default=None, repr=False)

    def some(self, rows: Int[Tensor, " c"]) -> Self:
        """Some of the inputs, with nothing worked out yet."""
        return dataclasses.replace(self, x=self.x[rows], eps=self.eps[rows], held={}, known=None)

    def within(self, share: float) -> Self:
        """The ball of this share of the radius: it holds the first part of every segment."""
        return dataclasses.replace(self, eps=share * self.eps, share=share * self.share)

    def seen_as(self, kind: type[Kind]) -> Kind:
        """The same ball under another question."""
        asked = (self.attention, self.x, self.eps, self.residual, self.share, self.span)
        return kind(*asked, self.held, self.known)


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


def kept(
    make: Callable[[Around], Float[Tensor, "b ..."]],
) -> Callable[[Around], Float[Tensor, "b ..."]]:
    """As `at_input`, a tensor with the inputs first, and found again by later questions where what
    is known is `Kept`.
    """
    alone = at_input(make)

    def held(near: Around) -> Float[Tensor, "b ..."]:
        if near.known is None:
            return alone(near)
        key = make, near.residual
        return near.known.value(
            key, lambda rows: make(near if len(rows) == len(near.x) else near.some(rows))
        )

    held.__doc__ = make.__doc__
    return held


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
