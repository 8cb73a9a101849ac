r"""One layer $y = x + f(x)$ with $f$ a contraction, and its inverse by fixed-point iteration.

On a ball the iteration is $x \leftarrow \Pi(y - f(x))$, $\Pi$ the projection of every token on the
ball of the input. It maps the ball to itself and shortens distances by L, so it has one fixed
point; an input in the ball with image y is that point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.nets.invertible.layer import tensors, with_tensors
from attnscope.nets.invertible.scale import lipschitz


class Solved(NamedTuple):
    """The preimage by one layer and the size of the last step towards it."""

    x: Float[Tensor, "*stack n d"]
    step: Float[Tensor, "*stack"]
    iterations: int
    converged: bool


@final
@dataclass(frozen=True, eq=False)
class Step:
    r"""$x + f(x)$, $f$ of proved Lipschitz constant `constant` < 1 on the ball of this radius
    (None: everywhere).

    With `squash` f reads the tokens through $\rho(x) = x/\sqrt{1 + |x|^2/R^2}$, which shortens
    distances and ends in the ball.
    """

    attention: Attention
    constant: float
    radius: float | None
    squash: bool
    reads: Float[Tensor, "h v k"] | None = None
    """U of tied L2 attention, in float64."""

    def detached(self) -> Step:
        """The same layer apart from the graph of its weights."""
        parts = {name: part.detach() for name, part in tensors(self.attention).items()}
        return replace(self, attention=with_tensors(self.attention, parts))

    @property
    def ball(self) -> float | None:
        """The radius that inputs must keep, None where every input is allowed."""
        return None if self.squash else self.radius

    def move(
        self, x: Float[Tensor, "*stack n d"], dense: bool = False
    ) -> Float[Tensor, "*stack n d"]:
        """f(x). `dense` evaluates by plain tensor algebra that `torch.func` can transform."""
        if self.squash:
            assert self.radius is not None
            x = x * torch.rsqrt(1 + x.square().sum(-1, keepdim=True) / self.radius**2)
        mu = Particles(torch.zeros(x.shape, dtype=x.dtype, device=x.device)).at(x)
        return self.attention.dense(x, mu) if dense else self.attention(x, mu)

    def project(self, x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
        """The nearest tokens in the ball."""
        if self.ball is None:
            return x
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.where(size > self.ball, x * (self.ball / size), x)

    @torch.no_grad()
    def invert(
        self, y: Float[Tensor, "*stack n d"], tol: float | None = None, most: int | None = None
    ) -> Solved:
        r"""Iterate until $L/(1-L)$ times the last step is below `tol` (default: 16 roundings of y
        over 1 - L), `most` times at most.

        By default `most` is the number of iterations that always suffices, from $|x_k - x^*| \le
        L^k/(1-L)\,|x_1 - x_0|$.
        """
        rate = self.constant / (1 - self.constant)
        x = self.project(y)
        iterations, converged, enough = 0, False, most or 1
        step = target = size(y)
        while iterations < enough and not converged:
            moved = self.project(y - self.move(x))
            step, x = size(moved - x), moved
            iterations += 1
            if iterations == 1:
                rounding = 16 * torch.finfo(y.dtype).eps * (size(y) + step) / (1 - self.constant)
                target = rounding if tol is None else torch.full_like(rounding, tol)
                enough = most or self._enough(step, target)
            converged = bool((rate * step <= target).all())
        return Solved(x, step, iterations, converged)

    @torch.no_grad()
    def constant_within(self, n: int, radius: float) -> float:
        """A proved Lipschitz constant of f for n tokens in the ball of this radius; never above
        `constant`.
        """
        if self.squash:
            assert self.radius is not None
            radius = radius / math.sqrt(1 + (radius / self.radius) ** 2)
        if not radius < (self.radius or math.inf):
            return self.constant
        precise = self.attention.to(torch.float64)
        found = lipschitz(
            precise,
            self.reads,
            n,
            torch.tensor(radius, dtype=torch.float64, device=precise.heads.query.device),
        )
        return min(
            self.constant,
            float(found) * (1 + 16 * torch.finfo(self.attention.heads.query.dtype).eps),
        )

    def check_reached(self, number: int, y: Float[Tensor, "*stack n d"], solved: Solved) -> None:
        """Refuse a y that the best x in the ball misses by more than that x can be wrong."""
        missed = size(solved.x + self.move(solved.x) - y)
        allowed = (1 + self.constant) * self.constant / (1 - self.constant) * solved.step
        if (missed > allowed + torch.finfo(y.dtype).eps ** 0.5 * (size(y) + 1)).any():
            raise ValueError(
                f"y is not the image of tokens in the ball: the nearest input of layer {number}, in"
                f" its ball of radius {self.ball:.6g}, misses by {float(missed.max()):.3g}. Invert"
                " outputs of this stack, or use squash=True, which reaches every y."
            )

    def _enough(self, first: Float[Tensor, "*stack"], target: Float[Tensor, "*stack"]) -> int:
        if self.constant == 0:
            return 2
        least = torch.finfo(torch.float64).tiny
        reduction = float(
            (target.clamp(min=least) * (1 - self.constant) / first.clamp(min=least)).min()
        )
        return 2 + max(0, math.ceil(math.log(reduction) / math.log(self.constant)))


def size(x: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack"]:
    """The Frobenius norm of each member of a stack, accumulated in float64."""
    return torch.linalg.vector_norm(x.to(torch.float64), dim=(-2, -1))
