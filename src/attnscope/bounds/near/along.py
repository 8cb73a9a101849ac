r"""Softmax attention beyond second order, where the input is known to first order.

Tokens move by $\Delta = J\delta + E$, $|\delta| \le \varepsilon$, $|E_i| \le \eta_i$. Row i of the
coupling is $p' = pe^t/Z$, $Z = \sum pe^t$, with scores centred so that $\sum_jp_{ij}t_{ij} = 0$,
and $t = \langle a, \delta\rangle + r$, $|r| \le S$. What is left is bounded by quadratic forms of
$\delta$, so that one perturbation pays for all rows together.
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
from attnscope.norms import SLACK, TINY, largest_eigenvalue, spectral

FAR = 50.0
"""Scores that move farther are not followed."""
SPLIT = 2.0
"""How a square $(\\langle a, \\delta\\rangle + r)^2$ is split: $\\theta$ over the least one."""
AT_ONCE = 2**22
"""Entries of one array over directions held at once."""

Forms = tuple[Float[Tensor, "c p p"], Float[Tensor, " c"]]
r"""F and k with $-\langle g, T\rangle \le \delta^TF\delta + k$ for each direction g."""
Beside = Callable[[Float[Tensor, "m d"]], Float[Tensor, "n m"]]
r"""From rows $w_k$ to at least $|\langle w_k, E_i\rangle|$."""


@final
@dataclass(frozen=True, eq=False)
class Followed:
    r"""What is left beyond second order: `tokens` is at least $|T_i|$, `third(g)` at least
    $|\langle g, T\rangle|$ for each direction, from row to row at its worst; `forms(g)` has it as
    forms of $\delta$, for few directions.
    """

    tokens: Float[Tensor, " n"]
    third: Callable[[Tensor], Tensor]
    forms: Callable[[Tensor], Forms]


def split(
    first: Float[Tensor, "*shape"], spare: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    r"""f and k with $(s + r)^2 \le fs^2 + k$ for $|r| \le$ `spare`: $f = 1 + \theta$, $k = (1 +
    1/\theta)r^2$; with $\theta = |r|/|s|$ it is sharp where $|s|$ is largest, `first`, a larger one
    leaves more to the form.
    """
    theta = (SPLIT * spare / first.clamp(min=TINY)).clamp(1e-9, 1e9)
    return 1 + theta, (1 + 1 / theta) * spare.square()


def crossed(
    first: Float[Tensor, "*shape"], spare: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    r"""f and k with $|s||r| \le fs^2 + k$: $f = \theta/2$, $k = r^2/(2\theta)$."""
    theta = (SPLIT * spare / first.clamp(min=TINY)).clamp(1e-9, 1e9)
    return theta / 2, spare.square() / (2 * theta)


def growth(t: Float[Tensor, "*shape"]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    r"""$\psi = 2(e^t - 1 - t)/t^2$ and $\kappa = (e^t - 1 - t - \frac12t^2)/t^2$, rounded up: over
    $|t| \le \tau$ the rests of $e^t$ are at most $\frac12\psi(\tau)t^2$ and $\kappa(\tau)t^2$.
    """
    small, at = t < 1e-2, t.clamp(min=1e-2)
    two = torch.expm1(at) - at
    psi = torch.where(small, 1 + t / 3 + t.square(), 2 * two / at.square())
    kappa = torch.where(small, (t + t.square()) / 6, (two - at.square() / 2) / at.square())
    return psi * (1 + SLACK), kappa * (1 + SLACK)


@final
class _Scores:
    """How scores and coupling move, row by row."""

    def __init__(self, heads: Heads, p: Float[Tensor, "h n n"], place: NearTangent) -> None:
        self.p, self.eps, self.rest, self.scale = p, place.eps, place.rest, heads.scale
        x, jacobian, eps, rest, s = place.x, place.jacobian, place.eps, place.rest, heads.scale
        q, k = heads.queries(x[None])[0], heads.keys(x[None])[0]
        jq, self.jk = (
            torch.einsum("pnd,hkd->hnkp", jacobian, part) for part in (heads.query, heads.key)
        )
        around = k[:, None] - (p @ k)[:, :, None]
        slope = torch.einsum("hikp,hjk->hijp", jq, k) + torch.einsum("hik,hjkp->hijp", q, self.jk)
        self.a = s * (slope - torch.einsum("hij,hijp->hip", p, slope)[:, :, None])
        self.first = _lengths(self.a) * eps
        self.a_q = _norms(jq) * eps
        self.e_q, self.e_k = (_beside(part, place) for part in (heads.query, heads.key))
        apart = self.jk[:, None] - torch.einsum("hij,hjkp->hikp", p, self.jk)[:, :, None]
        a_k, e_k = _norms(apart) * eps, self.e_k[:, None, :] + p @ self.e_k[..., None]
        pull_q = _lengths(torch.einsum("hijk,hkd->hijd", around, heads.query)) * rest[:, None]
        pull_q = torch.minimum(pull_q, _lengths(around) * self.e_q[..., None])
        pull_k = _lengths(q @ heads.key)[..., None] * (rest + (p @ rest)[..., None])
        pull_k = torch.minimum(pull_k, _lengths(q)[..., None] * e_k)
        both = torch.minimum(self.a_q[..., None] * a_k, _products(jq, apart) * eps**2)
        bent = both + self.a_q[..., None] * e_k + self.e_q[..., None] * (a_k + e_k)
        self.second = s * (pull_q + pull_k + bent) * (1 + SLACK)
        self.reach = self.first + self.second
        self.far = not bool(self.reach.amax() < FAR)
        self.psi, self.kappa = growth(self.reach.clamp(max=FAR))
        self.share, self.left = split(self.first, self.second)
        self.gram = (self.a @ self.a.mT).square()
        weight = p * self.psi / 2
        self.z = self.rows(weight * self.share) + (weight * self.left).sum(-1)

    def rows(self, weight: Float[Tensor, "*c h n n"]) -> Float[Tensor, "*c h n"]:
        r"""At least $\sum_jw_j\langle a_j, \delta\rangle^2$: the Frobenius norm of the form."""
        square = (torch.einsum("...hij,hijl->...hil", weight, self.gram) * weight).sum(-1)
        return square.clamp(min=0).sqrt() * self.eps**2 * (1 + SLACK)

    def weights(self, away: Tensor, slope: Tensor, drift: Tensor) -> Float[Tensor, "*c h n n"]:
        r"""$p\{|c|(\kappa + \frac12z) + \frac12\psi(B + |\sigma|)\}$ on the squares of t."""
        beside = self.psi / 2 * (drift[..., None] + slope)
        return self.p * (away * (self.kappa + self.z[..., None] / 2) + beside)

    def alone(
        self, away: Tensor, slope: Tensor, drift: Tensor, turned: Tensor, lost: Tensor
    ) -> Float[Tensor, "*c h n"]:
        """A number for every row: each at its worst."""
        weight = self.weights(away, slope, drift)
        moved = self.second * (away * (self.first + self.second / 2) + slope)
        left = (weight * self.left + self.p * moved).sum(-1)
        return self.rows(weight * self.share) + left + self.slips(turned, away, lost)

    def slips(self, turned: Tensor, away: Tensor, lost: Tensor) -> Float[Tensor, "*c h n"]:
        r"""What E adds to $\sum p\tilde c\langle\Delta q, \Delta k\rangle$ and to values: `turned`
        is at least $|\sum_jp\tilde cJ_k\delta|$.
        """
        if not bool(self.rest.any()):
            return torch.zeros_like(turned)
        mixed = (self.p * away * self.e_k[:, None, :]).sum(-1)
        keys = self.scale * (self.a_q * mixed + self.e_q * (turned + mixed))
        grown = self.reach + self.psi * self.reach.square() / 2
        return keys + (self.p * lost * (grown + self.z[..., None] * (1 + self.reach))).sum(-1)


@final
@dataclass(frozen=True, eq=False)
class NearTangent:
    r"""One input in float64 that moves by $\Delta = J\delta + E$, $|\delta| \le \varepsilon$,
    $|E_i| \le \eta_i$; `beside` says how far E takes the entries of a linear map of the tokens.
    Theorems here return a `Followed`.
    """

    attention: Attention
    x: Float[Tensor, "n d"]
    jacobian: Float[Tensor, "p n d"]
    eps: float
    rest: Float[Tensor, " n"]
    beside: Beside | None = None


def followed(
    attention: Attention,
    x: Float[Tensor, "n d"],
    jacobian: Float[Tensor, "p n d"],
    eps: float,
    rest: Float[Tensor, " n"],
    beside: Beside | None = None,
) -> Followed:
    """Attention beyond second order over an input that is known to first order (float64).

    Raises:
        NoBound: it is not softmax attention, or has a mask.
    """
    place = NearTangent(attention, x, jacobian, eps, rest, beside)
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
    r"""$\sum_jp_{ij}\{|c|(\kappa + \frac12z) + \frac12\psi(B + |\sigma|)\}t^2 + \sum_jp_{ij}S|ct +
    \sigma|$ and smaller terms, as forms of $\delta$ or row by row.
    """
    heads, x = attention.heads, place.x
    p = attention.coupling(x[None], Particles(x[None]))[0]
    if not bool((p > 0).all()):  # a weight that underflows may come back within the ball
        return _nothing(place)
    moved = _Scores(heads, p, place)
    return _nothing(place) if moved.far else _Beyond(moved, heads, place).followed()


def _nothing(place: NearTangent) -> Followed:
    infinite, pixels = torch.full_like(place.rest, torch.inf), len(place.jacobian)
    return Followed(
        infinite,
        lambda g: infinite.new_full((len(g),), torch.inf),
        lambda g: (
            infinite.new_zeros(len(g), pixels, pixels),
            infinite.new_full((len(g),), torch.inf),
        ),
    )


@final
class _Beyond:
    """Scores and values of one input together."""

    def __init__(self, moved: _Scores, heads: Heads, place: NearTangent) -> None:
        self.moved, self.c, self.eps, self.jacobian = moved, heads.values, place.eps, place.jacobian
        p, x, eps = moved.p, place.x, place.eps
        self.value = x @ self.c.mT
        self.noise = torch.linalg.vector_norm(x, dim=-1).amax()
        rows = self.jacobian.movedim(0, -1)
        if p.numel() * rows[0].numel() > AT_ONCE:  # too many to be centred, row by row
            plain = _norms(rows)
            self.spread = (plain + (p @ plain)[..., None]) * eps
        else:
            around = rows - torch.einsum("hij,jdp->hidp", p, rows)[:, :, None]
            self.spread = _norms(around) * eps
        self.keys = _norms(moved.jk) * eps

    def followed(self) -> Followed:
        return Followed(self.tokens(), self.third, self.forms)

    def tokens(self) -> Float[Tensor, " n"]:
        moved, p, c = self.moved, self.moved.p, self.c
        around = self.value[:, None] - (p @ self.value)[:, :, None]
        away, size = _lengths(around), spectral(c)[:, None]
        slope = size[..., None] * self.spread
        drift = torch.einsum("hij,hije,hijp->hiep", p, around, moved.a)
        turned = (p * away * self.keys[:, None]).sum(-1)
        lost = (size * moved.rest)[:, None]
        drift = _norms(drift) * self.eps + self._turn(away, slope)
        left = moved.alone(away, slope, drift, turned, lost)
        return left.sum(0) * (1 + SLACK) + 1e-12 * self.noise * spectral(c).sum()

    def _turn(self, away: Tensor, slope: Tensor) -> Float[Tensor, "*c h n"]:
        r"""What $\sum p\tilde cr$ and $\sum pt\sigma$ add to the drift."""
        moved = self.moved
        return (moved.p * (away * moved.second + moved.reach * slope)).sum(-1)

    def third(self, gradients: Float[Tensor, "c n d"]) -> Float[Tensor, " c"]:
        size = max(1, AT_ONCE // self.moved.a[..., 0, :].numel())
        return torch.cat([self._third(g) for g in gradients.double().split(size)])

    def _seen(self, g: Float[Tensor, "c n d"]) -> tuple[Tensor, Tensor, Tensor]:
        r"""$\tilde c$, $C^Tg$ and how far E takes a value."""
        seen = torch.einsum("cie,hje->chij", g, self.value)
        seen = seen - (self.moved.p * seen).sum(-1, keepdim=True)
        through = torch.einsum("cie,hed->chid", g, self.c)
        return seen, through, _lengths(through)[..., None] * self.moved.rest

    def _third(self, g: Float[Tensor, "c n d"]) -> Float[Tensor, " c"]:
        moved = self.moved
        seen, through, lost = self._seen(g)
        away, slope = seen.abs(), _lengths(through)[..., None] * self.spread
        drift = torch.einsum("chij,hijp->chip", moved.p * seen, moved.a)
        drift = _lengths(drift) * self.eps + self._turn(away, slope)
        turned = (moved.p * away * self.keys[:, None]).sum(-1)
        left = moved.alone(away, slope, drift, turned, lost).sum((-2, -1))
        return left * (1 + SLACK) + self._rounding(g)

    def forms(self, gradients: Float[Tensor, "c n d"]) -> Forms:
        found = [self._form(g[None]) for g in gradients.double()]
        return torch.stack([form for form, _ in found]), torch.cat([left for _, left in found])

    def _form(self, g: Float[Tensor, "1 n d"]) -> tuple[Float[Tensor, "p p"], Float[Tensor, " 1"]]:
        moved, p, eps = self.moved, self.moved.p, self.eps
        (seen,), (through,), (lost,) = self._seen(g)
        sigma = torch.einsum("hid,pjd->hijp", through, self.jacobian)
        sigma = sigma - torch.einsum("hij,hijp->hip", p, sigma)[:, :, None]
        away, slope = seen.abs(), _lengths(sigma) * eps
        turn = (p[..., None] * moved.a).mT @ sigma
        turn = torch.linalg.eigvalsh(turn + turn.mT).abs().amax(-1) / 2 * eps**2 * (1 + SLACK)
        turn = turn + (p * moved.second * slope).sum(-1)
        drift = _lengths(torch.einsum("hij,hijp->hip", p * seen, moved.a)) * eps
        drift = drift + (p * away * moved.second).sum(-1) + turn
        weight = moved.weights(away, slope, drift)
        both = seen[..., None] * moved.a + sigma
        share, left = crossed(_lengths(both) * eps, moved.second)
        form = _outer(weight * moved.share, moved.a) + _outer(p * share, both)
        turned = _norms(torch.einsum("hij,hjkp->hikp", p * seen, moved.jk)) * eps
        rest = weight * moved.left + p * (left + away * moved.second.square() / 2)
        total = rest.sum() + moved.slips(turned, away, lost).sum()
        return form * (1 + SLACK), total * (1 + SLACK) + self._rounding(g)

    def _rounding(self, g: Float[Tensor, "c n d"]) -> Float[Tensor, " c"]:
        return 1e-14 * torch.linalg.vector_norm(g, dim=-1).sum(-1) * self.value.abs().amax()


def _outer(
    weight: Float[Tensor, "h n n"], vectors: Float[Tensor, "h n n p"]
) -> Float[Tensor, "p p"]:
    flat = vectors.flatten(0, 2)
    return (weight.flatten()[:, None] * flat).mT @ flat


def _beside(weight: Float[Tensor, "h k d"], place: NearTangent) -> Float[Tensor, "h n"]:
    """How far E takes each query, or key."""
    plain = spectral(weight)[:, None] * place.rest
    if place.beside is None:
        return plain
    parts = place.beside(weight.flatten(0, 1)).mT.reshape(*weight.shape[:2], -1)
    return torch.minimum(plain, torch.linalg.vector_norm(parts, dim=1) * (1 + SLACK))


def _products(
    one: Float[Tensor, "h n k p"], other: Float[Tensor, "h n n k p"]
) -> Float[Tensor, "h n n"]:
    r"""At least $|\langle Q\delta, K\delta\rangle|$ over $|\delta| \le 1$: it is $\frac14(|(Q/c +
    cK)\delta|^2 - |(Q/c - cK)\delta|^2)$ for every c.
    """
    sizes = torch.linalg.matrix_norm(one)[..., None], torch.linalg.matrix_norm(other)
    c = (sizes[0] / sizes[1].clamp(min=TINY)).clamp(1e-6, 1e6).sqrt()[..., None, None]
    query, key = one[:, :, None] / c, other * c
    return torch.maximum(_norms(query + key), _norms(query - key)).square() / 4


def _lengths(vectors: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack"]:
    return torch.linalg.vector_norm(vectors, dim=-1) * (1 + SLACK)


def _norms(jacobian: Float[Tensor, "*stack k p"]) -> Float[Tensor, "*stack"]:
    """At least the norm of each k x p matrix."""
    small = jacobian.shape[-2] <= jacobian.shape[-1]
    gram = jacobian @ jacobian.mT if small else jacobian.mT @ jacobian
    return largest_eigenvalue(gram).sqrt() * (1 + SLACK)
