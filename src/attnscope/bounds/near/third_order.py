r"""Softmax attention to second order exactly, and its third derivative over a ball: T4.

With $k_i$ the joint cumulants under row i of the coupling, $\dot s$ and $\ddot s$ the first and
second derivative of its scores,

$$ D^3F[U, U, U]_i = C\{3k_i(u, \ddot s) + 3k_i(u, \dot s, \dot s) + 3k_i(x, \ddot s, \dot s) +
   k_i(x, \dot s, \dot s, \dot s)\}. $$

Each part but the first has the deviation $\zeta_i$ of $\dot s$ as a factor, and
$\sum_i\zeta_i^2$ is a quadratic form in U. So are the squares of the first two orders, and no
single movement is the worst for all of these forms: their sum is bounded at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.softmax import Softmax
from attnscope.bounds.near._ball import ROUNDING, Ball
from attnscope.bounds.near._direct import jacobians
from attnscope.bounds.near._scores import ScoresAt
from attnscope.bounds.near._sums import others
from attnscope.bounds.near.place import Around, Near, at_input, kept, without_rotary
from attnscope.bounds.near.softmax import ball, movements, reading, score_norms
from attnscope.bounds.registry import theorem
from attnscope.norms import SLACK, TINY, largest_eigenvalue

SHARES = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Radii, in units of eps, of the balls behind the third derivative."""
MOST = 256
"""Largest number of coordinates of a movement for which second derivatives are held."""
ENTRIES = 2**24
"""Entries of the second derivative of one input held at once."""
USUAL = (1e-30, 1e30)
"""Sizes of eps that squares of products survive."""
SPLITS = 3
"""Splittings of the sum tried: each gives a bound, the smallest counts."""


def few_coordinates(attention: Attention, near: Around) -> bool:
    """Whether second derivatives can be held; there are none where no score depends on content."""
    n, d = near.x.shape[-2:]
    if not bool(attention.heads.key.any()):
        return False
    moved = n * (d if near.span is None else near.span.shape[-1])
    return without_rotary(attention, near) and moved <= MOST and n * d * moved**2 <= ENTRIES


@theorem(
    "T4",
    variant=Softmax,
    where=Near,
    source="ours",
    positional=True,
    masses="equal",
    when=few_coordinates,
    assumes="few tokens, or tokens that move in few directions",
    differentiable=False,
)
def t4(attention: Attention, near: Near) -> Float[Tensor, " b"]:
    r"""$\sup_{|U|_F \le 1}\varepsilon|DF(X)U| + \frac12\varepsilon^2|D^2F(X)[U, \cdot]|_F +
    \varepsilon^3\sum_kW_k\{\sum_h(\sum_i\hat G_i^2\zeta_i(U)^2)^{1/2} + (\sum_i|u_i|^2(6\|A\|\|C\|
    \sum_hW_i^2)^2)^{1/2}\}$, $\hat G_i = 3\|C\|\min(\omega\hat\zeta, W\hat z) +
    6\|A\|\min(\beta\nu, \sigma\omega) + \sigma\max(3\hat\zeta^2, \hat z^2)$.
    """
    if not _usual_size(near.eps).any():
        return torch.full_like(near.eps, torch.inf)
    eps = near.eps[:, None, None]
    forms = [eps**2 * _first(near), eps**4 / 4 * _second(near)]
    weights = [(1 - before) ** 3 - (1 - share) ** 3 for before, share in _pairs()]
    third = [_Third.of(ball(near.within(share)), _slopes(near)) for share in SHARES]
    for part in zip(*(one.forms() for one in third), strict=True):
        # (sum of W a)^2 <= (sum of W)(sum of W a^2)
        square = sum(weight * form for weight, form in zip(weights, part, strict=True))
        forms.append(eps**6 / 36 * square)
    squares = torch.stack(forms, dim=1)
    usual = _usual(squares, near.eps)
    squares = torch.where(usual[:, None, None, None], squares, torch.zeros_like(squares))
    saturated = ROUNDING * score_norms(near).value.sum(-1)
    return torch.where(usual, _largest_sum(squares) + saturated, torch.inf)


def _usual(forms: Float[Tensor, "b f m m"], eps: Float[Tensor, " b"]) -> Bool[Tensor, " b"]:
    """Whether all sizes are such that squares neither overflow nor vanish beside the first form;
    else T4 says nothing.
    """
    trace = forms[:, 0].diagonal(dim1=-2, dim2=-1).sum(-1)
    fits = (trace > USUAL[0] ** 5) & (trace < USUAL[1] ** 5)
    return _usual_size(eps) & fits & forms.isfinite().flatten(1).all(1)


def _usual_size(eps: Float[Tensor, " b"]) -> Bool[Tensor, " b"]:
    return (eps > USUAL[0]) & (eps < USUAL[1])


