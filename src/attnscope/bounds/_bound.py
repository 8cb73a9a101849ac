"""`Bound`: a number that says on which side of the truth it lies, and why one may believe it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

from attnscope.validation import described

Side = Literal["lower", "upper"]
Kind = Literal["proved", "probable", "estimate"]


@final
@dataclass(frozen=True)
class Bound:
    """A bound on a Lipschitz constant: `value` on this `side` of it.

    `kind` is "proved" (a theorem), "probable" (true with a stated probability) or "estimate" (no
    guarantee). `name` is its heading in docs/theorems.md, `source` where the theorem comes from,
    `assumes` what must be true for it to apply.
    """

    value: float
    side: Side
    kind: Kind
    name: str
    source: str
    assumes: str

    def __post_init__(self) -> None:
        if (
            isinstance(self.value, bool)
            or not isinstance(self.value, int | float)
            or math.isnan(self.value)
            or self.value < 0
        ):
            raise ValueError(
                "value must be a number of at least 0 (infinity allowed), got"
                f" {described(self.value)}."
            )
        for field, allowed in (("side", get_args(Side)), ("kind", get_args(Kind))):
            if getattr(self, field) not in allowed:
                raise ValueError(
                    f"{field} must be one of {', '.join(allowed)}, got"
                    f" {described(getattr(self, field))}."
                )
        for field in ("name", "source", "assumes"):
            text = getattr(self, field)
            if not isinstance(text, str) or not text:
                raise ValueError(f"{field} must be a sentence or a name, got {described(text)}.")

    def __str__(self) -> str:
        sign = "<=" if self.side == "upper" else ">="
        return f"{self.name}: {sign} {self.value:.6g} ({self.kind}; {self.source}; {self.assumes})"


@final
class Bounds(tuple[Bound, ...]):
    """Several bounds on one number."""

    @property
    def tightest(self) -> Bound:
        """The smallest proved upper bound."""
        upper = [bound for bound in self if bound.side == "upper" and bound.kind == "proved"]
        if not upper:
            raise ValueError("there is no proved upper bound among these.")
        return min(upper, key=lambda bound: bound.value)

    def named(self, name: str) -> Bound:
        """The bound of this name."""
        for bound in self:
            if bound.name == name:
                return bound
        raise KeyError(
            f"no bound is named {name!r}; there are {', '.join(bound.name for bound in self)}."
        )

    def __str__(self) -> str:
        return "\n".join(str(bound) for bound in self)
