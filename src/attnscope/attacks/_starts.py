r"""Where the search begins: the constructions of the papers for every head, and random tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attacks._ascent import LEAST_LOG_WEIGHT, inside
from attnscope.attacks._reduce import reduced
from attnscope.attention import Attention, Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import constructions
from attnscope.measures import Particles
from attnscope.validation import check_kind, check_positive, described

TRIED_PAIRS = 64
COUNT_STEP = 1.4
"""The ratio of successive numbers of rare tokens that are tried."""
MOST_BETWEEN = 16
ODDS = (0.3, 1.0, 3.0)
"""The t of M2: mass of the bulk over what would balance it."""
SPREAD = 3.0
"""Standard deviation of random log-weights."""


class Start(NamedTuple):
    name: str
    x: Float[Tensor, "n d"]
    log_weights: Float[Tensor, " n"] | None


class Pair(NamedTuple):
    """A rare token and the bulk that reads it; `lead` is the score by which the bulk prefers it,
    `label` says of which head.
    """

    name: str
    bulk: Float[Tensor, " d"]
    rare: Float[Tensor, " d"]
    lead: float
    label: str = ""

    def tokens(self, rare: int, n: int) -> Float[Tensor, "n d"]:
        """The rare token so many times, then the bulk."""
        return torch.cat([self.rare.expand(rare, -1), self.bulk.expand(n - rare, -1)])

    def clusters(self, rare: int, n: int) -> Start:
        return Start(f"{self.name}{self.label}, {rare} rare", self.tokens(rare, n), None)

    def atoms(self, share: float) -> Start:
        """One token for each cluster, of its mass."""
        shares = torch.tensor([share, 1 - share], dtype=torch.float64)
        return Start(f"{self.name}{self.label}", self.tokens(1, 2), shares.log().to(self.bulk))


def adversarial(attention: Attention, head: int, n: int, radius: float) -> Particles:
    r"""The papers' input [castin24, Prop. 3.4]: one token $-Ru$ (or $Ru$) first, $n-1$ tokens $Ru$
    (or $Ru/2$), u an eigenvector of $A_h$.

    $A_h$ alone decides: biases, rotary angles and the other heads are left out when the input is
    built, not when attention acts on it. An $A_h$ without real eigenvalues gets the tokens of U2'.
    """
    check_kind("attention", attention, Attention)
    heads = attention.heads
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < heads.count:
        raise ValueError(
            f"head must be a whole number from 0 to {heads.count - 1}, got {described(head)}."
        )
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise ValueError(
            "n must be a whole number of at least 2 (one rare token and the others), got"
            f" {described(n)}."
        )
    check_positive("radius", radius)
    single, basis = _bare(heads, head)
    found = _eigenvector_pair(single, radius) or _oblique_pair(single, radius)
    if found is None:
        raise ValueError(
            f"the scores of head {head} are zero: no two clusters stretch more than any others."
        )
    return Particles(_lifted(found.tokens(1, n), basis).to(heads.query.dtype))


def pairs(attention: Attention, n: int, radius: float, generator: torch.Generator) -> list[Pair]:
    """U2, U2' and the best of many random pairs of U2'' for every head; none for a single token."""
    made = []
    for head in range(attention.heads.count if n > 1 else 0):
        single, basis = _bare(attention.heads, head)
        label = f" of head {head}" if attention.heads.count > 1 else ""
        for pair in (
            _eigenvector_pair(single, radius),
            _oblique_pair(single, radius),
            _random_pair(single, n, radius, generator),
        ):
            if pair is not None:
                bulk, rare = (
                    inside(_lifted(token[None], basis), radius)[0]
                    for token in (pair.bulk, pair.rare)
                )
                made.append(Pair(pair.name, bulk, rare, pair.lead, label))
    return made


def constructed(attention: Attention, pair: Pair, n: int, weighted: bool) -> list[Start]:
    """One rare token and n - 1 others (K2 under a mask), or masses as in M2."""
    x = pair.tokens(1, n)
    if weighted:
        named = {"U2": "M2"}.get(pair.name, pair.name)
        return [
            Start(f"{named}{pair.label}, t = {t:g}", x, _log_weights(pair.lead, t, n).to(x))
            for t in ODDS
        ]
    named = {"U2": "K2"}.get(pair.name, pair.name) if attention.causal else pair.name
    return [Start(f"{named}{pair.label}", x, None)]


def counts(n: int) -> list[int]:
    """Numbers of rare tokens among n, on a logarithmic grid from either end."""
    few = {round(COUNT_STEP**power) for power in range(1 + int(math.log(n, COUNT_STEP)))}
    return sorted({number for k in few if 2 * k <= n for number in (k, n - k)})


