"""Norms that are never too small: what the proved bounds are made of.

All in float64. LAPACK's singular values are backward stable, so `SLACK` covers their rounding with
a wide margin.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

SLACK = 1e-10
"""Relative allowance for rounding in every bound."""
DENSE = 1e-12
"""The same for one dense decomposition, far above its rounding. It is smaller because a norm may
end up in an exponent, which would turn an allowance into a factor.
"""

LARGE = 64
"""Size above which eigenvalues of a Gram matrix are much cheaper than singular values."""

POWER_STEPS = 8
"""Power steps towards a Perron vector; any number gives a bound, more give a better one."""
PERRON_STEPS = 60
"""The same where one matrix is all there is."""
TINY = 1e-200
"""Added under a root so that its gradient at zero is finite."""


def spectral(matrix: Float[Tensor, "*stack p q"]) -> Float[Tensor, "*stack"]:
    """The spectral norm from a dense decomposition, of the Gram matrix when that is large; infinity
    where an entry has overflowed.
    """
    if not bool(torch.stack(torch.aminmax(matrix.detach())).isfinite().all()):
        finite = matrix.detach().isfinite().all(-1).all(-1)
        kept = torch.where(finite[..., None, None], matrix, 0.0)
        return torch.where(finite, spectral(kept), torch.inf)
    if min(matrix.shape[-2:]) <= LARGE:
        return torch.linalg.matrix_norm(matrix, 2) * (1 + DENSE)
    gram = _gram(matrix)
    trace = gram.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    if bool(((trace > TINY) & (trace < 1 / TINY)).all()):
        return largest_eigenvalue(gram).sqrt() * (1 + SLACK)
    size = matrix.detach().abs().amax((-2, -1))  # squares vanish or overflow: bring it to size one
    unit = torch.where(size > 0, size, 1.0)
    gram = _gram(matrix / unit[..., None, None])
    return largest_eigenvalue(gram).sqrt() * (1 + SLACK) * unit


def _gram(matrix: Float[Tensor, "*stack p q"]) -> Float[Tensor, "*stack m m"]:
    return matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix


def spectral_of_product(
    left: Float[Tensor, "*stack p k"], right: Float[Tensor, "*stack k q"]
) -> Float[Tensor, "*stack"]:
    """The spectral norm of `left @ right` at the cost of its inner size k."""
    return spectral(thin(left) @ thin(right.mT).mT)


def thin(matrix: Float[Tensor, "*stack p q"]) -> Float[Tensor, "*stack r q"]:
    """A matrix R of at most q rows with |Rx| = |Mx| for every x.

    M itself where autograd follows: the derivative of a factorisation is that of a full rank.
    """
    if matrix.requires_grad or matrix.shape[-2] <= matrix.shape[-1]:
        return matrix
    return torch.linalg.qr(matrix, mode="r").R


def largest_eigenvalue(gram: Float[Tensor, "*stack m m"]) -> Float[Tensor, "*stack"]:
    """Of symmetric positive semi-definite matrices; rounding is relative to the trace."""
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0) + SLACK * gram.diagonal(
        dim1=-2, dim2=-1
    ).sum(-1).clamp(min=0)


def schatten16(matrix: Float[Tensor, "*stack p q"]) -> Float[Tensor, "*stack"]:
    r"""$(\sum_i \sigma_i^{16})^{1/16}$ by matrix products: at least the spectral norm, at most
    rank$^{1/16}$ times it.
    """
    size = torch.linalg.matrix_norm(matrix).clamp(min=torch.finfo(matrix.dtype).tiny)
    power = matrix / size[..., None, None]
    power = power.mT @ power if power.shape[-1] <= power.shape[-2] else power @ power.mT
    for _ in range(2):
        power = power @ power
    return size * torch.linalg.matrix_norm(power) ** 0.125 * (1 + SLACK)


def largest_root(matrix: Float[Tensor, "*stack n n"]) -> Float[Tensor, "*stack"]:
    r"""At least $\lambda_{max}$ of a symmetric non-negative matrix: $\max_i (Mx)_i/x_i$ for a
    positive $x$ (Collatz-Wielandt).
    """
    fixed = matrix.detach()
    x = torch.ones_like(fixed[..., 0])
    for _ in range(POWER_STEPS):
        x = _positive(_product(fixed, x))
    return (_product(matrix, x) / x).amax(-1) * (1 + SLACK)


def positive_norm(
    matrix: Float[Tensor, "*stack m n"], steps: int | None = None
) -> Float[Tensor, "*stack"]:
    r"""At least the spectral norm of a non-negative matrix $N$: $(\max_j (N^TNx)_j/x_j)^{1/2}$ for
    a positive $x$ (Collatz-Wielandt); infinite where an entry is.
    """
    top = matrix.detach().amax((-2, -1))
    scaled = matrix / torch.where(top > 0, top, 1.0)[..., None, None]
    x = perron_vector(scaled, steps)
    square = (_product(scaled.mT, _product(scaled, x)) / x).amax(-1)
    return torch.where(top.isfinite(), top * (square + TINY).sqrt() * (1 + SLACK), top)


def perron_norm(matrix: Float[Tensor, "*stack m n"]) -> Float[Tensor, "*stack"]:
    r"""`positive_norm` after so many steps that $x$ is the Perron vector: its gradient is that of
    the norm, $|Nx|$ at fixed $x$.
    """
    bound = positive_norm(matrix.detach(), PERRON_STEPS)
    if not matrix.requires_grad:
        return bound
    top = matrix.detach().amax((-2, -1)) + TINY
    x = perron_vector(matrix / top[..., None, None], PERRON_STEPS)
    along = torch.linalg.vector_norm(_product(matrix / top[..., None, None], x), dim=-1)
    return bound * along / (along.detach() + TINY)


def perron_vector(
    matrix: Float[Tensor, "*stack m n"], steps: int | None = None
) -> Float[Tensor, "*stack n"]:
    """A positive vector near the top right singular vector of a non-negative matrix, after so many
    power steps, POWER_STEPS if left out.
    """
    steps = POWER_STEPS if steps is None else steps
    fixed = matrix.detach()
    x = torch.ones_like(fixed[..., 0, :])
    for _ in range(steps):
        x = _positive(_product(fixed.mT, _product(fixed, x)))
    return x


def _product(
    matrix: Float[Tensor, "*stack m n"], x: Float[Tensor, "*stack n"]
) -> Float[Tensor, "*stack m"]:
    """For many small matrices much faster than `matmul`."""
    return matrix @ x if matrix.ndim == 2 else (matrix * x[..., None, :]).sum(-1)


def _positive(x: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack n"]:
    """The same direction, every entry kept away from zero."""
    return x / (x.amax(-1, keepdim=True) + TINY) + 1e-9
