r"""What every layer of a network declares beside its forward map: how far its output moves, and how
far it is from linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.norms import SLACK


class Layer(nn.Module, ABC):
    r"""A map $F$ on stacks of inputs that knows two proved bounds on the ball $\|D\|_F \le
    \epsilon$ around an input.

    `eps` is a number or a tensor that broadcasts against the stack axes from the right; both bounds
    are computed in float64.
    """

    out_axes = 2
    """How many trailing axes one output has: 2 for tokens (n, d), 1 for logits."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def sensitivity(self, x: Float[Tensor, "*input"], eps: float | Tensor) -> Float[Tensor, "*out"]:
        r"""An upper bound of $\|F(x + D) - F(x)\|$, shape (*stack)."""

    @abstractmethod
    def remainder(
        self, x: Float[Tensor, "*input"], eps: float | Tensor, gradient: Float[Tensor, "c ..."]
    ) -> Float[Tensor, "c ..."]:
        r"""An upper bound of $-\langle g, F(x + D) - F(x) - DF(x)D\rangle$ for each of c directions
        $g$, shape (c, *stack).
        """


class LinearLayer(Layer):
    """An affine layer: it is its own linearisation, and one number says how far it moves things."""

    @abstractmethod
    def norm(self) -> Float[Tensor, ""]:
        """An upper bound of the spectral norm of the linear part, in float64."""

    in_axes = 2

    def sensitivity(self, x: Float[Tensor, "*input"], eps: float | Tensor) -> Float[Tensor, "*out"]:
        stack = x.shape[: x.ndim - self.in_axes]
        return self.norm().to(x.device) * radii(eps, stack, x.device) * (1 + SLACK)

    def remainder(
        self, x: Float[Tensor, "*input"], eps: float | Tensor, gradient: Float[Tensor, "c ..."]
    ) -> Float[Tensor, "c ..."]:
        stack = x.shape[: x.ndim - self.in_axes]
        return (
            radii(eps, stack, x.device)
            .new_zeros(())
            .expand(gradient.shape[0], *radii(eps, stack, x.device).shape)
        )


class Unbounded(Layer):
    """A layer for which no useful bound exists; `why` says so in the refusal."""

    why: str

    def sensitivity(self, x: Float[Tensor, "*input"], eps: float | Tensor) -> Float[Tensor, "*out"]:
        raise NoBound(self.why)

    def remainder(
        self, x: Float[Tensor, "*input"], eps: float | Tensor, gradient: Float[Tensor, "c ..."]
    ) -> Float[Tensor, "c ..."]:
        raise NoBound(self.why)


def radii(
    eps: float | Tensor, stack: tuple[int, ...], device: torch.device
) -> Float[Tensor, "*out"]:
    """The radius of every input of the stack, in float64; eps may have more leading axes than the
    stack.
    """
    given = torch.as_tensor(eps, dtype=torch.float64, device=device)
    return given.expand(torch.broadcast_shapes(given.shape, stack))
