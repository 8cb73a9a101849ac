r"""Softmax attention beyond second order, where the input is known to first order.

Tokens move by $\Delta = J\delta + E$, $|\delta| \le \varepsilon$, $|E_i| \le \eta_i$. Row i of the
coupling is $p' = pe^t/Z$, $Z = \sum pe^t$, with scores centred so that $\sum_jp_{ij}t_{ij} = 0$.
All is worked out entry by entry from the Jacobians of queries, keys, values and scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds.near._checks import NoBound
from attnscope.bounds.registry import theorem, theorems
from attnscope.measures import Particles
from attnscope.norms import SLACK, largest_eigenvalue, spectral


@final
@dataclass(frozen=True, eq=False)
class Followed:
    r"""What is left beyond second order: `tokens` is at least $|T_i|$, `third(g)` at least
    $|\langle g, T\rangle|$ for each direction.
    """

    tokens: Float[Tensor, " n"]
    third: Callable[[Tensor], Tensor]


@final
class _Scores:
    """How scores and coupling move, row by row."""

    def __init__(
        self,
        heads: Heads,
        p: Float[Tensor, "h n n"],
        x: Float[Tensor, "n d"],
        jacobian: Float[Tensor, "p n d"],
        eps: float,
        rest: Float[Tensor, " n"],
    ) -> None:
        self.p, self.rest, s = p, rest, heads.scale
        q, k = heads.queries(x[None])[0], heads.keys(x[None])[0]
        jq, jk = (
            torch.einsum("pnd,hkd->hnkp", jacobian, part) for part in (heads.query, heads.key)
        )
        mean = p @ k
        pull_q = _lengths(
            torch.einsum("hijk,hkd->hijd", k[:, None] - mean[:, :, None], heads.query)
        )
        pull_k = torch.linalg.vector_norm(q @ heads.key, dim=-1)[..., None]
        slope = torch.einsum("hikp,hjk->hijp", jq, k) + torch.einsum("hik,hjkp->hijp", q, jk)
        slope = s * (slope - torch.einsum("hij,hijp->hip", p, slope)[:, :, None])
        self.first = _lengths(slope) * eps
        a_q = _norms(jq) * eps
        e_q, e_k = (spectral(part)[:, None] * rest for part in (heads.query, heads.key))
        apart = jk[:, None] - torch.einsum("hij,hjkp->hikp", p, jk)[:, :, None]
        a_around, e_around = _norms(apart) * eps, e_k[:, None, :] + p @ e_k[..., None]
        mixed = rest + (p @ rest)[..., None]
        linear = s * (pull_q * rest[:, None] + pull_k * mixed)
        bent = s * (a_q + e_q)[..., None] * (a_around + e_around)
        self.slip = s * (a_q[..., None] * e_around + e_q[..., None] * (a_around + e_around))
        self.second = linear + bent
        self.reach = self.first + self.second
        self.coupling()

    def beyond(self, away: Tensor, slope: Tensor, lost: Tensor) -> Float[Tensor, "h n n"]:
        r"""$p\{a(r_3 + s + h + \sum_kp_kh_k) + (r_2 + E)(\sigma + l) + \tau l\}$ entry by entry:
        $a$ how far a value is from the mean of its row, $\sigma$ how far it moves to first order,
        $l$ how far beside it.
        """
        p, first, second = self.p, self.first, self.second
        half = second * (2 * first + second) / 2
        curved = self.three + self.slip + half + (p * half).sum(-1, keepdim=True)
        return p * (away * curved + (self.two + second) * (slope + lost) + first * lost)

    def coupling(self) -> None:
        r"""$|p'/p - 1 - t|$ and $|p'/p - 1 - t - \frac12t^2 + \frac12\sum pt^2|$."""
        t, p = self.reach, self.p
        grown = t.exp()
        z = (p * t.square() * grown).sum(-1, keepdim=True) / 2
        self.two = grown * (t.square() / 2 + z)
        cube = t**3 * grown / 6
        self.three = cube + (p * cube).sum(-1, keepdim=True) + z * (grown - 1) + z**2 * grown


@final
@dataclass(frozen=True, eq=False)
class NearTangent:
    r"""One input in float64 that moves by $\Delta = J\delta + E$, $|\delta| \le \varepsilon$,
    $|E_i| \le \eta_i$. Theorems here return a `Followed`.
    """

    attention: Attention
    x: Float[Tensor, "n d"]
    jacobian: Float[Tensor, "p n d"]
    eps: float
    rest: Float[Tensor, " n"]


def followed(
    attention: Attention,
    x: Float[Tensor, "n d"],
    jacobian: Float[Tensor, "p n d"],
    eps: float,
    rest: Float[Tensor, " n"],
) -> Followed:
    """Attention beyond second order over an input that is known to first order (float64).

    Raises:
        NoBound: it is not softmax attention, or has a mask.
    """
    place = NearTangent(attention, x, jacobian, eps, rest)
    proved = theorems(attention, place)
    if not proved:
        raise NoBound(f"nothing is known of {attention.name} attention beyond second order.")
    found: Followed = proved[0](attention, place)
    return found


@theorem(
    "Beyond second order",
    variant=Softmax,
    where=NearTangent,
    source="ours",
    causal=False,
    positional=True,
    masses="equal",
    when=lambda attention, place: attention.heads.rotary is None,
    differentiable=False,
)
def beyond_second_order(attention: Attention, place: NearTangent) -> Followed:
    r"""$\sum_jp_{ij}\{|c_{ij}|(r_3 + s + h + \sum_lp_{il}h_{il}) + (r_2 + |E_t|)(\sigma + l) +
    |t_1|l\}$, entry by entry.
    """
    heads, x, jacobian = attention.heads, place.x, place.jacobian
    eps, rest = place.eps, place.rest
    p = attention.coupling(x[None], Particles(x[None]))[0]
    if not bool((p > 0).all()):  # a weight that underflows may come back within the ball
        nothing = torch.full_like(rest, torch.inf)
        return Followed(nothing, lambda g: nothing.new_full((len(g),), torch.inf))
    moved = _Scores(heads, p, x, jacobian, eps, rest)
    c = heads.values
    jv = torch.einsum("pnd,hed->hnep", jacobian, c)
    value = x @ c.mT
    away = _lengths(value[:, None] - (p @ value)[:, :, None])
    lost = (spectral(c)[:, None] * rest)[:, None, :]
    row = moved.beyond(away, (_norms(jv) * eps)[:, None, :], lost)
    tokens = row.sum((0, 2)) * (1 + SLACK) + _rounding(x, c)

    def third(gradients: Float[Tensor, "c n d"]) -> Float[Tensor, " c"]:
        return torch.stack([_beyond(moved, value, jv, c, eps, g) for g in gradients.double()])

    return Followed(tokens, third)


def _beyond(
    moved: _Scores,
    value: Float[Tensor, "h n d"],
    jv: Float[Tensor, "h n d p"],
    c: Float[Tensor, "h d d"],
    eps: float,
    g: Float[Tensor, "n d"],
) -> Float[Tensor, ""]:
    r"""The same against one direction, $c_{ij} = \langle g_i, Cx_j\rangle$ for values."""
    seen = g @ value.mT
    seen = (seen - (moved.p * seen).sum(-1, keepdim=True)).abs()
    slope = torch.linalg.vector_norm(torch.einsum("ie,hjep->hijp", g, jv), dim=-1) * eps
    lost = torch.linalg.vector_norm(g @ c, dim=-1)[..., None] * moved.rest
    noise = 1e-14 * torch.linalg.vector_norm(g, dim=-1).sum() * value.abs().amax()
    return moved.beyond(seen, slope, lost).sum() * (1 + SLACK) + noise


def _lengths(vectors: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack"]:
    return torch.linalg.vector_norm(vectors, dim=-1) * (1 + SLACK)


def _norms(jacobian: Float[Tensor, "*stack k p"]) -> Float[Tensor, "*stack"]:
    """At least the norm of each k x p matrix."""
    small = jacobian.shape[-2] <= jacobian.shape[-1]
    gram = jacobian @ jacobian.mT if small else jacobian.mT @ jacobian
    return largest_eigenvalue(gram).sqrt() * (1 + SLACK)


def _rounding(x: Float[Tensor, "n d"], c: Float[Tensor, "h d d"]) -> Float[Tensor, ""]:
    """Absolute allowance for rows of the coupling that are saturated."""
    return 1e-12 * torch.linalg.vector_norm(x, dim=-1).amax() * spectral(c).sum()
