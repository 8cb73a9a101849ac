r"""Bounds at a point: how much attention stretches small moves of these tokens, from the coupling
that they really have.

$c = \max_j w_j^{-1}\sum_i w_iP_{ij}$ is the largest column sum of the coupling in $L^2(\mu)$.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.bounds.at import At
from attnscope.bounds.registry import theorem
from attnscope.bounds.smooth.blocks import served


@theorem(
    "U1''",
    variant=(Softmax, L2),
    where=At,
    source="after castin24, Thm 3.3",
    positional=True,
    when=lambda attention, at: served(attention),
)
def u1_second(attention: Attention, at: At) -> Float[Tensor, " h"]:
    r"""$\sqrt c\,(1 + \max_{ij}\|\mathrm{Cov}_i\|^{1/2}|\kappa_{ij}|) + \max_i\|C_i\|$."""
    spread = at.covariances[..., None].sqrt()
    key = (spread * at.key_slopes).flatten(1).amax(-1)
    return at.column_sums().sqrt() * (1 + key) + at.query_paths.amax(-1)


@theorem(
    "U1''-columns",
    variant=(Softmax, L2),
    where=At,
    source="after castin24, Thm 3.3",
    positional=True,
    when=lambda attention, at: served(attention),
)
def u1_columns(attention: Attention, at: At) -> Float[Tensor, " h"]:
    r"""$\sqrt c + (\max_j w_j^{-1}\sum_i w_iP_{ij}\|\mathrm{Cov}_i\||\kappa_{ij}|^2)^{1/2} +
    \max_i\|C_i\|$.
    """
    key = at.column_sums(at.covariances[..., None] * at.key_slopes**2)
    return at.column_sums().sqrt() + key.sqrt() + at.query_paths.amax(-1)
