r"""How far the output of attention can move when its input moves by at most eps: proved, the smallest of several bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.softmax import Softmax
from attnscope.bounds._bound import Kind, Side
from attnscope.bounds._reading import Reading
from attnscope.bounds._remainder import softmax_remainder
from attnscope.bounds._softmax_bounds import softmax_candidates
from attnscope.validation import check_shape, check_tensor, described

SLACK = 1e-9
"""Relative allowance for rounding that every value carries."""


class NoBound(ValueError):
    """No bound is proved for this layer; the message says why and what to do instead."""


@final
@dataclass(frozen=True, eq=False)
class Sensitivity:
    r"""`value` is at least $|F(X + D) - F(X)|_F$ for every $|D|_F \le \varepsilon$, $F(X) = rX + \Gamma(X)$, one per input and eps.

    `candidates` are all bounds by name (headings of docs/theorems.md), each of them valid; `value` is the smallest.
    """

    candidates: dict[str, Float[Tensor, "*out"]]
    assumes: str
    side: Side = field(default="upper", init=False)
    kind: Kind = field(default="proved", init=False)
    source: str = field(default="docs/theorems.md, Sensitivity", init=False)
    slack: float = field(default=SLACK, init=False)

    @property
    def value(self) -> Float[Tensor, "*out"]:
        return torch.stack(list(self.candidates.values())).amin(0)

    @property
    def winner(self) -> Tensor:
        """The number of the winning candidate for each entry."""
        return torch.stack(list(self.candidates.values())).argmin(0)

    @property
    def name(self) -> list[str] | str:
        """Which candidate won, entry by entry in the order of `value.flatten()`; one name for a single value."""
        names = list(self.candidates)
        won = [names[index] for index in self.winner.flatten().tolist()]
        return won if self.winner.ndim else won[0]


def sensitivity(attention: Attention, x: Float[Tensor, "*stack n d"], eps: float | Tensor, residual: float = 0.0) -> Sensitivity:
    r"""Bounds on $|F(X + D) - F(X)|_F$ over $|D|_F \le \varepsilon$ for $F(X) = rX + \Gamma(X)$, r of any sign.

    `x` may be a stack; `eps` is a number or a tensor that broadcasts against its stack axes.
    """
    attention, x, radius = _checked(attention, x, eps)
    if isinstance(residual, bool) or not isinstance(residual, int | float) or not math.isfinite(residual):
        raise ValueError(f"residual must be a finite number, got {described(residual)}.")
    reading = Reading.of(attention, x)  # type: ignore[arg-type]
    found = softmax_candidates(reading, radius, residual)
    shape = torch.broadcast_shapes(radius.shape, x.shape[:-2])
    return Sensitivity({name: (value * (1 + SLACK)).expand(shape) for name, value in found.items()}, "float64, slack 1e-9")


def remainder(
    attention: Attention, x: Float[Tensor, "*stack n d"], eps: float | Tensor, gradient: Float[Tensor, "c *stack n d"]
) -> Float[Tensor, "c *out"]:
    r"""At least $-\langle g, R\rangle$ for each direction g, $R = F(X + D) - F(X) - DF(X)D$, over $|D|_F \le \varepsilon$."""
    attention, x, radius = _checked(attention, x, eps)
    check_tensor("gradient", gradient, "... n d")
    check_shape("gradient", gradient, (*gradient.shape[:1], *x.shape), "directions first, then the shape of x")
    found = softmax_remainder(Reading.of(attention, x), radius, gradient.to(torch.float64))  # type: ignore[arg-type]
    return found * (1 + SLACK)


def _checked(attention: Attention, x: Tensor, eps: float | Tensor) -> tuple[Attention, Tensor, Tensor]:
    """What the doors of this file have in common: float64 throughout, eps as a tensor."""
    if not isinstance(attention, Attention):
        raise TypeError(f"attention must be an Attention, for example Softmax(heads), got {described(attention)}.")
    check_tensor("x", x, "... n d")
    check_shape("x", x, (*x.shape[:-1], attention.heads.dim), "the dimension of the heads")
    if not isinstance(attention, Softmax):
        raise NoBound(f"no sensitivity bound is proved for {attention.name} attention. Use softmax attention.")
    if attention.heads.rotary is not None:
        raise NoBound("no sensitivity bound is proved for rotary heads. Use a position bias or learned positions instead.")
    radius = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    if not bool((torch.isfinite(radius) & (radius > 0)).all()):
        raise ValueError(f"eps must be finite and above 0, got {described(eps)}.")
    return attention.to(torch.float64), x.to(torch.float64), radius
