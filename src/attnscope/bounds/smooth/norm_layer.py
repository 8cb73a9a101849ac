"""Norm layers at the tokens that they see."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.places import Normed
from attnscope.bounds.registry import theorem

ROUNDING = 1e-9
"""Allowance for tokens whose spread is the difference of large numbers."""


@theorem("norm layer", where=Normed, source="derivative of x/|x|")
def norm_layer(attention: None, place: Normed) -> Float[Tensor, ""]:
    r"""$\|J_N\| \le \max|g|\,/\min_i(|x_i|^2/d + \epsilon)^{1/2}$, $x_i$ without its mean for
    LayerNorm.
    """
    x = place.x - place.x.mean(-1, keepdim=True) if place.centred else place.x
    smallest = (x.square().mean(-1) + place.eps).sqrt().amin()
    return place.gain.abs().amax() / smallest * (1 + ROUNDING)
