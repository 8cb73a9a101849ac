r"""How far the output of attention can move when its input moves by at most eps: proved, the
smallest of several bounds; its remainder; its tokens one by one.

Each question collects the theorems that hold for this attention at its place, and never asks which
variant it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.bounds._bound import Kind, Side
from attnscope.bounds.near._checks import Number, checked, checked_residual, holding
from attnscope.bounds.near._graded import FEW, curved, weighed
from attnscope.bounds.near.place import Kept, Near, NearBend, NearCurvature, NearTokens
from attnscope.bounds.registry import Theorem, theorems
from attnscope.norms import SLACK, largest_root, positive_norm
from attnscope.validation import check_shape, check_tensor

BESIDE = ("T4",)
"""Theorems at `Near` that are asked beside budgets, which they share their balls with."""
ENTRIES = 2**15
"""Entries of one array over (input, head, i, j) held at once: small blocks are reused, large ones
go back to the system each time.
"""


@final
@dataclass(frozen=True, eq=False)
class Sensitivity:
    r"""`value` is at least $|F(X + D) - F(X)|_F$ for every $|D|_F \le \varepsilon$, $F(X) = rX +
    \Gamma(X)$, one per input and eps.

    `candidates` are all bounds by name (headings of docs/theorems.md), each of them valid; `value`
    is the smallest. A bound whose numbers leave the range of float64 is infinite.
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


@final
@dataclass(frozen=True, eq=False)
class TokensOverBall:
    r"""One layer over a ball, token by token. With $v_i = |d_i|$ the lengths of the tokens of D:

    `radius` is at least $|F(X + D) - F(X)|_F$; `budget` is a matrix $N$ with $|F(X + D) - F(X)|_i
    \le (Nv)_i$; `form(g)` has for each of several directions g a matrix $M$ with $-\langle g,
    R\rangle \le \frac12v^TMv$ for the Taylor remainder $R$.
    """

    radius: Float[Tensor, " b"]
    budget: Float[Tensor, "b n n"]
    form: Callable[[Tensor], Tensor]


def sensitivity(
    attention: Attention,
    x: Float[Tensor, "*stack n d"],
    eps: Number | Tensor,
    residual: Number = 0.0,
    span: Float[Tensor, "d k"] | None = None,
    known: Kept | None = None,
) -> Sensitivity:
    r"""Bounds on $|F(X + D) - F(X)|_F$ over $|D|_F \le \varepsilon$ for $F(X) = rX + \Gamma(X)$.

    Args:
        attention: a variant with theorems at `Near`: softmax, L2, sigmoid.
        x: tokens, or a stack of inputs.
        eps: a number above 0, or a tensor that broadcasts against the stack axes of `x`.
        residual: r, of any sign.
        span: orthonormal columns; D is then of the form $\Delta B^T$, every token moves within
            their span alone. None: in any direction.
        known: what earlier questions about these inputs have found; only with one eps per input.

    Returns:
        Every proved bound by name, and the smallest; infinite where float64 overflows.

    >>> x = torch.eye(2, dtype=torch.float64)
    >>> from attnscope import Heads, Softmax
    >>> moved = sensitivity(Softmax(Heads.from_matrices(0 * x, x)), x, eps=0.5)
    >>> round(float(moved.value), 6)
    0.5
    """
    attention, x, radius = checked(attention, x, eps)
    r = checked_residual(residual)
    proved = holding(attention, Near(attention, *_flat(x, radius), r, span=span))
    if known is not None:
        known.check(attention, x, span)
    parts, start = [], 0
    for part in _parts(x, radius, attention.heads.count):
        rows = torch.arange(start, start + len(part[1]), device=x.device)
        some = None if known is None else known.some(rows)
        near = Near(attention, *part, r, span=span, known=some)
        parts.append({one.name: one(attention, near) for one in proved})
        start += len(rows)
    shape = np.broadcast_shapes(radius.shape, x.shape[:-2])
    return Sensitivity(
        {
            one.name: _upper(torch.cat([part[one.name] for part in parts]).reshape(shape))
            for one in proved
        }
    )


def remainder(
    attention: Attention,
    x: Float[Tensor, "*stack n d"],
    eps: Number | Tensor,
    gradient: Float[Tensor, "c *stack n d"],
    span: Float[Tensor, "d k"] | None = None,
) -> Float[Tensor, "c ..."]:
    r"""At least $-\langle g, R\rangle$ for each direction g, $R = F(X + D) - F(X) - DF(X)D$, over
    $|D|_F \le \varepsilon$.

    Args:
        attention: a variant with theorems at `NearCurvature`: softmax, L2, sigmoid.
        x: tokens, or a stack of inputs.
        eps: a number above 0, or a tensor that broadcasts against the stack axes of `x`.
        gradient: c directions, each of the shape of `x`.
        span: as for `sensitivity`.

    Returns:
        Numbers of shape (c, *stack), with the axes of eps if it has more.
    """
    attention, x, radius = checked(attention, x, eps)
    check_tensor("gradient", gradient, "... c n d")
    check_shape(
        "gradient",
        gradient,
        (*gradient.shape[:1], *x.shape),
        "directions first, then the shape of x",
    )
    shape = np.broadcast_shapes(radius.shape, x.shape[:-2])
    missing = (1,) * (len(shape) - (x.ndim - 2))
    directions = gradient.to(x).reshape(-1, *missing, *x.shape).expand(-1, *shape, *x.shape[-2:])
    directions = directions.reshape(len(gradient), -1, *x.shape[-2:])
    proved = holding(attention, NearCurvature(attention, *_flat(x, radius), span=span))
    found, start = [], 0
    for tokens, radii in _parts(x, radius, attention.heads.count):
        near = NearCurvature(attention, tokens, radii, span=span)
        some = directions[:, start : start + len(radii)]
        roots = [largest_root(form(some)) for form in _forms(proved, near)]
        found.append(curved(roots) * radii**2)
        start += len(radii)
    return _upper(torch.cat(found, dim=1).reshape(-1, *shape))


