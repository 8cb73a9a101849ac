"""Places: where a theorem holds, with what its formula needs to know there.

A place serves one query. Its radius may be a tensor, so that bounds can be differentiated in it; a
radius of shape (r, 1) gives bounds at r radii at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.bounds.head_norms import Slopes

EQUAL = 1e-9
"""How far, relatively, the smallest weight of equally heavy tokens may be from 1/n."""


@final
@dataclass(frozen=True, eq=False)
class OnBall:
    r"""n tokens of norm at most `radius` (n None: any number), none lighter than 1/`crowd`, moved
    in $W_p$.
    """

    n: int | None
    radius: float | Tensor
    crowd: float = math.inf
    p: float = 2
    _known: dict[tuple[Heads, bool], Slopes] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.radius, Tensor):  # its powers may overflow to infinity, not raise
            object.__setattr__(self, "radius", torch.tensor(self.radius, dtype=torch.float64))

    @property
    def equal_masses(self) -> bool:
        return _equal(self.n, self.crowd)

    def slopes(self, attention: Attention) -> Slopes:
        """Norms of the scores of this attention, worked out once for all theorems of a query."""
        key = (attention.heads, torch.is_grad_enabled())
        if key not in self._known:
            self._known[key] = Slopes.of(attention.heads, self.n)
        return self._known[key]

    def scores(
        self, attention: Attention
    ) -> tuple[Float[Tensor, "*radii h"], Float[Tensor, "*radii h"]]:
        r"""$t_h = R(\|A_h\|R + \beta_h)$, $\beta_h$ = scale $|K_h^Tb_{Q,h}|$: the largest
        $R\,|\partial_2 s|$; and $y_h = \|A_h\|R^2$, the same for $\partial_1 s$.
        """
        slopes = self.slopes(attention)
        shift = slopes.query_shift if attention.heads.rotary is not None else 0.0
        reach = slopes.a * self.radius
        return self.radius * (reach + slopes.key_shift), self.radius * (reach + shift)

    def only(self, which: list[int]) -> OnBall:
        """The place for some of the heads."""
        return replace(self)

    def __str__(self) -> str:
        return f"tokens in the ball of radius {_number(self.radius)}"


@final
@dataclass(frozen=True, eq=False)
class Anywhere:
    """n tokens anywhere in space, none lighter than 1/`crowd`. `reads` are the matrices U of values
    V = UQ where they are known; otherwise they are found.
    """

    n: int
    crowd: float
    reads: Float[Tensor, "h v k"] | None = None
    p: float = 2

    @property
    def equal_masses(self) -> bool:
        return _equal(self.n, self.crowd)

    def only(self, which: list[int]) -> Anywhere:
        """The place for some of the heads."""
        return replace(self, reads=None if self.reads is None else self.reads[which])

    def __str__(self) -> str:
        return f"{self.n} tokens of equal weight anywhere in space"


@final
@dataclass(frozen=True, eq=False)
class Reach:
    r"""One token of the ball of this radius, and a measure there: how long $\Gamma_\mu(x)$ is."""

    radius: float | Tensor

    def __str__(self) -> str:
        return f"tokens in the ball of radius {_number(self.radius)}"


@final
@dataclass(frozen=True, eq=False)
class Flow:
    """A measure in the ball of this radius that flows for this time."""

    radius: float | Tensor
    time: float | Tensor

    def __str__(self) -> str:
        return f"support in the ball of radius {_number(self.radius)} at time 0"


@final
@dataclass(frozen=True, eq=False)
class TwoFlows:
    """Two measures in the ball of this radius that flow for this time, apart in $W_p$ (causal
    attention: in the conditional distance).
    """

    radius: float | Tensor
    time: float | Tensor
    p: float = 2

    def __str__(self) -> str:
        return f"both supports in the ball of radius {_number(self.radius)} at time 0"


@final
@dataclass(frozen=True, eq=False)
class Normed:
    r"""Tokens that a norm layer divides by $(|x|^2/d + \epsilon)^{1/2}$, x minus its mean if
    `centred`, and multiplies by `gain`.
    """

    x: Float[Tensor, "*stack n d"]
    gain: Float[Tensor, " d"]
    eps: float
    centred: bool

    @classmethod
    def of(cls, norm: torch.nn.Module, x: Float[Tensor, "*stack n d"]) -> Normed:
        """Tokens at torch's LayerNorm, or at a module with `weight` and an epsilon that is an
        RMSNorm.
        """
        eps = getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None) or 0.0
        return cls(
            x.double(),
            norm.get_parameter("weight").detach().double(),
            float(eps),
            isinstance(norm, torch.nn.LayerNorm),
        )

    def __str__(self) -> str:
        return "at these tokens"


def _equal(n: int | None, crowd: float) -> bool:
    return n is not None and crowd <= n * (1 + EQUAL)


def _number(radius: float | Tensor) -> str:
    return f"{float(radius):.6g}"
