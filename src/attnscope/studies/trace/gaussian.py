r"""One attention step in closed form: what the Gaussian theory says of a layer's own heads.

Tokens $x$ and what the attention reads of them, $s$ ($x$ itself, or its norm), are taken as jointly
Gaussian. On $N(m, S)$, the law of $s$, softmax attention is affine, $f(s) = Bs + b$ [castin25], so
that $r = x + f(s)$ has mean $m_x + Bm + b$ and covariance $S_x + CB^T + BC^T + BSB^T$, $C$ the
covariance of $x$ with $s$. Where the attention reads the stream itself this is $(I + B)S(I + B)^T$.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention.softmax import Softmax
from attnscope.measures import Gaussian, Particles


class Moments(NamedTuple):
    """The first two moments of tokens and of what is read of them."""

    mean: Float[Tensor, " d"]
    cov: Float[Tensor, "d d"]
    read_mean: Float[Tensor, " d"]
    read_cov: Float[Tensor, "d d"]
    cross: Float[Tensor, "d d"]


class Predicted(NamedTuple):
    """The law after the step, and the affine field that makes it."""

    mean: Float[Tensor, " d"]
    cov: Float[Tensor, "d d"]
    matrix: Float[Tensor, "d d"]
    offset: Float[Tensor, " d"]


def moments(x: Particles, read: Float[Tensor, "n d"]) -> Moments:
    """Of weighted tokens."""
    seen = x.at(read)
    centred, read_centred = x.x - x.mean(), read - seen.mean()
    cross = torch.einsum("n,nd,ne->de", x.weights, centred, read_centred)
    return Moments(x.mean(), x.cov(), seen.mean(), seen.cov(), cross)


def predicted(attention: Softmax, known: Moments) -> Predicted:
    """The law of $x + f(s)$. A mask is left out: the theory knows causal attention only where every
    position has the same law, and then it is the unmasked one.
    """
    field = Softmax(attention.heads, causal=False).affine(Gaussian(known.read_mean, known.read_cov))
    matrix, turned = field.matrix, known.cross @ field.matrix.mT
    cov = known.cov + turned + turned.mT + matrix @ known.read_cov @ matrix.mT
    mean = known.mean + matrix @ known.read_mean + field.offset
    return Predicted(mean, cov, matrix, field.offset)


def uniform_motion(attention: Softmax, known: Moments) -> Float[Tensor, " d"]:
    """Where every token goes when all are read alike: the same field with A = 0."""
    values = attention.heads.values @ known.read_mean[:, None]
    return values[..., 0].sum(0) + attention.heads.constant
