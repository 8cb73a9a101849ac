r"""Unnormalised exponential attention: the limit of sigmoid attention with bias $-\log n$, and a
gradient flow [geshkovski25].

$$ \Gamma_\mu(x) = \sum_h C_h \int e^{\langle A_h x, y\rangle}\, y\, d\mu(y) $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Attention
from attnscope.attention._dot import dot_kernel, dot_masses
from attnscope.attention._parts import BiasOf, Climbed, Kernel
from attnscope.measures import Particles


@final
@dataclass(frozen=True, eq=False)
class Exponential(Attention):
    """Softmax attention without its denominator."""

    name: ClassVar[str] = "exponential"
    normalised: ClassVar[bool] = False
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "geshkovski25"
    bias_of: ClassVar[BiasOf] = "masses"
    interpolates: ClassVar[bool] = True
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

    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel:
        return dot_kernel(self, x, mu, positions)

    def energy(self, mu: Particles) -> Climbed:
        r"""$\frac12\iint e^{\langle Ax,y\rangle} d\mu d\mu$, whose gradient is the field itself
        [geshkovski25].
        """
        z = dot_masses(self.heads, mu)
        return Climbed((mu.weights * z).sum() / 2, torch.ones_like(z))
