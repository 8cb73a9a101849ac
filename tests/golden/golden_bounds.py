"""Proved bounds: on balls, at points, at inputs built for them, over perturbations."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from golden_source import RECIPES, Group, Pinned, Recipe, Source, number

import attnscope as asc

EPS = (1e-3, 0.03, 0.3, 3.0)
RESIDUALS = (0.0, 1.0, -1.0, 0.5)
BALLS = (0.1, 1.0, 4.0, 20.0)
LONG = (
    Recipe("softmax", 2, 64, 40, 2.0, k=4, v=4, places="rotary"),
    Recipe("softmax", 4, 64, 40, 2.0, k=4, v=4, biases=True),
)
"""Large enough that the norms of blocks are no longer computed one by one."""
PLACED = (
    Recipe("l2", 2, 6, 4, 1.0, k=2, v=3, biases=True, places="bias", causal=True),
    Recipe("sigmoid", 2, 6, 4, 1.0, k=2, v=3, biases=True, places="bias", options={"tokens": 6}),
)
"""Position biases that only the bounds over perturbations allow."""


def on_ball() -> Group:
    """Every bound on a ball: the curves in n and R, and every recipe at its own radius."""
    one = torch.tensor([[0.7]], dtype=torch.float64)
    scalar = asc.Softmax(asc.Heads.from_matrices(one, torch.ones_like(one)))
    for n in (1, 2, 8, 40, 1000):
        for radius in (*BALLS, math.sqrt(2)):
            yield from _named(
                f"A=0.7 V=1/n={n} R={radius:g}", asc.bounds.on_ball(scalar, n, radius)
            )
    for recipe in RECIPES:
        attention, _ = recipe.build()
        for n, radius in ((recipe.n, recipe.radius), (max(1, recipe.n // 2), 0.3)):
            yield from _named(
                f"{recipe.name}/n={n} R={radius:g}", asc.bounds.on_ball(attention, n, radius)
            )


def smoothness() -> Group:
    """Every bound at a measure, block bounds of both kinds included."""
    for recipe in (*RECIPES, *LONG):
        attention, mu = recipe.build()
        yield from _named(recipe.name, asc.bounds.smoothness(attention, mu))
    for recipe in RECIPES:
        attention, mu = recipe.build()
        if isinstance(attention, asc.Softmax) and recipe.places != "rotary":
            for name, blocks in (
                ("with examples", asc.bounds.BlockNorms(attention, [mu])),
                ("without", asc.bounds.BlockNorms(attention)),
            ):
                found = asc.bounds.smoothness(attention, mu, blocks=blocks).named("B1-S")
                yield f"{recipe.name}/block norms {name}", "bound", found.value


def constructions() -> Group:
    """Inputs that attention stretches: the lower bound there and the constant itself."""
    built = asc.bounds.constructions
    for d, n, radius in ((1, 2, 1.0), (2, 8, 0.5), (3, 20, 2.0), (4, 40, 1.5), (5, 5, 3.0)):
        source = Source(f"constructions {d} {n} {radius}")
        scores = (
            source.normal(d, d) / math.sqrt(d)
        ).triu()  # real eigenvalues, and no symmetry that makes ties
        heads = asc.Heads.from_matrices(scores, source.normal(d, d))
        free, masked = asc.Softmax(heads), asc.Softmax(heads, causal=True)
        bulk, rare = source.in_ball(2, d, radius)
        found = {
            "two clusters": (free, built.two_clusters(free, n, bulk, rare)),
            "opposite": (free, built.opposite(free, n, radius)),
            "oblique": (free, built.oblique(free, n, radius)),
            "unbalanced t=1": (free, built.unbalanced(free, radius)),
            "unbalanced t=3": (free, built.unbalanced(free, radius, 3.0)),
            "rare first": (masked, built.rare_first(masked, n, radius)),
        }
        for name, (attention, made) in found.items():
            key = f"d={d} n={n} R={radius:g}/{name}"
            yield f"{key}/{made.bound.name}", "lower", made.bound.value
            op = asc.jacobian(attention, made.mu)
            yield f"{key}/constant", "constant", number(asc.spectral_norm(op, tol=1e-10).lower)


def sensitivity() -> Group:
    """How far the output can move: every candidate by its name, and the smallest."""
    for place, recipe in enumerate((*RECIPES, *PLACED)):
        if recipe.places == "rotary":
            continue
        attention, mu = recipe.build()
        residual = RESIDUALS[place % len(RESIDUALS)]
        eps = torch.tensor(EPS, dtype=torch.float64)
        found = asc.bounds.sensitivity(attention, mu.x, eps, residual)
        key = f"{recipe.name}/residual={residual:g}"
        yield f"{key}/value", "bound", number(found.value)
        for name, candidate in found.candidates.items():
            yield f"{key}/candidate/{name}", "bound", number(candidate)
    yield from _stacked()


def _stacked() -> Group:
    """A stack of inputs, one radius for each."""
    attention, _ = Recipe("softmax", 2, 6, 4, 2.0, k=2, v=3, biases=True).build()
    source = Source("stacked")
    x, eps = source.normal(3, 6, 4), torch.tensor([0.01, 0.2, 1.0], dtype=torch.float64)
    found = asc.bounds.sensitivity(attention, x, eps, residual=1.0)
    yield "a stack/value", "bound", number(found.value)
    for name, candidate in found.candidates.items():
        yield f"a stack/candidate/{name}", "bound", number(candidate)


def remainder() -> Group:
    """What curvature can take from a direction."""
    for recipe in (*RECIPES, *PLACED):
        if recipe.places == "rotary":
            continue
        attention, mu = recipe.build()
        directions = Source(f"directions {recipe.name}").normal(2, recipe.n, recipe.d)
        for eps in EPS:
            found = asc.bounds.remainder(attention, mu.x, eps, directions)
            yield f"{recipe.name}/eps={eps:g}", "bound", number(found)


def limits() -> Group:
    """Limits for large radii, and the balls in which norm layers put their tokens."""
    for recipe in RECIPES:
        if recipe.variant == "softmax" and recipe.h == 1:
            attention, mu = recipe.build()
            found = asc.bounds.large_radius_limit(attention, mu)
            yield f"{recipe.name}/limit", "constant", found.value
            yield f"{recipe.name}/gap", "constant", found.gap
            yield f"{recipe.name}/most read", "constant", float(found.most_read)
    heads = replace(RECIPES[10], biases=False).build()[0].heads.select(0)
    mu = asc.Particles(Source("rotary limit").normal(7, 4))
    found = asc.bounds.large_radius_limit(asc.Softmax(heads, causal=True), mu)
    yield "rotary head/limit", "constant", found.value
    for d in (1, 5, 24):
        source = Source(f"norm layers {d}")
        gain, bias = source.normal(d), source.normal(d)
        yield f"d={d}/layer norm", "bound", asc.bounds.layer_norm_radius(gain, bias)
        yield f"d={d}/layer norm without bias", "bound", asc.bounds.layer_norm_radius(gain)
        yield f"d={d}/rms norm", "bound", asc.bounds.rms_norm_radius(gain)


def _named(key: str, found: asc.bounds.Bounds) -> Group:
    """All of these by name, and the tightest."""
    for bound in found:
        assert bound.kind == "proved"
        assert bound.side == "upper"
        pinned: Pinned = (f"{key}/{bound.name}", "bound", bound.value)
        yield pinned
    if any(bound.side == "upper" for bound in found):
        yield f"{key}/tightest", "bound", found.tightest.value
