r"""Mean-field convergence: the distance between the flow of n particles and a flow of many, against
n, for every variant [castin25].

Tokens are independent draws from one law; masked attentions are compared in the conditional
distance, with several tokens at each of a few positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from attnscope.attention import Attention, Heads, variants
from attnscope.flows import flow
from attnscope.measures import Particles
from attnscope.transport import conditional_wasserstein, wasserstein

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = 4


class Curve(NamedTuple):
    """Mean distance to the reference at the start and at the end, for each number of particles."""

    variant: str
    causal: bool
    sizes: tuple[int, ...]
    start: list[float]
    end: list[float]


def run(
    sizes: tuple[int, ...] = (16, 32, 64, 128),
    reference: int = 1024,
    repeats: int = 4,
    time: float = 0.5,
    names: tuple[str, ...] | None = None,
    seed: int = 0,
) -> list[Curve]:
    """In dimension 2, from the uniform law on a square; sizes count all particles and are multiples
    of the number of places, 4.
    """
    generator = torch.Generator().manual_seed(seed)
    heads = Heads.from_matrices(
        *(0.6 * torch.randn(2, 2, 2, dtype=torch.float64, generator=generator))
    )
    curves = []
    for name, variant in variants().items():
        if names is None or name in names:
            masks = (False,) if name == "sinkhorn" else (False, True)
            curves += [
                _curve(
                    name, variant(heads, causal=mask), sizes, reference, repeats, time, generator
                )
                for mask in masks
            ]
    return curves


def _curve(
    name: str,
    attention: Attention,
    sizes: tuple[int, ...],
    reference: int,
    repeats: int,
    time: float,
    generator: torch.Generator,
) -> Curve:
    def moved(n: int) -> tuple[Particles, Particles]:
        got = flow(
            attention,
            _draw(n, attention.causal, generator),
            [0.0, time],
            rtol=1e-5,
            atol=1e-7,
            settle=None,
        )
        return got.states[0], got.final

    between = conditional_wasserstein if attention.causal else wasserstein
    target = moved(reference)
    rows = []
    for n in sizes:
        pairs = [moved(n) for _ in range(repeats)]
        rows.append(
            [np.mean([between(pair[place], target[place]) for pair in pairs]) for place in (0, 1)]
        )
    return Curve(
        name,
        attention.causal,
        sizes,
        [float(row[0]) for row in rows],
        [float(row[1]) for row in rows],
    )


def _draw(n: int, causal: bool, generator: torch.Generator) -> Particles:
    x = 2 * torch.rand(n, 2, dtype=torch.float64, generator=generator) - 1
    if not causal:
        return Particles(x)
    positions = (torch.arange(n) % PLACES + 1).to(x) / PLACES
    return Particles(x + positions[:, None], torch.full((n,), 1 / n, dtype=x.dtype), positions)


def draw(curves: list[Curve]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    names = sorted({curve.variant for curve in curves})
    for curve in curves:
        color = colormaps["tab10"](names.index(curve.variant))
        axes[int(curve.causal)].plot(
            curve.sizes, curve.end, "o-", color=color, markersize=4, label=curve.variant
        )
    for ax, title in zip(axes, ("unmasked, $W_2$", "causal, conditional $d_2$"), strict=True):
        sizes = np.array(curves[0].sizes)
        ax.plot(
            sizes,
            curves[0].end[0] * (sizes / sizes[0]) ** -0.5,
            ":",
            color="black",
            label="$n^{-1/2}$",
        )
        ax.set(xscale="log", yscale="log", xlabel="particles $n$", title=title)
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
    axes[0].set_ylabel("distance to the reference flow")
    axes[0].legend(fontsize=8, frameon=False)
    return figure
