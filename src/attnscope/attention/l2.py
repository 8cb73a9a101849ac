r"""L2 attention: the score is minus a squared distance [kim21].

$$ \Gamma_\mu(x) = \sum_h C_h \frac{\int y\, e^{-s |Q_h x - K_h y|^2} d\mu(y)}{\int e^{-s |Q_h x - K_h y|^2} d\mu(y)} $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention._base import Affine
from attnscope.attention._normalised import Kernel, Normalised
from attnscope.measures import Gaussian, Particles


@final
@dataclass(frozen=True, eq=False)
class L2(Normalised):
    """Softmax attention with a Gaussian kernel; with tied queries and keys it is globally Lipschitz for each n."""

    name: ClassVar[str] = "l2"
    lipschitz: ClassVar[str] = "if tied (Q = K, V = UQ)"
    reference: ClassVar[str] = "kim21"

    def kernel(self, x: Float[Tensor, "*stack m d"], mu: Particles, positions: Float[Tensor, "*stack m"] | None = None) -> Kernel:
        r"""$-s|q - k|^2 = 2s\langle q, k\rangle - s|k|^2$ up to a term of the query; centring the keys keeps it accurate."""
        at, to = self.token_numbers(x, mu, positions)
        q, k = self.heads.queries(x, at), self.heads.keys(mu.x, to)
        centre = k.mean(-2, keepdim=True)
        q, k = q - centre, k - centre
        bias = mu.weights.log()[..., None, :] - self.heads.scale * k.square().sum(-1)
        return Kernel(q, k, bias, 2 * self.heads.scale)

    def on_gaussian(self, mu: Gaussian) -> Affine:
        r"""$\Gamma(x) = \sum_h C_h (I + 2s\Sigma G_h)^{-1}(m + 2s\Sigma K_h^T(Q_h x + b_Q - b_K))$, $G = K^TK$ [castin25, Sec. 4]."""
        heads, sigma = self.heads, 2 * self.heads.scale * mu.cov[..., None, :, :]
        precision = torch.eye(heads.dim, dtype=mu.cov.dtype, device=mu.cov.device) + sigma @ heads.key.mT @ heads.key
        centre = mu.mean[..., None, :, None]
        shift = torch.zeros_like(heads.key[..., 0])
        shift = shift if heads.query_bias is None else shift + heads.query_bias
        shift = shift if heads.key_bias is None else shift - heads.key_bias
        centre = centre + sigma @ heads.key.mT @ shift[..., None]
        matrix = heads.values @ torch.linalg.solve(precision, sigma @ heads.key.mT @ heads.query)
        offset = heads.values @ torch.linalg.solve(precision, centre.expand(*precision.shape[:-1], 1))
        return Affine(matrix=matrix.sum(-3), offset=offset[..., 0].sum(-2) + heads.constant)
