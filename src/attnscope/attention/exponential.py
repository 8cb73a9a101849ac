r"""Unnormalised exponential attention: the limit of sigmoid attention with bias $-\log n$, and a
gradient flow [geshkovski25].

$$ \Gamma_\mu(x) = \sum_h C_h \int e^{\langle A_h x, y\rangle}\, y\, d\mu(y) $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Attention
from attnscope.measures import Particles


@final
@dataclass(frozen=True, eq=False)
class Exponential(Attention):
    """Softmax attention without its denominator."""

    name: ClassVar[str] = "exponential"
    normalised: ClassVar[bool] = False
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "geshkovski25"
    no_closed_form: ClassVar[str] = (
        "without the denominator its field grows like an exponential of a quadratic form"
    )

    def coupling(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        return self.scores(x, mu, positions).exp() * self.mass(x, mu, positions)
