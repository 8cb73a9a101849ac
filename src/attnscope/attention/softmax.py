r"""Softmax attention, the attention of the Transformer [vaswani17].

$$ \Gamma_\mu(x) = \sum_h C_h \frac{\int y\, e^{\langle A_h x, y\rangle} d\mu(y)}
   {\int e^{\langle A_h x, y\rangle} d\mu(y)} $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Affine
from attnscope.attention._normalised import Kernel, Normalised
from attnscope.measures import Gaussian, Particles


@final
@dataclass(frozen=True, eq=False)
class Softmax(Normalised):
    """Each token reads the others with weights that are positive and sum to one."""

    name: ClassVar[str] = "softmax"
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "vaswani17"

    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel:
        at, to = self.token_numbers(x, mu, positions)
        k = self.heads.keys(mu.x, to)
        bias = mu.weights.log()[..., None, :].expand(k.shape[:-1])
        return Kernel(self.heads.queries(x, at), k, bias, self.heads.scale)

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
