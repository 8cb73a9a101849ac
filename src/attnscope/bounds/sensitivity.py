r"""How far the output of attention can move when its input moves by at most eps: proved, the
smallest of several bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.l2 import L2
from attnscope.attention.sigmoid import Sigmoid
from attnscope.attention.softmax import Softmax
from attnscope.bounds._bound import Kind, Side
from attnscope.bounds._reading import Reading
from attnscope.bounds._sigmoid_ball import SigmoidReading
from attnscope.bounds._sigmoid_bounds import sigmoid_candidates, sigmoid_remainder
from attnscope.bounds._softmax_bounds import softmax_candidates, softmax_remainder
from attnscope.norms import SLACK
from attnscope.validation import check_shape, check_tensor, described

Covered = Softmax | L2 | Sigmoid

ENTRIES = 2**15
"""Entries of one array over (input, head, i, j) held at once: small blocks are reused, large ones
go back to the system each time.
"""


class NoBound(ValueError):
    """No bound is proved for this layer; the message says why and what to do instead."""


@final
@dataclass(frozen=True, eq=False)
class Sensitivity:
    r"""`value` is at least $|F(X + D) - F(X)|_F$ for every $|D|_F \le \varepsilon$, $F(X) = rX +
    \Gamma(X)$, one per input and eps.

    `candidates` are all bounds by name (headings of docs/theorems.md), each of them valid; `value`
    is the smallest.
    """

    candidates: dict[str, Float[Tensor, "*out"]]
    side: Side = field(default="upper", init=False)
    kind: Kind = field(default="proved", init=False)
    source: str = field(default="docs/theorems.md, How far the output can move", init=False)
    assumes: str = field(
        default="weights and mask are fixed, arithmetic is float64 with the stated relative slack",
        init=False,
    )
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
        """Which candidate won, entry by entry in the order of `value.flatten()`; one name for a
        single value.
        """
        names = list(self.candidates)
        won = [names[index] for index in self.winner.flatten().tolist()]
        return won if self.winner.ndim else won[0]


def sensitivity(
    attention: Attention, x: Float[Tensor, "*stack n d"], eps: float | Tensor, residual: float = 0.0
) -> Sensitivity:
    r"""Bounds on $|F(X + D) - F(X)|_F$ over $|D|_F \le \varepsilon$ for $F(X) = rX + \Gamma(X)$, r
    of any sign.

    `x` may be a stack; `eps` is a number or a tensor that broadcasts against its stack axes.
    """
    attention, x, radius = _checked(attention, x, eps)
    if (
        isinstance(residual, bool)
        or not isinstance(residual, int | float)
        or not math.isfinite(residual)
    ):
        raise ValueError(f"residual must be a finite number, got {described(residual)}.")
    parts = [
        _candidates(attention, *part, residual) for part in _parts(x, radius, attention.heads.count)
    ]
    shape = torch.broadcast_shapes(radius.shape, x.shape[:-2])
    return Sensitivity(
        {
            name: torch.cat([part[name] for part in parts]).reshape(shape) * (1 + SLACK)
            for name in parts[0]
        }
    )


def remainder(
    attention: Attention,
    x: Float[Tensor, "*stack n d"],
    eps: float | Tensor,
    gradient: Float[Tensor, "c *stack n d"],
) -> Float[Tensor, "c ..."]:
    r"""At least $-\langle g, R\rangle$ for each direction g, $R = F(X + D) - F(X) - DF(X)D$, over
    $|D|_F \le \varepsilon$.

    `gradient` holds c directions, each of the shape of `x`; the result is (c, *stack), with the
    axes of eps if it has more.
    """
    attention, x, radius = _checked(attention, x, eps)
    check_tensor("gradient", gradient, "... c n d")
    check_shape(
        "gradient",
        gradient,
        (*gradient.shape[:1], *x.shape),
        "directions first, then the shape of x",
    )
    shape = torch.broadcast_shapes(radius.shape, x.shape[:-2])
    missing = (1,) * (len(shape) - (x.ndim - 2))
    directions = gradient.to(x).reshape(-1, *missing, *x.shape).expand(-1, *shape, *x.shape[-2:])
    directions = directions.reshape(len(gradient), -1, *x.shape[-2:])
    found, start = [], 0
    for tokens, radii in _parts(x, radius, attention.heads.count):
        found.append(
            _remainder(attention, tokens, radii, directions[:, start : start + len(radii)])
        )
        start += len(radii)
    return torch.cat(found, dim=1).reshape(-1, *shape) * (1 + SLACK)


def _candidates(
    attention: Covered, x: Float[Tensor, "b n d"], eps: Float[Tensor, " b"], residual: float
) -> dict[str, Tensor]:
    if isinstance(attention, Sigmoid):
        return sigmoid_candidates(SigmoidReading.of(attention, x), eps, residual)
    return softmax_candidates(Reading.of(attention, x), eps, residual)


def _remainder(
    attention: Covered,
    x: Float[Tensor, "b n d"],
    eps: Float[Tensor, " b"],
    gradient: Float[Tensor, "c b n d"],
) -> Float[Tensor, "c b"]:
    if isinstance(attention, Sigmoid):
        return sigmoid_remainder(SigmoidReading.of(attention, x), eps, gradient)
    return softmax_remainder(Reading.of(attention, x), eps, gradient)


def _parts(
    x: Float[Tensor, "*stack n d"], eps: Float[Tensor, "*eps"], heads: int
) -> list[tuple[Float[Tensor, "b n d"], Float[Tensor, " b"]]]:
    """Every pair of an input and a radius, a few at a time: memory does not grow with the stack,
    arrays stay in the cache.
    """
    shape = torch.broadcast_shapes(eps.shape, x.shape[:-2])
    tokens = x.expand(*shape, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
    some = max(1, ENTRIES // (heads * x.shape[-2] * max(x.shape[-2:])))
    return list(zip(tokens.split(some), eps.expand(shape).reshape(-1).split(some), strict=True))


def _checked(
    attention: Attention, x: Tensor, eps: float | Tensor
) -> tuple[Covered, Tensor, Tensor]:
    """What the doors of this file have in common: float64 throughout, eps as a tensor."""
    if not isinstance(attention, Attention):
        raise TypeError(
            "attention must be an Attention, for example Softmax(heads), got"
            f" {described(attention)}."
        )
    check_tensor("x", x, "... n d")
    check_shape("x", x, (*x.shape[:-1], attention.heads.dim), "the dimension of the heads")
    if not isinstance(attention, Softmax | L2 | Sigmoid):
        raise NoBound(
            f"no bound on the movement of {attention.name} attention over a ball is proved here."
            " Use softmax, l2 or sigmoid attention."
        )
    if attention.heads.rotary is not None:
        raise NoBound(
            "no bound on the movement of rotary heads over a ball is proved here: the gradient of a"
            " score changes with the distance of two tokens. Use a position bias"
            " (heads.position_bias) or positions added to the tokens."
        )
    longest = (
        attention.heads.position_bias.shape[-1]
        if attention.heads.position_bias is not None
        else x.shape[-2]
    )
    if x.shape[-2] > longest:
        raise ValueError(
            f"the position bias of these heads serves sequences of at most {longest} tokens, got"
            f" {x.shape[-2]}."
        )
    if isinstance(eps, bool) or not isinstance(eps, int | float | Tensor):
        raise TypeError(f"eps must be a number or a tensor of numbers, got {described(eps)}.")
    radius = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    if not bool((torch.isfinite(radius) & (radius > 0)).all()):
        raise ValueError(f"eps must be finite and above 0, got {described(eps)}.")
    try:
        torch.broadcast_shapes(radius.shape, x.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"eps must broadcast against the stack axes {tuple(x.shape[:-2])} of x, got"
            f" {described(eps)}."
        ) from None
    return attention.to(torch.float64), x.to(torch.float64), radius
