r"""What variants hand out: an affine field, an exponential kernel, an energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from jaxtyping import Float
from torch import Tensor

from attnscope.validation import brief, check_shape

BiasOf = Literal["masses", "key", "measure"]
"""What a key bias depends on besides the weights: nothing, its own key, or every token."""


class NoClosedForm(ValueError):
    """This attention has no closed form on a Gaussian; the message says why and what to do
    instead.
    """


class Overflow(ValueError):
    """The field leaves the range of floating-point numbers at these tokens."""


@final
@dataclass(frozen=True, eq=False)
class Affine:
    r"""The affine field $x \mapsto B x + b$."""

    matrix: Float[Tensor, "*stack d d"]
    offset: Float[Tensor, "*stack d"]

    __repr__ = brief

    def __call__(self, x: Float[Tensor, "*stack m d"]) -> Float[Tensor, "*stack m d"]:
        check_shape(
            "x",
            x,
            (*self.offset.shape[:-1], *x.shape[-2:-1], self.offset.shape[-1]),
            "the stack and dimension of the field",
        )
        return x @ self.matrix.mT + self.offset[..., None, :]


class Kernel(NamedTuple):
    r"""A coupling that is an exponential: $c_{ij} \propto e^{s\langle q_i, k_j\rangle + \beta_j}$,
    the log-weights in the key bias $\beta$; position bias and mask come on top.
    """

    q: Float[Tensor, "*stack h m k"]
    k: Float[Tensor, "*stack h n k"]
    bias: Float[Tensor, "*stack h n"]
    scale: float


class Climbed(NamedTuple):
    r"""An energy that a flow climbs when $A$ is symmetric and $V = cA$, and the density $z$ of its
    rate: $\frac{dF}{dt} = \frac1c\int z\,\langle\Gamma, v\rangle d\mu$.
    """

    value: Float[Tensor, ""]
    density: Float[Tensor, " n"]
