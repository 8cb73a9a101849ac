r"""What the local constant tends to when the tokens are scaled up: a limit, not a bound at any
finite radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.softmax import Softmax
from attnscope.bounds.queries import check_measure
from attnscope.measures import Particles
from attnscope.norms import spectral


@final
@dataclass(frozen=True)
class Limit:
    r"""`value` $= \lim_{R\to\infty}\|D_{RX}f\|$. `gap` is the smallest lead $g$ of a best score:
    the error decays like $R^2e^{-gR^2}$.
    """

    value: float
    gap: float
    most_read: int
    """The token that the most mass reads, relative to its own."""

    def __str__(self) -> str:
        return (
            f"limit for large radius: {self.value:.6g} (a limit, no bound at this radius; error of"
            f" order R^2 exp(-{self.gap:.3g} R^2))"
        )


def large_radius_limit(attention: Attention, mu: Particles) -> Limit:
    r"""$\|V\|\,(\max_j w_j^{-1}\sum_{i: j^*(i) = j}w_i)^{1/2}$, $j^*(i) = \arg\max_j\langle Ax_i,
    x_j\rangle$, of a single head [castin24].

    For equal weights the root is of the number of tokens that read the most popular one. The mask
    of causal attention is kept.
    """
    if not isinstance(attention, Softmax) or attention.heads.count != 1:
        raise ValueError(
            "the large-radius limit is a statement about Softmax attention with one head. Take one"
            " with heads.select(number)."
        )
    check_measure(attention, mu)
    attention, mu = attention.to(torch.float64), mu.to(torch.float64)
    scores = _leading_scores(attention, mu)
    best = scores.topk(min(2, mu.n), dim=-1)
    rows = mu.weights > 0
    lead = (
        best.values[rows, 0] - best.values[rows, -1]
        if mu.n > 1
        else torch.full_like(mu.weights[rows], float("inf"))
    )
    rounding = 1e-12 * float(scores[torch.isfinite(scores)].abs().max())
    if float(lead.min()) <= rounding:
        token = int(torch.nonzero(rows)[int(lead.argmin())])
        raise ValueError(
            f"token {token} has no unique best key (a tie to {float(lead.min()):.1e}): the limit"
            " has no closed form there."
        )
    read = torch.zeros_like(mu.weights).index_add_(0, best.indices[rows, 0], mu.weights[rows])
    popularity = torch.where(rows, read / mu.weights, 0.0)
    value = float(spectral(attention.heads.values[0])) * float(popularity.max()) ** 0.5
    return Limit(value, float(lead.min()), int(popularity.argmax()))


def _leading_scores(attention: Softmax, mu: Particles) -> Float[Tensor, "n n"]:
    r"""scale $\langle Q x_i, K x_j\rangle$ with rotary embedding: biases grow more slowly than this
    when tokens are scaled up.
    """
    heads = attention.heads
    numbers = torch.arange(mu.n, device=mu.x.device) if heads.rotary is not None else None
    q, k = (torch.einsum("nd,hkd->hnk", mu.x, matrix) for matrix in (heads.query, heads.key))
    if numbers is not None:
        q, k = heads.turn(q, numbers), heads.turn(k, numbers)
    scores = (heads.scale * q @ k.mT)[0]
    if not scores.isfinite().all():
        raise ValueError(
            "the scores of these tokens overflow float64. The limit is that of their directions:"
            " scale the tokens down."
        )
    visible = attention.visible(mu.x, mu)
    hidden = (
        (mu.weights == 0)[None, :] if visible is None else (mu.weights == 0)[None, :] | ~visible[0]
    )
    return scores.masked_fill(hidden, float("-inf"))