def _pairs() -> list[tuple[float, float]]:
    return list(zip((0.0, *SHARES), SHARES, strict=False))


def _largest_sum(forms: Float[Tensor, "b f m m"]) -> Float[Tensor, " b"]:
    r"""At least $\sup_{|U| \le 1}\sum_f(U^TQ_fU)^{1/2}$: $(\sum_fa_f)^2 \le \sum_fa_f^2/\theta_f$
    whenever $\sum\theta_f = 1$. The shares $\theta$ of the worst U make the next ones.
    """
    with torch.no_grad():
        share = largest_eigenvalue(forms).sqrt() + TINY
    best = torch.full_like(forms[:, 0, 0, 0], torch.inf)
    for _ in range(SPLITS):
        share = share / share.sum(-1, keepdim=True)
        whole = (forms / share[..., None, None]).sum(1)
        best = torch.minimum(best, (largest_eigenvalue(whole) + TINY).sqrt())
        with torch.no_grad():
            worst = torch.linalg.eigh(whole).eigenvectors[..., -1]
            seen = torch.einsum("ba,bfac,bc->bf", worst, forms, worst).clamp(min=0).sqrt()
            floor = 1e-6 * seen.amax(-1, keepdim=True) + TINY
            share = (share * seen.sum(-1, keepdim=True) + seen) / 2 + floor
    return best * (1 + SLACK)


@kept
def _first(near: Around) -> Float[Tensor, "b m m"]:
    r"""$DF^TDF$ at the input."""
    found = jacobians(reading(near), near.residual, movements(near))
    return torch.stack([one.mT @ one for one in found])


@at_input
def _slopes(near: Around) -> Float[Tensor, "b h n n m"]:
    r"""The coefficients of $z_{ij} = \langle A^T(x_j - m_i), u_i\rangle + \langle\kappa_i, u_j -
    \sum_kP_{ik}u_k\rangle$ in U.
    """
    at = reading(near)
    eye = torch.eye(at.n, dtype=at.p.dtype, device=at.p.device)
    own = at.query[..., None, :, :] - (at.p @ at.query)[..., None, :]
    keys = torch.einsum("bhijl,bhik->bhijlk", eye - at.p[..., None, :], at.key)
    return (torch.einsum("bhijk,il->bhijlk", own, eye) + keys).flatten(-2)


@kept
def _second(near: Around) -> Float[Tensor, "b m m"]:
    r"""$T^TT$ of the second derivative T as a map from one movement to bilinear forms: $|D^2F[U,
    U]|_F \le |T[U, \cdot]|_F|U|_F$.
    """
    return torch.stack([_bent(reading(near), _slopes(near), b) for b in range(len(near.x))])


def _bent(at: ScoresAt, slopes: Float[Tensor, "b h n n m"], number: int) -> Float[Tensor, "m m"]:
    p, slope = at.p[number], slopes[number]
    apart = _values_apart(at)[number]
    n, k = at.n, at.matrices.a.shape[-1]
    size = slope.shape[-1]
    total = torch.zeros(size, size, dtype=p.dtype, device=p.device)
    for i in range(n):
        weighed = p[:, i, :, None] * slope[:, i]
        pairs = (weighed[..., None] * slope[:, i, :, None]).reshape(-1, size * size)
        form = (apart[:, i].flatten(0, 1).mT @ pairs).unflatten(1, (size, size))
        written = torch.einsum("hja,hok->oajk", weighed, at.matrices.c).flatten(-2)
        turned = torch.einsum("hj,hjo,hkl->oljk", p[:, i], apart[:, i], at.matrices.a)
        half = written.clone()
        half[:, i * k : (i + 1) * k] += turned.flatten(-2)
        rows = (form + half + half.mT).flatten(0, 1)  # each form is symmetric
        total = total + rows.mT @ rows
    return total


def _values_apart(at: ScoresAt) -> Float[Tensor, "b h n n d"]:
    r"""$C(x_j - m_i)$."""
    return at.value[..., None, :, :] - (at.p @ at.value)[..., None, :]


