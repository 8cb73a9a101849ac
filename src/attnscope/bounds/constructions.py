r"""Inputs at which attention is provably not smooth: each builds its tokens and the lower bound
that holds there.

One rare token $y$ and a bulk of equal tokens $q$. Every bulk token reads y with weight $\alpha$, so
moving y alone moves them all by $\alpha V(I + (1-\alpha)(y-q)(Aq)^T)$ [castin24, Prop. 3.4].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.softmax import Softmax
from attnscope.bounds._bound import Bound
from attnscope.measures import Particles
from attnscope.norms import SLACK, spectral
from attnscope.validation import check_positive, check_shape, check_tensor, described

ASCENT_STEPS = 200


class Construction(NamedTuple):
    """An input and a lower bound on the local Lipschitz constant there."""

    mu: Particles
    bound: Bound


def two_clusters(
    attention: Attention, n: int, bulk: Float[Tensor, " d"], rare: Float[Tensor, " d"]
) -> Construction:
    r"""U2'': $\sqrt{n-1}\,\alpha\|V(I + (1-\alpha)(y-q)(Aq)^T)\|$, $\alpha = 1/(1 +
    (n-1)e^{-\langle Aq, y-q\rangle})$.
    """
    head = _Head(attention, causal=False)
    _check_count(n)
    for name, token in (("bulk", bulk), ("rare", rare)):
        check_tensor(name, token, "d")
        check_shape(name, token, (attention.heads.dim,), "one token")
    bulk, rare = head.rounded(bulk), head.rounded(rare)
    gain = math.sqrt(n - 1) * float(spectral(head.column(bulk, rare, head.share(n, bulk, rare))))
    return Construction(
        head.tokens(n, bulk, rare), _lower("U2''", gain, "castin24, Prop. 3.4 for any two clusters")
    )


def opposite(attention: Attention, n: int, radius: float) -> Construction:
    r"""U2: bulk and rare token along an eigenvector u of A; $\sqrt{n-1}\,\alpha(1 + 2\gamma
    R^2(1-\alpha))\,|Vu|$, the exact gain along u.

    $\gamma = \max(-\gamma_{min}, \gamma_{max}/8)$ over the real eigenvalues of A, $\alpha = 1/(1 +
    (n-1)e^{-2\gamma R^2})$.
    """
    head = _Head(attention, causal=False)
    _check_count(n)
    bulk, rare, u = head.along_eigenvector(radius)
    gain = math.sqrt(n - 1) * _length(head.column(bulk, rare, head.share(n, bulk, rare)) @ u)
    return Construction(head.tokens(n, bulk, rare), _lower("U2", gain, "castin24, Prop. 3.4"))


def oblique(attention: Attention, n: int, radius: float) -> Construction:
    r"""U2': bulk $Ru$, rare token $R\,Au/|Au|$, $\Delta = R^2\max_{|u|\le1}(|Au| - \langle u,
    Au\rangle)$, for every $A \ne 0$.

    $\sqrt{n-1}\,\alpha(1 + (1-\alpha)\Delta)$ when V = I. The maximum is searched by ascent: any u
    gives a valid bound.
    """
    head = _Head(attention, causal=False)
    _check_count(n)
    check_positive("radius", radius)
    u = head.most_oblique()
    moved = head.a @ u
    bulk, rare = (
        head.rounded(radius * u),
        head.rounded(radius * moved / torch.linalg.vector_norm(moved)),
    )
    gain = math.sqrt(n - 1) * float(spectral(head.column(bulk, rare, head.share(n, bulk, rare))))
    return Construction(
        head.tokens(n, bulk, rare),
        _lower("U2'", gain, "castin24, Prop. 3.4 without real eigenvalues"),
    )


def unbalanced(attention: Attention, radius: float, t: float = 1.0) -> Construction:
    r"""M2: two Diracs, the rare one of mass $1/(1 + te^{2\gamma R^2})$; $\alpha = 1/(1+t)$.

    $e^{\gamma R^2}\sqrt{t}\,\alpha(1 + 2\gamma R^2(1-\alpha))\,|Vu|$.
    """
    head = _Head(attention, causal=False)
    check_positive("t", t)
    bulk, rare, u = head.along_eigenvector(radius)
    lead = (head.a @ bulk) @ (rare - bulk)
    weights = torch.stack(
        [torch.sigmoid(-lead - math.log(t)), torch.sigmoid(lead + math.log(t))]
    ).to(head.dtype)
    if weights[0] == 0:
        raise ValueError(
            f"radius {radius:.6g} makes the mass of the rare token vanish in {head.dtype}. Use a"
            " smaller radius."
        )
    mu = Particles(torch.stack([rare, bulk]).to(head.dtype), weights)
    odds = float(weights[1].double() / weights[0].double())
    alpha = float(torch.sigmoid(lead - math.log(odds)))
    gain = math.sqrt(odds) * _length(head.column(bulk, rare, alpha) @ u)
    return Construction(mu, _lower("M2", gain, "castin24, mean-field regime"))


def rare_first(attention: Attention, n: int, radius: float) -> Construction:
    r"""K2: the tokens of U2 under a causal mask, rare token first.

    $|Vu|(1 + \sum_{i\ge2}\alpha_i^2(1 + 2\gamma R^2(1-\alpha_i))^2)^{1/2}$, $\alpha_i = 1/(1 +
    (i-1)e^{-2\gamma R^2})$.
    """
    head = _Head(attention, causal=True)
    _check_count(n)
    bulk, rare, u = head.along_eigenvector(radius)
    gains = [_length(head.v @ u)] + [
        _length(head.column(bulk, rare, head.share(i, bulk, rare)) @ u) for i in range(2, n + 1)
    ]
    return Construction(
        head.tokens(n, bulk, rare),
        _lower("K2", math.hypot(*gains), "castin24, Prop. 3.4 under a causal mask"),
    )


class _Head:
    """The two matrices of a single head without biases."""

    def __init__(self, attention: Attention, causal: bool) -> None:
        heads = attention.heads if isinstance(attention, Softmax) else None
        if heads is None or heads.count != 1 or heads.positional or heads.query_bias is not None:
            raise ValueError(
                "the constructions are for Softmax attention with one head and no query bias,"
                f" rotary embedding or position bias, got {described(attention)}. Take one head"
                " with heads.select(number)."
            )
        if attention.causal is not causal:
            raise ValueError(
                f"this construction is for causal={causal}; rare_first is the one for causal"
                " attention."
            )
        self.dtype = heads.query.dtype
        self.a, self.v = heads.to(torch.float64).a[0], heads.to(torch.float64).values[0]

    def column(self, bulk: Tensor, rare: Tensor, alpha: float) -> Float[Tensor, "d d"]:
        identity = torch.eye(len(bulk), dtype=bulk.dtype, device=bulk.device)
        return alpha * self.v @ (identity + (1 - alpha) * torch.outer(rare - bulk, self.a @ bulk))

    def share(self, n: int, bulk: Tensor, rare: Tensor) -> float:
        """How much a bulk token reads the rare one among n."""
        lead = (self.a @ bulk) @ (rare - bulk)
        return float(torch.sigmoid(lead - math.log(n - 1)))

    def tokens(self, n: int, bulk: Tensor, rare: Tensor) -> Particles:
        return Particles(torch.cat([rare[None], bulk.expand(n - 1, -1)]).to(self.dtype))

    def along_eigenvector(self, radius: float) -> tuple[Tensor, Tensor, Tensor]:
        check_positive("radius", radius)
        values, vectors = torch.linalg.eig(self.a)
        real = values.imag.abs() <= 1e-10 * values.abs().max()
        if not real.any():
            raise ValueError(
                "A has no real eigenvalue, which this construction needs. Use oblique(attention, n,"
                " radius)."
            )
        values, vectors = values.real[real], vectors.real[:, real]
        low, high = int(values.argmin()), int(values.argmax())
        u = vectors[:, low if -values[low] >= values[high] / 8 else high]
        u = u / torch.linalg.vector_norm(u)
        bulk, rare = (
            (radius * u, -radius * u)
            if -values[low] >= values[high] / 8
            else (radius * u / 2, radius * u)
        )
        return self.rounded(bulk), self.rounded(rare), u

    def rounded(self, token: Tensor) -> Float[Tensor, " d"]:
        """The token that the input really holds, in float64."""
        return token.to(self.a.device, self.dtype).to(torch.float64)

    def most_oblique(self) -> Float[Tensor, " d"]:
        r"""Projected ascent of $|Au| - \langle u, Au\rangle$ over the unit ball from singular and
        eigen directions.
        """
        if not self.a.any():
            raise ValueError(
                "A is zero: every token reads all others alike, and no two clusters stretch more"
                " than V does."
            )
        a = self.a / self.a.abs().max()  # directions do not depend on its size
        symmetric = (a + a.mT) / 2
        starts = torch.cat([torch.linalg.svd(a).Vh, torch.linalg.eigh(symmetric).eigenvectors.mT])
        u = torch.cat([starts, 0.5 * starts])
        step = 0.5 / float(torch.linalg.matrix_norm(a, 2))
        for _ in range(ASCENT_STEPS):
            moved = u @ a.mT
            slope = (
                moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True).clamp(min=1e-300) @ a
                - 2 * u @ symmetric
            )
            u = u + step * slope
            u = u / torch.linalg.vector_norm(u, dim=-1, keepdim=True).clamp(min=1)
        moved = u @ a.mT
        return u[int((torch.linalg.vector_norm(moved, dim=-1) - (u * moved).sum(-1)).argmax())]


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _check_count(n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise ValueError(f"n must be a whole number of at least 2, got {described(n)}.")


def _lower(name: str, value: float, source: str) -> Bound:
    return Bound(
        value * (1 - 10 * SLACK), "lower", "proved", name, source, "at the input built with it"
    )
