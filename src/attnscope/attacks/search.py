r"""The largest local constant of attention over a ball: $L(n, R) = \sup\|D_Xf\|$ over $B_R^n$, or
over weighted atoms, by ascent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attacks._ascent import Ascent, inside
from attnscope.attacks._choice import chosen, groups, stacked
from attnscope.attacks._gain import masses
from attnscope.attacks._reduce import reduced
from attnscope.attacks._starts import Start
from attnscope.attention import Attention
from attnscope.bounds import Bound, Bounds, covered, on_ball
from attnscope.measures import Particles
from attnscope.operators import jacobian, spectral_norm
from attnscope.validation import as_generator, brief, check_positive, described

MOST_ENTRIES = 2**24
"""Entries of one coupling up to which its second derivatives fit in memory."""

Progress = Callable[[float, float], bool]
"""Told the fraction done and the best value so far; False stops the search, which keeps what it
has.
"""


@final
@dataclass(frozen=True, eq=False)
class WorstCase:
    r"""The worst input found. `value` is its local constant, computed at `mu`: a proved lower bound
    of the supremum, not the supremum.

    `bound` is the tightest proved upper bound of the supremum (None where no theorem gives a finite
    one). `start` says where the ascent began; `history` has the value of every start, `names`,
    after every step.
    """

    value: float
    mu: Particles
    bound: Bound | None
    start: str
    names: tuple[str, ...]
    history: Float[Tensor, "steps starts"]

    __repr__ = brief

    @property
    def tokens(self) -> Float[Tensor, "n d"]:
        return self.mu.x

    @property
    def weights(self) -> Float[Tensor, " n"]:
        return self.mu.weights

    @property
    def ratio(self) -> float | None:
        """The value over the bound, at most 1."""
        return None if self.bound is None else self.value / self.bound.value

    def __str__(self) -> str:
        upper = (
            "no upper bound is known"
            if self.bound is None
            else f"{100 * (self.ratio or 0):.3g} % of the upper bound {self.bound}"
        )
        return (
            f"worst input found: local constant {self.value:.6g} (a lower bound of the largest;"
            f" began at {self.start}); {upper}"
        )


def worst_case(
    attention: Attention,
    n: int,
    radius: float,
    weighted: bool = False,
    causal: bool | None = None,
    starts: int = 24,
    steps: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> WorstCase:
    r"""Search the input of n tokens in the ball of this radius where attention stretches most, in
    float64.

    Projected ascent on $\sigma_{max}$, differentiated through its singular vectors, `starts` of
    them at once: from the constructions U2, U2', U2'' of every head (K2 under a mask), from their
    two clusters with the best numbers of rare tokens, from what a short search with fewer tokens
    finds, made longer, and from random tokens. With `weighted=True` the masses are searched too, in
    the metric of $L^2(\mu)$: the mean field, whose worst measures are few and unbalanced Diracs
    [castin24]. `causal` overrides the attention's own mask.
    """
    check_call(attention, n, radius, weighted, starts, steps)
    if causal is not None and causal != attention.causal:
        attention = replace(attention, causal=causal)
    return search(attention, n, radius, weighted, starts, steps, seed, progress)


def search(
    attention: Attention,
    n: int,
    radius: float,
    weighted: bool,
    starts: int,
    steps: int,
    seed: int,
    progress: Progress | None,
    known: Sequence[Particles] = (),
) -> WorstCase:
    """`worst_case`, begun at `known` inputs too."""
    whole = attention.to(torch.float64)
    small, basis = reduced(whole)
    generator = as_generator(seed, small.heads.query.device)
    begun = chosen(small, n, radius, weighted, starts, steps, generator) + _known(
        known, basis, radius, weighted
    )
    runs = _climb(small, begun, radius, steps, generator, progress)
    finals = torch.cat([run.pair.value for run in runs])
    best = int(finals.argmax())
    x = torch.cat([run.x for run in runs])[best]
    weights = None if not weighted else torch.cat([_weights(run) for run in runs])[best]
    mu = Particles(inside(x if basis is None else x @ basis.mT, radius), weights)
    return WorstCase(
        value=float(spectral_norm(jacobian(whole, mu), tol=1e-9, seed=seed).lower),
        mu=mu,
        bound=_upper(whole, n, radius, weighted),
        start=begun[best].name,
        names=tuple(start.name for start in begun),
        history=_together(runs),
    )


def _known(
    known: Sequence[Particles], basis: Float[Tensor, "d r"] | None, radius: float, weighted: bool
) -> list[Start]:
    found = []
    for mu in known:
        x = inside(mu.x if basis is None else mu.x @ basis, radius)
        found.append(Start("a known input", x, mu.weights.log() if weighted else None))
    return found


def _climb(
    attention: Attention,
    begun: list[Start],
    radius: float,
    steps: int,
    generator: torch.Generator,
    progress: Progress | None,
) -> list[Ascent]:
    together = groups(attention, begun)
    runs: list[Ascent] = []
    best = 0.0
    going = True
    for number, group in enumerate(together):
        x, log_weights = stacked(group)
        runs.append(Ascent(attention, radius, x, log_weights, generator))

        def told(step: int, value: float, number: int = number, best: float = best) -> bool:
            return progress is None or progress(
                (number + step / steps) / len(together), max(best, value)
            )

        going = going and runs[-1].run(steps, told)
        best = max(best, float(runs[-1].pair.value.max()))
    return runs


def _weights(run: Ascent) -> Float[Tensor, "b n"]:
    found = masses(run.log_weights)
    assert found is not None
    return found


def _together(runs: list[Ascent]) -> Float[Tensor, "steps starts"]:
    """The histories side by side; a run that ended early stays at its last value."""
    longest = max(len(run.history) for run in runs)
    return torch.cat(
        [
            torch.stack(run.history + run.history[-1:] * (longest - len(run.history)))
            for run in runs
        ],
        dim=1,
    )


def _upper(attention: Attention, n: int, radius: float, weighted: bool) -> Bound | None:
    """The tightest proved bound that is finite; for free masses one that holds whatever they
    are.
    """
    if not covered(attention):
        return None
    found = on_ball(attention, n, radius, weighted)
    finite = [bound for bound in found if math.isfinite(bound.value)]
    return Bounds(finite).tightest if finite else None


def check_call(
    attention: object, n: object, radius: object, weighted: bool, starts: object, steps: object
) -> None:
    """Refuse what cannot be searched."""
    if not isinstance(attention, Attention):
        raise TypeError(
            f"worst_case needs an attention such as Softmax(heads), got {described(attention)}."
        )
    least = 2 if weighted else 1
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        raise ValueError(
            f"n must be a whole number of at least {least}{' when masses are free' * weighted}, got"
            f" {described(n)}."
        )
    check_positive("radius", radius)
    for name, number in (("starts", starts), ("steps", steps)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(
                f"{name} must be a whole number of at least 1, got {described(number)}."
            )
    if attention.heads.count * n**2 > MOST_ENTRIES:
        raise ValueError(
            f"the search needs second derivatives of a coupling with {attention.heads.count} x {n}"
            f" x {n} entries, more than {MOST_ENTRIES:,}. Use fewer tokens, or one head:"
            " heads.select(number)."
        )
