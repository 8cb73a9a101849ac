r"""What a layer can say when it knows how its input moves to first order.

For one image the input of a layer moves by $\Delta = J\delta + E$ with $|\delta| \le \varepsilon$,
$J$ the clean Jacobian from the image, and $|E_i| \le \eta_i$ for token i. A layer with `along`
bounds what is left of its output beyond second order, $T = f(x + \Delta) - f(x) - Df\Delta -
\frac12D^2f[J\delta, J\delta]$, in norm and against directions. The second order itself is computed,
for the network as a whole, and not bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near.along import Beside, Forms
from attnscope.norms import SLACK, largest_eigenvalue, spectral


@final
@dataclass(frozen=True, eq=False)
class Tangent:
    r"""How a value of n tokens moves.

    Args:
        jacobian: one direction of the image in each row.
        eps: the radius at the image.
        rest: the most that each token moves beside the first order.
        spare: the same for all tokens together.
        norm: at least the norm of the Jacobian.
        beside: from rows $w_k$ to at least $|\langle w_k, E_i\rangle|$ (n, m), where more is known
            than $|w_k|$ times `rest`.
    """

    jacobian: Float[Tensor, "p n d"]
    eps: float
    rest: Float[Tensor, " n"]
    spare: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    beside: Beside | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return (self.jacobian.shape[1], self.jacobian.shape[2])

    def tokens(self, shape: torch.Size) -> Tangent:
        """As tokens of the last axis of a value of this shape (1, ..., d)."""
        jacobian = self.jacobian.reshape(len(self.jacobian), -1, shape[-1])
        fits = jacobian.shape[1] == len(self.rest)
        rest = self.rest if fits else self.spare.expand(jacobian.shape[1])
        same = self.beside if jacobian.shape == self.jacobian.shape else None
        return Tangent(jacobian, self.eps, rest, self.spare, self.norm, same)

    def entries(self, shape: torch.Size) -> Tangent:
        """As tokens (1, n, d), or as one token where a value has no tokens."""
        return self.tokens(shape if len(shape) == 3 else torch.Size((1, shape[1:].numel())))

    def units(
        self, weight: Float[Tensor, "m d"] | None = None
    ) -> tuple[Float[Tensor, "p n m"], Float[Tensor, "n m"]]:
        """The Jacobian of each unit behind a linear map of each token, and the most that it moves
        beside the first order; without a map every entry is a unit.
        """
        if weight is None:
            return self.jacobian, self.rest[:, None].expand(self.shape)
        lengths = torch.linalg.vector_norm(weight, dim=-1) * (1 + SLACK)
        spare = self.rest[:, None] * lengths
        if self.beside is not None:
            spare = torch.minimum(spare, self.beside(weight))
        return self.jacobian @ weight.mT, spare

    def first(self) -> Float[Tensor, " n"]:
        """The most that each token moves to first order."""
        return token_norms(self.jacobian) * self.eps

    def whole(self) -> Float[Tensor, ""]:
        """The most that the value moves as a whole."""
        return self.norm * self.eps + self.spare


@final
@dataclass(frozen=True, eq=False)
class Along:
    r"""What a layer does to such an input beyond second order, for one image.

    Args:
        tokens: at least $|T_i|$ for each token of the output; one where it has none.
        third: from gradients (c, ...) at the output to at least $|\langle g, T\rangle|$.
        forms: from few gradients to F (c, p, p) and k (c,) with $-\langle g, T\rangle \le
            \delta^TF\delta + k$, where that is known: one $\delta$ pays for all layers.
    """

    tokens: Float[Tensor, " n"]
    third: Callable[[Tensor], Tensor]
    forms: Callable[[Tensor], Forms] | None = None


@runtime_checkable
class Follows(Protocol):
    """A layer that bounds what is beyond its second order."""

    def along(self, x: Tensor, tangent: Tangent) -> Along: ...


def token_norms(jacobian: Float[Tensor, "p n d"]) -> Float[Tensor, " n"]:
    """At least the norm of the Jacobian of each token, from d x d Gram matrices."""
    rows = jacobian.movedim(0, -1)
    gram = rows @ rows.mT if rows.shape[1] <= rows.shape[2] else rows.mT @ rows
    return largest_eigenvalue(gram).sqrt() * (1 + SLACK)


def block_norms(jacobian: Float[Tensor, "m d_in n d"]) -> Float[Tensor, "n m"]:
    """At least the norm of each block, from one token to another."""
    rows = jacobian.permute(2, 0, 3, 1)
    gram = rows @ rows.mT if rows.shape[2] <= rows.shape[3] else rows.mT @ rows
    return largest_eigenvalue(gram).sqrt() * (1 + SLACK)


def dense_norm(jacobian: Float[Tensor, "p n d"]) -> Float[Tensor, ""]:
    """At least the norm of the Jacobian of all tokens."""
    return spectral(jacobian.flatten(1)) * (1 + SLACK)
