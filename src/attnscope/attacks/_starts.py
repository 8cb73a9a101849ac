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
from attnscope.validation import check_positive, described

TRIED_PAIRS = 64
ODDS = (0.3, 1.0, 3.0)
"""The t of M2: mass of the bulk over what would balance it."""
SPREAD = 3.0
"""Standard deviation of random log-weights."""


class Start(NamedTuple):
    name: str
    x: Float[Tensor, "n d"]
    log_weights: Float[Tensor, " n"] | None


class _Pair(NamedTuple):
    """A rare token and the bulk that reads it; `lead` is the score by which the bulk prefers it."""

    name: str
    bulk: Float[Tensor, " d"]
    rare: Float[Tensor, " d"]
    lead: float


def adversarial(attention: Attention, head: int, n: int, radius: float) -> Particles:
    r"""The papers' input [castin24, Prop. 3.4]: one token $-Ru$ (or $Ru$) first, $n-1$ tokens $Ru$
    (or $Ru/2$), u an eigenvector of $A_h$.

    $A_h$ alone decides: biases, rotary angles and the other heads are left out when the input is
    built, not when attention acts on it. An $A_h$ without real eigenvalues gets the tokens of U2'.
    """
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
    return Particles(_lifted(_tokens(found, n), basis).to(heads.query.dtype))


def constructed(
    attention: Attention, n: int, radius: float, weighted: bool, generator: torch.Generator
) -> list[Start]:
    """U2 (K2 under a mask), U2' and the best of many random pairs of U2'' for every head; with
    masses as in M2.
    """
    if n < 2:
        return []
    made = []
    for head in range(attention.heads.count):
        single, basis = _bare(attention.heads, head)
        pairs = (
            _eigenvector_pair(single, radius),
            _oblique_pair(single, radius),
            _random_pair(single, n, radius, generator),
        )
        label = f" of head {head}" if attention.heads.count > 1 else ""
        for pair in (pair for pair in pairs if pair is not None):
            x = inside(_lifted(_tokens(pair, n), basis), radius)
            if weighted:
                named = {"U2": "M2"}.get(pair.name, pair.name)
                made += [
                    Start(f"{named}{label}, t = {t:g}", x, _log_weights(pair.lead, t, n).to(x))
                    for t in ODDS
                ]
            else:
                named = {"U2": "K2"}.get(pair.name, pair.name) if attention.causal else pair.name
                made.append(Start(f"{named}{label}", x, None))
    return made


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


def _bare(heads: Heads, head: int) -> tuple[Softmax, Float[Tensor, "d r"] | None]:
    """One head without biases, unmasked, on the subspace that it reads."""
    one = heads.to(torch.float64).select(head)
    return reduced(Softmax(Heads(one.query, one.key, one.value, one.output, scale=one.scale)))


def _eigenvector_pair(single: Softmax, radius: float) -> _Pair | None:
    try:
        x = constructions.opposite(single, 2, radius).mu.x
    except ValueError:
        return None
    return _pair("U2", single, bulk=x[1], rare=x[0])


def _oblique_pair(single: Softmax, radius: float) -> _Pair | None:
    if not single.heads.a.any():
        return None
    x = constructions.oblique(single, 2, radius).mu.x
    return _pair("U2'", single, bulk=x[1], rare=x[0])


def _random_pair(single: Softmax, n: int, radius: float, generator: torch.Generator) -> _Pair:
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


def _pair(name: str, single: Softmax, bulk: Tensor, rare: Tensor) -> _Pair:
    return _Pair(name, bulk, rare, float((single.heads.a[0] @ bulk) @ (rare - bulk)))


def _tokens(pair: _Pair, n: int) -> Float[Tensor, "n r"]:
    return torch.cat([pair.rare[None], pair.bulk.expand(n - 1, -1)])


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
