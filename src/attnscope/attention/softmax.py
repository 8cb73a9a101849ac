r"""Softmax attention, the attention of the Transformer [vaswani17].

$$ \Gamma_\mu(x) = \sum_h C_h \frac{\int y\, e^{\langle A_h x, y\rangle} d\mu(y)}
   {\int e^{\langle A_h x, y\rangle} d\mu(y)} $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from attnscope.attention._dot import dot_kernel, dot_masses
from attnscope.attention._normalised import Normalised
from attnscope.attention._parts import Affine, BiasOf, Climbed, Kernel
from attnscope.measures import Gaussian, Particles


@final
@dataclass(frozen=True, eq=False)
class Softmax(Normalised):
    """Each token reads the others with weights that are positive and sum to one."""

    name: ClassVar[str] = "softmax"
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "vaswani17"
    bias_of: ClassVar[BiasOf] = "masses"
    interpolates: ClassVar[bool] = True

    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel:
        return dot_kernel(self, x, mu, positions)

    def on_gaussian(self, mu: Gaussian) -> Affine:
        r"""$B = \sum_h C_h \Sigma A_h$: the tilt $e^{\langle u, y\rangle}$ moves the mean $m$ to $m
        + \Sigma u$ [castin25].
        """
        values, sigma = self.heads.values, mu.cov[..., None, :, :]
        centre = mu.mean[..., None, :, None]
        if self.heads.query_bias is not None:
            centre = centre + sigma @ (
                self.heads.scale * self.heads.key.mT @ self.heads.query_bias[..., None]
            )
        offset = (values @ centre)[..., 0].sum(-2) + self.heads.constant
        return Affine(matrix=(values @ sigma @ self.heads.a).sum(-3), offset=offset)

    def energy(self, mu: Particles) -> Climbed:
        r"""$\frac12\iint e^{\langle Ax,y\rangle} d\mu d\mu$, climbed at a rate of density $z(x) =
        \int e^{\langle Ax,y\rangle}d\mu(y)$ [sander22].
        """
        z = dot_masses(self.heads, mu)
        return Climbed((mu.weights * z).sum() / 2, z)

    def energy_on_gaussian(self, mu: Gaussian) -> Float64[Tensor, ""]:
        r"""$\frac14 tr((AS)^2)$ [castin25]."""
        a, s = self.heads.a[0].detach().to(torch.float64), mu.cov.to(torch.float64)
        return torch.trace(a @ s @ a @ s) / 4
