r"""L2 attention with tied queries and keys, values read through the same projection: Lipschitz on
the whole space for each n [kim21].

With $z = Qx$, $V = UQ$, logits $-\beta|z_i - z_j|^2$: $\mathrm{Lip} \le \|U\|\|Q\|\Lambda_n$.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.l2 import L2
from attnscope.bounds.at import At
from attnscope.bounds.head_norms import PerHead
from attnscope.bounds.places import Anywhere
from attnscope.bounds.registry import theorem
from attnscope.norms import SLACK, TINY, largest_eigenvalue, spectral, spectral_of_product

FACTORS = 1e-12
"""How far $V - UQ$ may be from 0, relative to V and the dimension, to count as rounding."""


@theorem(
    "L2-global",
    variant=L2,
    where=Anywhere,
    source="after kim21",
    masses="equal",
    when=lambda attention, place: (
        is_tied(attention.heads)
        and (place.reads is not None or tied_reads(attention.heads) is not None)
    ),
)
def l2_global(attention: L2, place: Anywhere) -> PerHead:
    r"""$\|U\|\|Q\|\Lambda_n$, $\Lambda_n = (2n)^{1/4} + 2\sqrt{c_n\tau_n} + 2c_n$ or under a mask
    $\sqrt n + 2\sqrt{c_2c_n(n-1)} + 2c_n$; $c_n = W_0((n-1)/e)$, $\tau_n = c_2(n-1)$ or
    $\sqrt{n/2}\log(n/2)$.
    """
    reads = tied_reads(attention.heads) if place.reads is None else place.reads
    assert reads is not None
    return _through(attention.heads, reads, growth(place.n, attention.causal))


@theorem(
    "L2-local",
    variant=L2,
    where=At,
    source="after kim21",
    when=lambda attention, at: is_tied(attention.heads) and tied_reads(attention.heads) is not None,
)
def l2_local(attention: L2, at: At) -> PerHead:
    r"""$\|U\|\|Q\|(\sqrt c + 2\beta\max_i\|\mathrm{Cov}_i\|^{1/2}(\max_jw_j^{-1}\sum_iw_iP_{ij}|z_i
    - z_j|^2)^{1/2} + 2\beta\max_i\|\mathrm{Cov}_i\|)$, $\mathrm{Cov}_i$ of the $z_j = Qx_j$.
    """
    z, p, beta = at.k, at.coupling, at.heads.scale
    distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    rows = []
    for row in range(at.n):
        centred = (z - (p[:, row, None] @ z)) * (p[:, row, :, None] + TINY).sqrt()
        rows.append(largest_eigenvalue(centred.mT @ centred))
    spread = torch.stack(rows).amax(0)
    single = (
        at.column_sums().sqrt()
        + 2 * beta * (spread * at.column_sums(distance)).sqrt()
        + 2 * beta * spread
    )
    reads = tied_reads(attention.heads)
    assert reads is not None
    return _through(attention.heads, reads, single)


def is_tied(heads: Heads) -> bool:
    """Whether $Q_hx + b_Q = K_hx + b_K$ for every x."""
    biases = (heads.query_bias, heads.key_bias)
    zero = torch.zeros_like(heads.query[..., 0])
    query_bias, key_bias = (zero if bias is None else bias for bias in biases)
    return torch.equal(heads.query, heads.key) and torch.equal(query_bias, key_bias)


def tied_reads(heads: Heads) -> Float[Tensor, "h v k"] | None:
    r"""$U_h = V_hQ_h^+$ in float64 when queries and keys are tied, without positions, and $V_h =
    U_hQ_h$ up to rounding for every head; None otherwise.
    """
    if heads.positional or not is_tied(heads):
        return None
    value, query = heads.value.to(torch.float64), heads.query.to(torch.float64)
    u = value @ torch.linalg.pinv(query)
    with torch.no_grad():
        off, size = torch.linalg.matrix_norm(value - u @ query), torch.linalg.matrix_norm(value)
        rounding = max(FACTORS, 64 * torch.finfo(heads.query.dtype).eps) * heads.dim
        return u if bool((off <= rounding * size).all()) else None


def growth(n: int, causal: bool) -> float:
    r"""$\Lambda_n$, or its causal form $\sqrt n + 2\sqrt{c_2c_n(n-1)} + 2c_n$."""
    if n == 1:
        return 1.0
    c, c2 = _row_bound(n), _row_bound(2)
    if causal:
        return (math.sqrt(n) + 2 * math.sqrt(c2 * c * (n - 1)) + 2 * c) * (1 + SLACK)
    tau = c2 * (n - 1)
    if n >= 15:
        tau = min(tau, math.sqrt(n / 2) * math.log(n / 2))
    return ((2 * n) ** 0.25 + 2 * math.sqrt(c * tau) + 2 * c) * (1 + SLACK)


def _through(
    heads: Heads, reads: Float[Tensor, "h v k"], single: Float[Tensor, " h"] | float
) -> PerHead:
    r"""$\|W_hU_h\|\|Q_h\|\lambda_h$ and $\|U_h\|\|Q_h\|\lambda_h$."""
    through, read = spectral(heads.query) * single, spectral(reads)
    written = read if heads.output is None else spectral_of_product(heads.output, reads)
    return PerHead(written * through, read * through)


def _row_bound(n: int) -> float:
    from scipy.special import lambertw  # half a second, for a theorem that few ask

    return float(lambertw((n - 1) / math.e).real)
