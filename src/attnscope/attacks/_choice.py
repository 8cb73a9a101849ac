r"""Which inputs the search begins at: constructions, two clusters, what was found for fewer tokens,
and random tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attacks._ascent import FIRST_PAIRS, Ascent
from attnscope.attacks._gain import masses, top_pairs
from attnscope.attacks._starts import (
    Pair,
    Start,
    constructed,
    counts,
    drawn,
    longer,
    neighbours,
    pairs,
)
from attnscope.attention import Attention
from attnscope.measures import Particles

GROUP_ENTRIES = 2**22
"""Entries of the couplings of the starts that climb together; some ten tensors of this size live at
once.
"""
FULL_SIZE_PAIRS = 2
"""Pairs of clusters whose numbers of rare tokens are compared with all n tokens."""
SHORTER = 4
"""The search with fewer tokens takes at most n / SHORTER of them, so that it costs little."""
LEAST_SHORTER = 8
SHORTER_EFFORT = 8
"""Which part of the steps it makes."""


def chosen(
    attention: Attention,
    n: int,
    radius: float,
    weighted: bool,
    count: int,
    steps: int,
    generator: torch.Generator,
) -> list[Start]:
    """The best constructions, half of all starts at the most, two clusters, a quarter, what fewer
    tokens gave, and random tokens for the rest.
    """
    found = pairs(attention, n, radius, generator)
    built = [start for pair in found for start in constructed(attention, pair, n, weighted)]
    order = list(range(len(built)))
    if len(built) > count // 2:
        order = _values(attention, built, generator).argsort(descending=True).tolist()
    begun = [built[number] for number in sorted(order[: max(count // 2, 1)])]
    if not weighted and count >= 4 and n > 2:
        placed = attention.causal or attention.heads.positional
        some = [found[number] for number in order[:FULL_SIZE_PAIRS]] if placed else found
        begun += _clusters(attention, some, n, count // 4, placed, generator)
    if not weighted and count > len(begun):
        begun += _from_fewer(attention, n, radius, count // 2, steps, generator)
    return begun + drawn(attention, n, radius, weighted, count - len(begun), generator)


def _clusters(
    attention: Attention,
    found: list[Pair],
    n: int,
    count: int,
    placed: bool,
    generator: torch.Generator,
) -> list[Start]:
    r"""Two clusters with the best numbers of rare tokens: first on a grid, then between the
    neighbours of the best.

    Equal tokens that move together are one token of their whole mass, so that the constant at k
    rare tokens and n - k others is at least that of two atoms of masses k/n and 1 - k/n: there all
    numbers are compared. Scores that depend on the place of a token (`placed`) know no such
    reduction.
    """

    def compared(pair: Pair, numbers: list[int]) -> list[tuple[float, Pair, int]]:
        begun = [pair.clusters(k, n) if placed else pair.atoms(k / n) for k in numbers]
        return [
            (value, pair, k)
            for k, value in zip(numbers, _values(attention, begun, generator).tolist(), strict=True)
        ]

    tried = [one for pair in found for one in compared(pair, counts(n))]
    if not tried:
        return []
    _, pair, best = max(tried, key=lambda one: one[0])
    between = neighbours(best, counts(n))
    tried += compared(pair, between) if between else []
    tried.sort(key=lambda one: -one[0])
    return [pair.clusters(k, n) for _, pair, k in tried if k > 1][:count]


def _from_fewer(
    attention: Attention,
    n: int,
    radius: float,
    count: int,
    steps: int,
    generator: torch.Generator,
) -> list[Start]:
    """The best that a short search with fewer tokens finds, made longer: at n tokens its constant
    is no smaller.
    """
    few = fewer(attention, n)
    if few < LEAST_SHORTER:
        return []
    begun = chosen(attention, few, radius, False, count, steps, generator)
    ascent = Ascent(attention, radius, stacked(begun)[0], None, generator)
    ascent.run(max(steps // SHORTER_EFFORT, 1), lambda step, value: True)
    made = longer(attention, Particles(ascent.x[int(ascent.pair.value.argmax())]), n)
    assert made is not None
    return [Start(f"the best of {few} tokens", made.x, None)]


def fewer(attention: Attention, n: int) -> int:
    """The largest number of tokens, n / SHORTER at the most, whose inputs can be made n tokens
    long; 1 where there is none.
    """
    most = max(n // SHORTER, 1)
    if attention.causal:
        return most
    if attention.heads.positional:
        return 1
    return max(few for few in range(1, most + 1) if n % few == 0)


def _values(
    attention: Attention, begun: list[Start], generator: torch.Generator
) -> Float[Tensor, " b"]:
    """Lower bounds of the local constants at these starts, close ones."""
    found = []
    for group in groups(attention, begun):
        x, log_weights = stacked(group)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        mu = Particles(x, masses(log_weights))
        found.append(top_pairs(attention, mu, noise, FIRST_PAIRS).value)
    return torch.cat(found)


def groups(attention: Attention, begun: list[Start]) -> list[list[Start]]:
    """Starts that climb together, so that their couplings fit in memory."""
    size = max(1, GROUP_ENTRIES // (attention.heads.count * begun[0].x.shape[0] ** 2))
    return [begun[first : first + size] for first in range(0, len(begun), size)]


def stacked(group: list[Start]) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b n"] | None]:
    logs = [start.log_weights for start in group if start.log_weights is not None]
    return torch.stack([start.x for start in group]), torch.stack(logs) if logs else None
