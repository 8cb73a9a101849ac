r"""Linear attention: the score itself is the weight [katharopoulos20]. The control case, exact for
any cloud.

$$ \Gamma_\mu(x) = \sum_h C_h \int \langle A_h x, y\rangle\, y\, d\mu(y) = \sum_h C_h M A_h x,
   \qquad M = \int y y^T d\mu $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Attention
from attnscope.attention._parts import Affine
from attnscope.measures import Gaussian, Particles


@final
@dataclass(frozen=True, eq=False)
class Linear(Attention):
    """Linear in the query, quadratic in the measure's points."""

    name: ClassVar[str] = "linear"
    normalised: ClassVar[bool] = False
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "katharopoulos20"

    def coupling(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        return self.scores(x, mu, positions) * self.mass(x, mu, positions)

    def evaluate(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None,
    ) -> Float[Tensor, "*stack m d"]:
        """Without a mask or position bias, $\\sum_j w_j v_j k_j^T$ is summed once: no coupling is
        ever formed.
        """
        if self.causal or self.heads.position_bias is not None:
            return super().evaluate(x, mu, positions)
        at, to = self.token_numbers(x, mu, positions)
        moment = torch.einsum(
            "...n,...hnv,...hnk->...hvk",
            mu.weights,
            self.heads.read(mu.x),
            self.heads.keys(mu.x, to),
        )
        return self.heads.write(self.heads.scale * self.heads.queries(x, at) @ moment.mT)

    def on_gaussian(self, mu: Gaussian) -> Affine:
        r"""$E[(V y + b_V)(K y + b_K)^T] = V\Sigma K^T + (Vm + b_V)(Km + b_K)^T$ per head, times
        scale $(Qx + b_Q)$.
        """
        heads, centre = self.heads, mu.mean[..., None, :]
        moment = heads.value @ mu.cov[..., None, :, :] @ heads.key.mT + heads.read(
            centre
        ).mT @ heads.keys(centre)
        moment = heads.scale * (moment if heads.output is None else heads.output @ moment)
        offset = (
            torch.zeros_like(mu.mean)
            if heads.output_bias is None
            else heads.output_bias.expand_as(mu.mean)
        )
        if heads.query_bias is not None:
            offset = offset + (moment @ heads.query_bias[..., None])[..., 0].sum(-2)
        return Affine(matrix=(moment @ heads.query).sum(-3), offset=offset)
