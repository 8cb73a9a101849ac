r"""What norms make of tokens that are far away, where biases and $\epsilon$ no longer count.

$q = \gamma(u + b)/r(u + b) + \beta$ with $u = Mx/\gamma$ has the middle $\beta$ between x and -x
and, times the size of x, the derivative $a(M - p\rho^T)$ with p half the difference between x and
-x. Two directions show all of M up to a factor: each hides what is along its own p.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.models._moves import Given, _basis, moved

FAR = 1e9
"""Biases count one over this; its square still is a number of float32, in which some norms run."""


class Far(NamedTuple):
    """Queries, keys or values along two directions."""

    moves: tuple[Float[Tensor, "h k d"], Float[Tensor, "h k d"]]
    """derivatives times the distance"""
    apart: tuple[Float[Tensor, "h k"], Float[Tensor, "h k"]]
    """differences between both ends"""
    middle: Float[Tensor, "h n k"]

    def matrix(self, bent: Bool[Tensor, " k"]) -> Float[Tensor, "h k d"]:
        """The rows of M behind norms, up to a factor for each head; 0 for the others, which have
        grown with the tokens.
        """
        one, other = (part * bent[:, None] for part in self.moves)
        p, q = (part * bent for part in self.apart)
        return _matrix(one, other, p, q)


def far_away(given: Given, shape: tuple[int, ...], few: int, like: Tensor) -> list[Far]:
    """What queries, keys and values are along two directions and their opposites."""
    generator = torch.Generator().manual_seed(19)
    draw = FAR * torch.randn(2, shape[-1], generator=generator, dtype=torch.float64).to(like)
    moves, sides = [], []
    for direction in draw:
        moves.append(moved(given, direction.repeat(few, 1), _basis(like[:few])))
        with torch.no_grad():
            both = [given(sign * direction.repeat(shape[0], 1)) for sign in (1, -1)]
        sides.append([(one.double(), other.double()) for one, other in zip(*both, strict=True)])
    found = []
    for i in range(3):
        one, other = (FAR * move[i][:, :, 0].movedim(0, -1) for move in moves)
        p, q = ((side[i][0] - side[i][1])[:, 0] for side in sides)
        found.append(Far((one, other), (p, q), (sides[0][i][0] + sides[0][i][1]) / 2))
    return found


def _matrix(
    one: Float[Tensor, "h k d"],
    other: Float[Tensor, "h k d"],
    p: Float[Tensor, "h k"],
    q: Float[Tensor, "h k"],
) -> Float[Tensor, "h k d"]:
    """M from $M - p\\rho^T$ and $c(M - q\\sigma^T)$, c unknown."""
    p, q = (torch.nn.functional.normalize(part, dim=-1)[..., None] for part in (p, q))

    def without(unit: Tensor, part: Tensor) -> Tensor:
        return part - unit * (unit.mT @ part)

    rest = torch.nn.functional.normalize(without(p, q), dim=1)
    first, second = (without(rest, without(p, part)) for part in (one, other))
    total = second.square().sum((1, 2), keepdim=True)
    other = other * ((first * second).sum((1, 2), keepdim=True) / total)
    shown, along = without(p, one), without(q, p)
    hidden = along.mT @ (other - shown) / along.square().sum(1, keepdim=True)
    return shown + p * hidden