def neighbours(number: int, grid: list[int]) -> list[int]:
    """Whole numbers, MOST_BETWEEN at the most, between this one of the grid and those beside it."""
    place = grid.index(number)
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    between = [k for k in range(low + 1, high) if k != number]
    return between[:: math.ceil(len(between) / MOST_BETWEEN)] if between else []


def drawn(
    attention: Attention,
    n: int,
    radius: float,
    weighted: bool,
    count: int,
    generator: torch.Generator,
) -> list[Start]:
    """Random directions, half of the starts with all tokens on the sphere and half inside the
    ball.
    """
    query = attention.heads.query
    x = torch.randn(
        count, n, attention.heads.dim, generator=generator, dtype=query.dtype, device=query.device
    )
    depth = torch.rand(count, n, 1, generator=generator, dtype=query.dtype, device=query.device)
    depth[::2] = 1
    x = inside(radius * depth * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True), radius)
    spread = SPREAD * torch.randn(
        count, n, generator=generator, dtype=query.dtype, device=query.device
    )
    logs = [torch.log_softmax(line, dim=-1) if weighted else None for line in spread]
    return [
        Start(f"random {number}", tokens, log)
        for number, (tokens, log) in enumerate(zip(x, logs, strict=True))
    ]


def longer(attention: Attention, mu: Particles, n: int) -> Particles | None:
    """An input of n tokens whose local constant is not smaller: copies of all tokens, or more
    tokens behind a mask; None if there is none.

    Under a mask the Jacobian of a prefix is a corner of that of the whole; without one, copies that
    move together act as the token did.
    """
    if attention.causal and mu.n <= n:
        return Particles(torch.cat([mu.x, mu.x[-1:].expand(n - mu.n, -1)]))
    if attention.causal or n % mu.n or (attention.heads.positional and mu.n != n):
        return None
    return Particles(mu.x.repeat_interleave(n // mu.n, dim=0))


def _bare(heads: Heads, head: int) -> tuple[Softmax, Float[Tensor, "d r"] | None]:
    """One head without biases, unmasked, on the subspace that it reads."""
    one = heads.to(torch.float64).select(head)
    return reduced(Softmax(Heads(one.query, one.key, one.value, one.output, scale=one.scale)))


def _eigenvector_pair(single: Softmax, radius: float) -> Pair | None:
    try:
        x = constructions.opposite(single, 2, radius).mu.x
    except ValueError:
        return None
    return _pair("U2", single, bulk=x[1], rare=x[0])


def _oblique_pair(single: Softmax, radius: float) -> Pair | None:
    if not single.heads.a.any():
        return None
    x = constructions.oblique(single, 2, radius).mu.x
    return _pair("U2'", single, bulk=x[1], rare=x[0])


def _random_pair(single: Softmax, n: int, radius: float, generator: torch.Generator) -> Pair:
    r"""The best of many random pairs by the formula of U2'', Frobenius norm."""
    a, v = single.heads.a[0], single.heads.values[0]
    points = torch.randn(
        2, TRIED_PAIRS, len(a), generator=generator, dtype=a.dtype, device=a.device
    )
    bulk, rare = radius * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    reads = bulk @ a.mT
    share = torch.sigmoid((reads * (rare - bulk)).sum(-1) - math.log(n - 1))[:, None, None]
    column = share * (v + (1 - share) * ((rare - bulk) @ v.mT)[:, :, None] * reads[:, None, :])
    best = int(torch.linalg.matrix_norm(column).argmax())
    return _pair("U2''", single, bulk=bulk[best], rare=rare[best])


def _pair(name: str, single: Softmax, bulk: Tensor, rare: Tensor) -> Pair:
    return Pair(name, bulk, rare, float((single.heads.a[0] @ bulk) @ (rare - bulk)))


def _lifted(x: Float[Tensor, "n r"], basis: Float[Tensor, "d r"] | None) -> Float[Tensor, "n d"]:
    return x if basis is None else x @ basis.mT


def _log_weights(lead: float, t: float, n: int) -> Float[Tensor, " n"]:
    """The rare token of mass 1/(1 + t e^lead), the rest shared by the others."""
    odds = torch.tensor(lead + math.log(t), dtype=torch.float64)
    rare, bulk = (
        torch.nn.functional.logsigmoid(-odds),
        torch.nn.functional.logsigmoid(odds) - math.log(n - 1),
    )
    return torch.cat([rare[None], bulk.expand(n - 1)]).clamp(min=LEAST_LOG_WEIGHT)