def bend(
    attention: Attention, x: Float[Tensor, "*stack n d"], eps: Number | Tensor
) -> Float[Tensor, ...]:
    r"""At least $|R|_F$, the Taylor remainder in every direction at once, over $|D|_F \le
    \varepsilon$.

    Args:
        attention: a variant with theorems at `NearBend`: softmax, L2, sigmoid.
        x: tokens, or a stack of inputs.
        eps: a number above 0, or a tensor that broadcasts against the stack axes of `x`.

    Returns:
        One number per input and eps.
    """
    attention, x, radius = checked(attention, x, eps)
    proved = holding(attention, NearBend(attention, *_flat(x, radius)))
    found = []
    for tokens, radii in _parts(x, radius, attention.heads.count):
        near = NearBend(attention, tokens, radii)
        norms = [_smallest([one(attention, near.within(share)) for one in proved]) for share in FEW]
        found.append(curved(norms) * radii**2)
    shape = np.broadcast_shapes(radius.shape, x.shape[:-2])
    return _upper(torch.cat(found).reshape(shape))


def tokens_over_ball(
    attention: Attention,
    x: Float[Tensor, "b n d"],
    eps: Number | Float[Tensor, " b"],
    residual: Number,
    span: Float[Tensor, "d k"] | None = None,
    known: Kept | None = None,
    *,
    budgets_alone: bool = False,
) -> TokensOverBall:
    r"""$F(X) = rX + \Gamma(X)$ over $|D|_F \le \varepsilon$, token by token; graded on two radii.

    Args:
        attention: a variant with theorems at `NearTokens` and `NearCurvature`.
        x: a stack of inputs.
        eps: one radius for all, or one per input.
        residual: r, of any sign.
        span: as for `sensitivity`.
        known: as for `sensitivity`.
        budgets_alone: take the radius from the budget of all tokens: larger, at a tenth of the cost
            or less.

    Returns:
        What a certificate of a whole network needs from one reading of the layer.
    """
    check_tensor("x", x, "b n d")
    attention, tokens, radius = checked(attention, x, eps)
    r = checked_residual(residual)
    if known is not None:
        known.check(attention, tokens, span)
    near = NearTokens(attention, tokens, radius.expand(len(tokens)), r, span=span, known=known)
    proved = holding(attention, near)
    bent = near.seen_as(NearCurvature)
    forms = _forms(holding(attention, bent), bent)
    budgets = [[one(attention, near.within(share)) for one in proved] for share in FEW]
    blocks = weighed([_smallest([one.blocks for one in part]) for part in budgets], FEW)
    if budgets_alone:
        radius = near.eps * positive_norm(blocks)
    else:
        constants = [_smallest([one.constant for one in part]) for part in budgets]
        together = near.seen_as(Near)
        beside = [one for one in theorems(attention, together) if one.name in BESIDE]
        radii = [near.eps * weighed(constants, FEW), *(one(attention, together) for one in beside)]
        radius = _smallest(radii)

    def form(gradient: Float[Tensor, "c b n d"]) -> Float[Tensor, "c b n n"]:
        return _upper(2 * curved([one(gradient) for one in forms]))

    return TokensOverBall(_upper(radius), _upper(blocks), form)


def _forms(proved: list[Theorem], near: NearCurvature) -> list[Callable[[Tensor], Tensor]]:
    """For each ball of the grading the matrices against directions, by the best theorem for each
    direction: of two matrices that both hold, entries must not be mixed.
    """

    def best(share: float) -> Callable[[Tensor], Tensor]:
        stated = [one(near.attention, near.within(share)) for one in proved]
        return stated[0] if len(stated) == 1 else lambda g: _best([one(g) for one in stated])

    return [best(share) for share in FEW]


def _best(forms: list[Float[Tensor, "c b n n"]]) -> Float[Tensor, "c b n n"]:
    found = forms[0]
    for other in forms[1:]:
        smaller = largest_root(other) < largest_root(found)
        found = torch.where(smaller[..., None, None], other, found)
    return found


def _smallest(bounds: list[Tensor]) -> Tensor:
    return torch.stack(bounds).amin(0)


def _upper(bound: Tensor) -> Tensor:
    """With the allowance for rounding, that of numbers below the normal range included. Not a
    number means that something overflowed on the way: then nothing is known, and infinity is true.
    """
    bound = bound * (1 + SLACK) + torch.finfo(bound.dtype).tiny
    return bound.masked_fill(bound.isnan(), torch.inf)


def _flat(
    x: Float[Tensor, "*stack n d"], eps: Float[Tensor, "*eps"]
) -> tuple[Float[Tensor, "b n d"], Float[Tensor, " b"]]:
    """Every pair of an input and a radius."""
    shape = np.broadcast_shapes(eps.shape, x.shape[:-2])
    tokens = x.expand(*shape, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
    return tokens, eps.expand(shape).reshape(-1)


def _parts(
    x: Tensor, eps: Tensor, heads: int
) -> list[tuple[Float[Tensor, "b n d"], Float[Tensor, " b"]]]:
    """These pairs a few at a time: memory does not grow with the stack, arrays stay in the
    cache.
    """
    tokens, radii = _flat(x, eps)
    some = max(1, ENTRIES // (heads * x.shape[-2] * max(x.shape[-2:])))
    return list(zip(tokens.split(some), radii.split(some), strict=True))
