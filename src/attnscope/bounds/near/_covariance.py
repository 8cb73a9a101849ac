r"""What softmax adds to the Jacobian, from the covariances of the tokens under the rows of the
coupling rather than from single tokens.

Row i is $U \mapsto C\sum_jP_{ij}(x_j - m_i)\langle\kappa_{ij}, u_j\rangle +
C\,\mathrm{Cov}_iA\,u_i$. With $S_i = C\,\mathrm{Cov}_iC^T$ and $T_i = A^T\mathrm{Cov}_iA$
Cauchy-Schwarz bounds the first part by $\|S_i\|^{1/2}(\sum_jP_{ij}|\kappa_{ij}|^2|u_j|^2)^{1/2}$
and the norm of the matrix in the second by $\|S_i\|^{1/2}\|T_i\|^{1/2}$.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.near._scores import ScoresAt
from attnscope.norms import TINY

ROUNDING = 1e-12


def covariance_norm(
    reading: ScoresAt,
    high: Float[Tensor, "b h n n"],
    kappa: Float[Tensor, "b h n m"],
    eps: Float[Tensor, " b"],
) -> Float[Tensor, " b"]:
    r"""At least the norm of what softmax adds to $DF$, where $P'_{ij} \le$ high, $|\kappa'_{ij}|
    \le$ kappa and $|X' - X|_F \le$ eps.

    $\sum_h(\max_j\sum_i\|S'_i\|u_{ij}\kappa_{ij}^2)^{1/2} + \max_i\sum_h(\|S'_i\|\|T'_i\|)^{1/2}$.
    """
    matrices = reading.matrices
    moved = high.amax(-1).sqrt() * eps[:, None, None]
    written = _spread(reading.p, reading.value, high) + moved * matrices.c_norm[:, None]
    read = _spread(reading.p, reading.query, high) + moved * matrices.a_norm[:, None]
    columns = (written.square()[..., None] * high * kappa.square()).sum(-2).amax(-1)
    return (columns + TINY).sqrt().sum(-1) + (written * read).sum(-2).amax(-1)


def _spread(
    p: Float[Tensor, "b h n n"], rows: Float[Tensor, "b h n d"], weight: Float[Tensor, "b h n n"]
) -> Float[Tensor, "b h n"]:
    r"""At least $\|\sum_jw_{ij}z_{ij}z_{ij}^T\|^{1/2}$, $z_{ij} = r_j - \sum_kP_{ik}r_k$: the root
    of its Frobenius norm, rounding added.

    $\langle z_{ij}, z_{ik}\rangle = G_{jk} - a_j - a_k$ with the Gram matrix G of the rows, so
    products of n x n matrices are enough.
    """
    gram = rows @ rows.mT
    mean = p @ rows
    a = mean @ rows.mT - mean.square().sum(-1, keepdim=True) / 2
    total, pull = weight.sum(-1), (weight * a).sum(-1)
    squares = (
        ((weight @ gram.square()) * weight).sum(-1)
        + 2 * total * (weight * a.square()).sum(-1)
        + 2 * pull.square()
    )
    size = (total * gram.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None]).square()
    form = squares - 4 * (weight * a * (weight @ gram)).sum(-1)
    return (form.clamp(min=0) + ROUNDING * size + TINY) ** 0.25
