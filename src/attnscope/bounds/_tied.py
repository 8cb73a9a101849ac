r"""L2 attention with tied queries and keys, values read through the same projection: Lipschitz on
the whole space for each n [kim21].

With $z = Qx$, $V = UQ$, logits $-\beta|z_i - z_j|^2$: $\mathrm{Lip} \le \|U\|\|Q\|\Lambda_n$,
$\Lambda_n = (2n)^{1/4} + 2\sqrt{c_n\tau_n} + 2c_n$, $c_n = W_0((n-1)/e)$.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from scipy.special import lambertw
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.l2 import L2
from attnscope.bounds._bound import Bound
from attnscope.bounds._layer import LayerNorms, combined
from attnscope.norms import SLACK, spectral, spectral_of_product

FACTORS = 1e-12
"""How far $V - UQ$ may be from 0, relative to V, to count as rounding."""


def tied_bounds(attention: L2, n: int, crowd: float) -> list[Bound]:
    """The global bound, where queries and keys are tied, values factor and tokens weigh the
    same.
    """
    if not is_tied(attention.heads) or crowd > n * (1 + 1e-9) or reads(attention.heads) is None:
        return []
    value = tied_combine(
        attention.heads,
        torch.full((attention.heads.count,), growth(n, attention.causal), dtype=torch.float64),
    )
    return [
        Bound(
            value,
            "upper",
            "proved",
            "L2-global",
            "after kim21",
            f"{n} tokens of equal weight anywhere in space",
        )
    ]


def is_tied(heads: Heads) -> bool:
    """Whether $Q_hx + b_Q = K_hx + b_K$ for every x."""
    biases = (heads.query_bias, heads.key_bias)
    zero = torch.zeros_like(heads.query[..., 0])
    query_bias, key_bias = (zero if bias is None else bias for bias in biases)
    return torch.equal(heads.query, heads.key) and torch.equal(query_bias, key_bias)


def reads(heads: Heads) -> Float[Tensor, "h v k"] | None:
    r"""$U_h = V_hQ_h^+$ when $V_h = U_hQ_h$ for every head, None otherwise."""
    u = heads.value @ torch.linalg.pinv(heads.query)
    off = torch.linalg.matrix_norm(heads.value - u @ heads.query)
    return (
        u
        if bool((off <= FACTORS * torch.linalg.matrix_norm(heads.value) * heads.dim).all())
        else None
    )


def tied_combine(heads: Heads, single: Float[Tensor, " h"]) -> float:
    r"""$\min(\sum_h \|W_hU_h\|\|Q_h\|\lambda_h,
    \|W_O\|(\sum_h\|U_h\|^2\|Q_h\|^2\lambda_h^2)^{1/2})$.
    """
    u = reads(heads)
    assert u is not None
    through = spectral(heads.query) * single.to(heads.query.device)
    written = spectral(u) if heads.output is None else spectral_of_product(heads.output, u)
    return combined(written * through, spectral(u) * through, LayerNorms.of(heads, 1).output)


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


def _row_bound(n: int) -> float:
    return float(lambertw((n - 1) / math.e).real)
