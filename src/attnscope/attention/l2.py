r"""L2 attention: the score is minus a squared distance [kim21].

$$ \Gamma_\mu(x) = \sum_h C_h \frac{\int y\, e^{-s |Q_h x - K_h y|^2} d\mu(y)}
   {\int e^{-s |Q_h x - K_h y|^2} d\mu(y)} $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from attnscope.attention._normalised import Normalised
from attnscope.attention._parts import Affine, BiasOf, Kernel
from attnscope.measures import Gaussian, Particles


@final
@dataclass(frozen=True, eq=False)
class L2(Normalised):
    """Softmax attention with a Gaussian kernel; with tied queries and keys it is globally Lipschitz
    for each n.
    """

    name: ClassVar[str] = "l2"
    lipschitz: ClassVar[str] = "if tied (Q = K, V = UQ)"
    distance: ClassVar[bool] = True
    reference: ClassVar[str] = "kim21"
    bias_of: ClassVar[BiasOf] = "key"
    interpolates: ClassVar[bool] = True
    lipschitz_if_tied: ClassVar[bool] = True

    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel:
        r"""$-s|q - k|^2 = 2s\langle q, k\rangle - s|k|^2$ up to a term of the query; centring the
        keys keeps it accurate.
        """
        at, to = self.token_numbers(x, mu, positions)
        q, k = self.heads.queries(x, at), self.heads.keys(mu.x, to)
        centre = k.mean(-2, keepdim=True)
        q, k = q - centre, k - centre
        bias = mu.weights.log()[..., None, :] - self.heads.scale * k.square().sum(-1)
        return Kernel(q, k, bias, 2 * self.heads.scale)

    def bias_slope(self, k: Float[Tensor, "*stack h n k"]) -> Float[Tensor, "*stack h n k"]:
        r"""$-2sk$: the centre that `kernel` subtracts adds the same to all scores of a row, so it
        counts as fixed.
        """
        return -(2 * self.heads.scale * k)

    def on_gaussian(self, mu: Gaussian) -> Affine:
        r"""$\Gamma(x) = \sum_h C_h (I + 2s\Sigma G_h)^{-1}(m + 2s\Sigma K_h^T(Q_h x + b_Q - b_K))$,
        $G = K^TK$ [castin25, Sec. 4].

        With $\Sigma = LL^T$, $N = \sqrt{2s}L$ and $M_h = K_hN$ it is $C_h(m + NM_h^T(I +
        M_hM_h^T)^{-1}(Q_h x + b_Q - b_K - K_h m))$.
        """
        heads, factor = self.heads, mu.any_factor()[..., None, :, :]
        spread = (2 * heads.scale) ** 0.5 * factor
        gain = _gain(spread, heads.key @ spread)
        shift = torch.zeros_like(heads.key[..., 0])
        shift = shift if heads.query_bias is None else shift + heads.query_bias
        shift = shift if heads.key_bias is None else shift - heads.key_bias
        centre = mu.mean[..., None, :, None]
        offset = heads.values @ (centre + gain @ (shift[..., None] - heads.key @ centre))
        matrix = heads.values @ gain @ heads.query
        return Affine(matrix=matrix.sum(-3), offset=offset[..., 0].sum(-2) + heads.constant)

    def energy_on_gaussian(self, mu: Gaussian) -> Float64[Tensor, ""]:
        r"""$\frac12 tr(GS) - \frac14\log\det(I + 2SG)$ with $G = sK^TK$, for $Q = K$ [castin25]."""
        if not torch.allclose(self.heads.query, self.heads.key):
            raise ValueError(
                "the L2 flow climbs an energy when query and key are equal and the values are a"
                " multiple of K^T K."
            )
        g, root = self.heads.a[0].detach().to(torch.float64), mu.factor().to(torch.float64)
        identity = torch.eye(mu.dim, dtype=torch.float64, device=root.device)
        return (
            torch.trace(g @ mu.cov.to(torch.float64)) / 2
            - torch.linalg.slogdet(identity + 2 * root @ g @ root).logabsdet / 4
        )


def _gain(
    spread: Float[Tensor, "*stack #h d d"], m: Float[Tensor, "*stack h k d"]
) -> Float[Tensor, "*stack h d k"]:
    r"""$NM^T(I + MM^T)^{-1}$, as least squares: with $(M, I)^T = QR$ it is $N(R^{-1}Q_M^T)^T$.

    Unlike singular vectors, Q and R have derivatives where singular values are equal.
    """
    identity = torch.eye(m.shape[-2], dtype=m.dtype, device=m.device)
    stacked = torch.cat([m.mT, identity.expand(*m.shape[:-1], m.shape[-2])], dim=-2)
    q, r = torch.linalg.qr(stacked)
    # Q_M of a small M has lost its digits beside I; then R is near I and M R^-1 has them all
    small = torch.linalg.solve_triangular(r.mT, m, upper=False)
    large = torch.linalg.matrix_norm(m, keepdim=True) > 1
    top = torch.where(large, q[..., : m.shape[-1], :].mT, small)
    return torch.linalg.solve_triangular(r, top @ spread.mT, upper=True).mT
