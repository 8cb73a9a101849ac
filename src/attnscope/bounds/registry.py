r"""`theorem`: a proved bound is one decorated function, its only implementation.

```python
@theorem("M1'", variant=Softmax, where=OnBall, source="castin24, Thm 3.5, p = 2", causal=False)
def m1_prime(attention, ball):
    r\"\"\"$(1 + t)e^t + y$, $t = R(\|A\|R + \beta)$, $y = \|A\|R^2$.\"\"\"
    t, y = ball.scores(attention)
    return (1 + t) * t.exp() + y
```

The function takes an attention and a *place* (a ball, a measure, a ball around an input, a time)
and returns float64 numbers that can be differentiated. What it assumes stands in the decorator,
what it says in the first paragraph of its docstring, why it is true in docs/theorems.md under its
name. Everything that needs bounds asks `theorems(...)` for those that hold, and never which variant
it has.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, final

from attnscope.attention import Attention

Formula = TypeVar("Formula", bound=Callable[..., Any])
Masses = Literal["any", "equal"]
Variants = type[Attention] | tuple[type[Attention], ...]

_PROVED: list[Theorem] = []
ROOMS = ("smooth", "near")
"""Folders of this one whose files state theorems."""


@final
@dataclass(frozen=True, eq=False)
class Theorem:
    """A proved upper bound: what it says, where it holds, where it is from.

    `variant` is the attention it speaks of, or several. `causal` is None when a mask is allowed but
    not needed; `positional` says whether rotary heads and position biases are allowed; `masses`
    whether tokens may have any weights; `p` is the Wasserstein exponent it holds for, None for
    every p of at least 1. `when` is a further condition on the attention and the place, `assumes`
    words for it that may name fields of the place. `convex` promises a convex increasing function
    of the radius, `differentiable` that autograd gives its gradient.
    """

    name: str
    formula: Callable[..., Any]
    variant: Variants | None
    where: type
    source: str
    causal: bool | None
    positional: bool
    masses: Masses
    p: float | None
    when: Callable[..., bool] | None
    assumes: str
    convex: bool
    differentiable: bool

    @property
    def statement(self) -> str:
        """The formula, from the first paragraph of the docstring."""
        return " ".join((self.formula.__doc__ or "").split("\n\n")[0].split())

    @property
    def variants(self) -> tuple[type[Attention], ...]:
        """The variants that it speaks of, none when it speaks of something else."""
        if self.variant is None:
            return ()
        return self.variant if isinstance(self.variant, tuple) else (self.variant,)

    def covers(self, attention: Attention | None) -> bool:
        """Whether the statement speaks of this attention at some place."""
        if self.variant is None:
            return True
        return (
            isinstance(attention, self.variant)
            and self.causal in (None, attention.causal)
            and (self.positional or not attention.heads.positional)
        )

    def holds(self, attention: Attention | None, place: Any) -> bool:
        """Whether the statement speaks of this attention at this place."""
        return (
            type(place) is self.where
            and self.covers(attention)
            and self.p in (None, getattr(place, "p", 2))
            and (self.masses == "any" or getattr(place, "equal_masses", True))
            and (self.when is None or self.when(attention, place))
        )

    def __call__(self, attention: Any, place: Any) -> Any:
        return self.formula(attention, place)

    def __repr__(self) -> str:
        return f"Theorem({self.name!r}, {self.where.__name__}, {self.source})"


def theorem(
    name: str,
    *,
    where: type,
    source: str,
    variant: Variants | None = None,
    causal: bool | None = None,
    positional: bool = False,
    masses: Masses = "any",
    p: float | None = 2,
    when: Callable[..., bool] | None = None,
    assumes: str = "",
    convex: bool = False,
    differentiable: bool = True,
) -> Callable[[Formula], Formula]:
    """Register the decorated formula under this name, the heading of its proof."""

    def register(formula: Formula) -> Formula:
        if any(
            (known.name, known.where, known.variant) == (name, where, variant) for known in _PROVED
        ):
            raise ValueError(f"two theorems are named {name!r} for the same variant and place.")
        if not formula.__doc__:
            raise ValueError(f"theorem {name!r} needs a docstring that states it.")
        made = Theorem(
            name,
            formula,
            variant,
            where,
            source,
            causal,
            positional,
            masses,
            p,
            when,
            assumes,
            convex,
            differentiable,
        )
        _PROVED.append(made)
        return formula

    return register


def theorems(attention: Attention | None = None, place: Any = None) -> list[Theorem]:
    """Every theorem, in the order of files; with an attention and a place those that hold there."""
    _discover()
    ordered = sorted(_PROVED, key=lambda proved: (proved.formula.__module__, _line(proved.formula)))
    if place is None:
        return ordered
    return [proved for proved in ordered if proved.holds(attention, place)]


def stated(attention: Attention, *where: type) -> list[Theorem]:
    """The theorems at places of these kinds that speak of this attention, whatever else they
    ask for.
    """
    return [known for known in theorems() if known.where in where and known.covers(attention)]


def _line(formula: Callable[..., Any]) -> int:
    code = getattr(formula, "__code__", None)
    return 0 if code is None else int(code.co_firstlineno)


@functools.cache
def _discover() -> None:
    """Import every file that states theorems: a new theorem is a new file and no edit."""
    package = importlib.import_module("attnscope.bounds")
    for info in pkgutil.walk_packages(package.__path__, "attnscope.bounds."):
        if any(info.name.startswith(f"attnscope.bounds.{room}.") for room in ROOMS):
            importlib.import_module(info.name)
