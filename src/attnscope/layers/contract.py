r"""The contract that every layer of a certified network keeps: how far its output can move over a
ball, token by token where there are tokens, and how far it is from linear.

For a perturbation $D$ of the input of a layer $F$ let $\|D\|_F \le \varepsilon$, and let $v_i =
|d_i|$ be the lengths of its tokens. The layer answers with

- a *radius*, at least $\|F(x + D) - F(x)\|_F$;
- a *budget*, a non-negative matrix $N$ with $|F(x + D) - F(x)|_i \le (Nv)_i$;
- a *remainder*: for directions $g$, what bounds $-\langle g, R\rangle$, $R = F(x + D) - F(x) -
  DF(x)D$; and a bound on $\|R\|_F$, for the layers behind it.

Nothing else is asked of a layer: one of your own that has `over` is certified as ours are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.bounds.near.place import Kept
from attnscope.norms import SLACK, largest_root


@final
@dataclass(frozen=True, eq=False)
class Remainder:
    r"""What bounds $-\langle g, R\rangle$ for each of c directions $g$ and k inputs, over the ball.

    `whole` bounds it by itself; `form` $M$ and `corners` $c$, both non-negative, do so token by
    token: $-\langle g, R\rangle \le \langle c, v\rangle + \frac12 v^TMv$. A layer gives `whole`,
    `form` or both; corners stand for kinks, whose remainder grows like $v$ and not like $v^2$.
    """

    whole: Float[Tensor, "c k"] | None = None
    form: Float[Tensor, "c k n n"] | None = None
    corners: Float[Tensor, "c k n"] | None = None

    def __post_init__(self) -> None:
        if self.whole is None and self.form is None:
            raise ValueError("a remainder needs `whole`, or a `form` by tokens; both are None.")

    def bent(self, eps: Float[Tensor, " k"]) -> Float[Tensor, "c k"]:
        r"""$\frac12\lambda_{\max}(M)\varepsilon^2$: what the form alone can reach."""
        assert self.form is not None
        return largest_root(self.form) * eps.square() / 2

    def within(self, eps: Float[Tensor, " k"]) -> Float[Tensor, "c k"]:
        """A bound over the ball of this radius, from whatever is there."""
        if self.whole is not None:
            return self.whole
        return self.bent(eps) + self.kinks(eps)

    def kinks(self, eps: Float[Tensor, " k"]) -> Float[Tensor, ...]:
        r"""$\|c\|\varepsilon$, 0 without corners."""
        if self.corners is None:
            return torch.zeros_like(eps)
        return torch.linalg.vector_norm(self.corners, dim=-1) * eps


def affine(gradients: Float[Tensor, "c k ..."]) -> Remainder:
    """The remainder of an affine layer: none."""
    zero = gradients.new_zeros(gradients.shape[:2], dtype=torch.float64)
    return Remainder(whole=zero)


@final
@dataclass(frozen=True, eq=False)
class OverBall:
    r"""What a layer can do over a ball around each of k inputs.

    Args:
        radius: how far the output can move.
        budget: how far each token can move, or None where tokens make no sense.
        remainder: from gradients (c, k, ...) at the output to a `Remainder`; `affine` for an affine
            layer; None when no remainder is known, and the layer counts with its radius alone.
        theorem: what proved the radius.
        cut: for a layer that makes tokens of something else, how its input falls into the n pieces
            that the budget counts, (..., n, p); None when the input is tokens (..., n, d) already.
        rest: gives (k,) numbers of at least $\|R\|_F$, the Taylor remainder in any direction; None
            when nothing better is known than the radius and the slope at the input together.
        span: orthonormal columns (d, m), when every token of the output can move within their span
            alone; None when it may move anywhere.
    """

    radius: Float[Tensor, " k"]
    budget: Float[Tensor, "k n n"] | None = None
    remainder: Callable[[Tensor], Remainder] | None = None
    theorem: str = "declared by the layer"
    cut: Callable[[Tensor], Tensor] | None = None
    rest: Callable[[], Tensor] | None = None
    span: Float[Tensor, "d m"] | None = None


@runtime_checkable
class Guided(Protocol):
    """A layer that can say more when its tokens move in some directions alone."""

    def over_span(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None,
        span: Float[Tensor, "d m"] | None,
    ) -> OverBall:
        """As `Layer.over`, for movements within the span of these columns."""
        ...


@runtime_checkable
class Recalling(Protocol):
    """A layer that is asked at many radii, and works out once what depends on its inputs alone."""

    def over_known(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None,
        span: Float[Tensor, "d m"] | None,
        known: Kept | None,
    ) -> OverBall:
        """As `Guided.over_span`; `known` is about these inputs, this layer and this span."""
        ...


@runtime_checkable
class Layer(Protocol):
    r"""A map on stacks of inputs, the first axis for the stack, that knows its bounds."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        """Bounds over the balls of radii `eps` (float64) around the inputs `x`.

        Args:
            x: inputs, one per row of the first axis.
            eps: the radius of each in Frobenius norm.
            each: radii per token; when they are given, answers by tokens are wanted. Without them
                the layer answers for the ball as a whole, as sharply as it can.
        """
        ...


class AffineLayer(nn.Module, ABC):
    """An affine layer: it is its own linearisation, and one number says how far it moves things."""

    @abstractmethod
    def norm(self) -> Float[Tensor, ""]:
        """An upper bound of the spectral norm of the linear part, in float64."""

    def over(
        self,
        x: Float[Tensor, "k ..."],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        norm = self.norm().to(x.device) * (1 + SLACK)
        budget, span = self.budget(x, norm), self.span()
        return OverBall(norm * eps, budget, affine, "spectral norm", self.cut(), span=span)

    def budget(
        self, x: Float[Tensor, "k ..."], norm: Float[Tensor, ""]
    ) -> Float[Tensor, "k n n"] | None:
        """For a layer that takes every token by itself: its norm on the diagonal."""
        return norm * same(x)

    def cut(self) -> Callable[[Tensor], Tensor] | None:
        """See `OverBall.cut`."""
        return None

    def span(self) -> Float[Tensor, "d m"] | None:
        """See `OverBall.span`."""
        return None


class Unbounded(nn.Module):
    """A layer for which no useful bound exists; `why` says so in the refusal."""

    why: str

    def over(
        self, x: Tensor, eps: Float[Tensor, " k"], each: Float[Tensor, "k n"] | None = None
    ) -> OverBall:
        raise NoBound(self.why)


def same(x: Float[Tensor, "k ..."], count: int | None = None) -> Float[Tensor, "k n n"]:
    """The budget of the identity on the tokens of x (k, n, d), or on so many of them."""
    tokens = x.shape[-2] if count is None else count
    return torch.eye(tokens, dtype=torch.float64, device=x.device).expand(len(x), -1, -1)