@final
@dataclass(frozen=True, eq=False)
class _Third:
    r"""The third derivative over one ball, in parts whose squares are quadratic forms of U.

    `gain` is $\hat G_i$, `scores` $\sum_j u_{ij}z_{ij}^2$ as a matrix for each row, `weights` the
    $\omega_{ij}$ with $\mathrm{Var}_i(u) \le \sum_j\omega_{ij}|u_j|^2$ for every row of the ball.
    """

    over: Ball
    gain: Float[Tensor, "b h n"]
    scores: Float[Tensor, "b h n n m"]
    weights: Float[Tensor, "b h n n"]

    @classmethod
    def of(cls, over: Ball, slopes: Float[Tensor, "b h n n m"]) -> _Third:
        at, high = over.reading, over.high
        c, a = at.matrices.c_norm[:, None], at.matrices.a_norm[:, None]
        weights = variance_weights(over.low, high)
        widest, eps = (weights.amax(-1) + TINY).sqrt(), over.eps[:, None, None]
        root = (high + TINY).sqrt()[..., None]
        seen, apart = root * slopes, root * _values_apart(at)
        here = _norm(seen)
        sigma = _norm(apart) + c * widest * eps
        zeta = here + 2 * a * widest * eps
        lengths = torch.linalg.vector_norm(slopes, dim=-1)
        shift = torch.minimum(here, (over.slope * lengths).sum(-1))
        top = lengths.amax(-1) + shift + 2 * over.reach * a * eps
        reach, beta, both = over.reach, over.b.amax(-1), _own_and_others(weights)
        gain = 3 * c * torch.minimum(reach * zeta, widest * top)
        gain = gain + 6 * a * torch.minimum(beta * both, sigma * reach)
        gain = gain + sigma * torch.maximum(3 * zeta.square(), top.square())
        return cls(over, gain * (1 + SLACK), seen, weights)

    def forms(self) -> list[Float[Tensor, "b m m"]]:
        r"""For each head $\sum_i\hat G_i^2\sum_ju_{ij}z_{ij}^2$ and what the ball adds to it,
        $2\|A\|^2\varepsilon^2\sum_i\hat G_i^2(W_i^2|u_i|^2 + \sum_j\omega_{ij}|u_j|^2)$; then the
        covariance of movements and second derivatives of scores.
        """
        matrices, weights = self.over.reading.matrices, self.weights
        square, widest = self.gain.square(), weights.amax(-1)
        pulled = (square[..., None, None] * self.scores).flatten(2, 3)
        plain = self.scores.flatten(2, 3).mT @ pulled
        around = square * widest + (square[..., None, :] @ weights)[..., 0, :]
        norm = (matrices.a_norm * self.over.eps[:, None]).square()[..., None]
        added = self._on_tokens(2 * norm * around)
        covariance = 6 * (matrices.a_norm * matrices.c_norm)[:, None] * widest
        return [
            *plain.unbind(1),
            *added.unbind(1),
            self._on_tokens(covariance.sum(1).square()),
        ]

    def _on_tokens(self, weight: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack m m"]:
        k = self.over.reading.matrices.a.shape[-1]
        return torch.diag_embed(weight.repeat_interleave(k, dim=-1))


def variance_weights(
    low: Float[Tensor, "*stack n"], high: Float[Tensor, "*stack n"]
) -> Float[Tensor, "*stack n"]:
    r"""$\omega$ with $\sum_jp_j|u_j - \sum_kp_ku_k|^2 \le \sum_j\omega_j|u_j|^2$ for every p
    between low and high: $p_j$, or $2p_h(1 - p_h)$ for the heaviest entry h and $p_j(1 + p_h)$ for
    the others.
    """
    top = high.amax(-1, keepdim=True)
    heaviest = torch.zeros_like(high, dtype=torch.bool)
    heaviest.scatter_(-1, high.argmax(-1, keepdim=True), True)
    rest = torch.minimum(others(high), 1 - low + ROUNDING)
    apart = torch.where(heaviest, 2 * high * rest, high * (1 + top.clamp(max=1)))
    return torch.where(apart.amax(-1, keepdim=True) < top, apart, high) * (1 + ROUNDING)


def _own_and_others(weights: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h n"]:
    r"""At least $|u_i|(\sum_j\omega_{ij}|u_j|^2)^{1/2}$, $|U|_F \le 1$: the root of the maximum of
    $t(\omega_{ii}t + \omega(1 - t))$, $\omega$ the largest of the others.
    """
    own = weights.diagonal(dim1=-2, dim2=-1)
    eye = torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device)
    other = weights.masked_fill(eye, 0.0).amax(-1)
    inside = 2 * own < other
    gap = torch.where(inside, other - own, 1.0)
    return (torch.where(inside, other.square() / (4 * gap), own) + TINY).sqrt()


def _norm(rows: Float[Tensor, "*stack n m"]) -> Float[Tensor, "*stack"]:
    """At least the spectral norm, from the smaller Gram matrix."""
    small = rows.shape[-2] <= rows.shape[-1]
    gram = rows @ rows.mT if small else rows.mT @ rows
    finite = gram.isfinite().flatten(-2).all(-1)
    kept = torch.where(finite[..., None, None], gram, torch.zeros_like(gram))
    return torch.where(finite, (largest_eigenvalue(kept) + TINY).sqrt(), torch.inf)
