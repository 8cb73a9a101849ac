r"""Bounds at a point: how much attention stretches small moves of these tokens, from the coupling
that they really have.

Per head, value matrix I, with $c = \max_j w_j^{-1}\sum_i w_iP_{ij}$, the largest column sum of the
coupling in $L^2(\mu)$:

- U1'': $\sqrt c\,(1 + \max_{ij}\|\mathrm{Cov}_i\|^{1/2}|\kappa_{ij}|) + \max_i\|C_i\|$;
- U1''-columns: $\sqrt c + (\max_j w_j^{-1}\sum_i w_iP_{ij}\|\mathrm{Cov}_i\||\kappa_{ij}|^2)^{1/2}
  + \max_i\|C_i\|$, never larger.
"""

from __future__ import annotations

import torch

from attnscope.attention._normalised import Normalised
from attnscope.attention.l2 import L2
from attnscope.bounds._bound import Bound
from attnscope.bounds._layer import LayerNorms
from attnscope.bounds._point import Reading
from attnscope.bounds._tied import is_tied, reads, tied_combine
from attnscope.norms import largest_eigenvalue


def point_bounds(attention: Normalised, reading: Reading) -> list[Bound]:
    """U1'' and its form by columns; the local form of tied L2 attention."""
    layer = LayerNorms.of(reading.heads, 1)
    kappa = reading.kappa_norms()
    spread = reading.covariance_norms(kappa.amax(-1))[..., None]
    query, c = reading.query_norms().amax(-1), reading.column_sums()
    joint = c.sqrt() * (1 + (spread.sqrt() * kappa).flatten(1).amax(-1)) + query
    columns = c.sqrt() + reading.column_sums(spread * kappa**2).sqrt() + query
    masked = ", causal mask (K1)" if attention.causal else ""
    found = [
        reading.bound(layer.combine(joint), "U1''", f"after castin24, Thm 3.3{masked}"),
        reading.bound(layer.combine(columns), "U1''-columns", f"after castin24, Thm 3.3{masked}"),
    ]
    if isinstance(attention, L2) and is_tied(reading.heads) and reads(reading.heads) is not None:
        found.append(_tied_local(reading))
    return found


def _tied_local(reading: Reading) -> Bound:
    r"""$\sqrt c + 2\beta\max_i\|\mathrm{Cov}_i\|^{1/2}(\max_j\sum_iP_{ij}|z_i - z_j|^2)^{1/2} +
    2\beta\max_i\|\mathrm{Cov}_i\|$.
    """
    z, p, beta = reading.k, reading.coupling, reading.heads.scale
    distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    spread = torch.zeros_like(p[:, 0, 0])
    for row in range(reading.n):
        centred = (z - (p[:, row, None] @ z)) * p[:, row, :, None].sqrt()
        spread = torch.maximum(spread, largest_eigenvalue(centred.mT @ centred))
    single = (
        reading.column_sums().sqrt()
        + 2 * beta * (spread * reading.column_sums(distance)).sqrt()
        + 2 * beta * spread
    )
    return reading.bound(tied_combine(reading.heads, single), "L2-local", "after kim21")
