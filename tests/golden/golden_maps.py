"""Constants of attention as a map: fields, Jacobians, closed forms, distances, attacks."""

from __future__ import annotations

import math

import torch
from golden_source import OTHERS, RECIPES, Group, Recipe, Source, number
from torch import nn

import attnscope as asc

SEARCHED = 1 - 1e-6
"""An ascent ends near a maximum and not at it: this part of what it finds is pinned."""
PAIRS = 800
"""Enough for the largest Jacobian here to be decomposed whole."""


def fields() -> Group:
    """What attention makes of its tokens, on them and off them."""
    for recipe in (*RECIPES, *OTHERS):
        attention, mu = recipe.build()
        made = attention(mu.x, mu)
        yield (
            f"{recipe.name}/norms of the first tokens",
            "constant",
            number(torch.linalg.vector_norm(made[:4], dim=-1)),
        )
        yield f"{recipe.name}/size", "constant", number(torch.linalg.matrix_norm(made))
        direction = Source(f"direction {recipe.name}").normal(recipe.n, recipe.d)
        yield f"{recipe.name}/along a direction", "constant", number((made * direction).sum())
        if not attention.causal and not attention.heads.positional:
            away = Source(f"away {recipe.name}").in_ball(2, recipe.d, recipe.radius)
            yield f"{recipe.name}/off the tokens", "constant", number(attention(away, mu))


def jacobians() -> Group:
    """The largest singular values of Jacobians, with and without an upper bound."""
    for recipe in (*RECIPES, *OTHERS):
        if recipe.weights == "some zero":
            continue
        op = asc.jacobian(*recipe.build())
        found = asc.spectral_norm(op, tol=1e-10, max_pairs=PAIRS)
        yield f"{recipe.name}/sigma", "constant", number(found.lower)
        bracket = asc.spectral_norm(op, tol=1e-10, failure_probability=1e-6, max_pairs=PAIRS)
        assert bracket.upper is not None
        yield f"{recipe.name}/bracket, lower", "constant", number(bracket.lower)
        yield f"{recipe.name}/bracket, upper", "constant", number(bracket.upper)
        if recipe.n * recipe.d <= 200:
            count = min(3, recipe.n * recipe.d)
            several = asc.singular_values(op, k=count, tol=1e-10, max_pairs=PAIRS)
            yield f"{recipe.name}/singular values", "constant", number(several.values)
    yield from _stack_and_function()


def _stack_and_function() -> Group:
    attention, _ = Recipe("softmax", 2, 6, 4, 2.0, k=2, v=3, biases=True).build()
    x = Source("a stack").normal(3, 6, 4)
    op = asc.jacobian(attention, asc.Particles(x))
    yield "a stack/sigma", "constant", number(asc.spectral_norm(op, tol=1e-10).lower)
    yield "a stack/singular values", "constant", number(asc.singular_values(op, 2, 1e-10).values)
    matrix = Source("a function").normal(5, 4)
    op = asc.jacobian(lambda x: torch.tanh(x @ matrix.mT), x, stack=1)
    yield "a function/sigma", "constant", number(asc.spectral_norm(op, tol=1e-10).lower)


def closed_forms() -> Group:
    """The affine field on Gaussians, full and singular."""
    for variant in ("softmax", "l2", "sinkhorn", "linear"):
        for h, d, rank, biases in (
            (1, 1, 1, False),
            (1, 3, 3, False),
            (2, 4, 2, True),
            (3, 6, 6, True),
        ):
            attention, _ = Recipe(variant, h, 3, d, 1.0, k=2, v=2, biases=biases).build()
            source = Source(f"gaussian {variant} {h} {d}")
            gaussian = asc.Gaussian(source.normal(d) / 2, source.covariance(d, rank))
            found = attention.affine(gaussian)
            key = f"{variant} h={h} d={d} rank={rank}"
            yield f"{key}/matrix", "constant", number(found.matrix)
            yield f"{key}/offset", "constant", number(found.offset)


def transport() -> Group:
    """Distances between clouds, between Gaussians and between sequences."""
    for n, m, d in ((1, 1, 1), (5, 5, 1), (6, 9, 2), (12, 7, 5)):
        source = Source(f"transport {n} {m} {d}")
        mu = asc.Particles(source.normal(n, d))
        nu = asc.Particles(source.normal(m, d), source.weights(m))
        for p in (1, 2, 3):
            yield f"n={n} m={m} d={d}/W{p}", "constant", asc.wasserstein(mu, nu, p)
        near = mu.at(mu.x + 0.1 * source.normal(n, d))
        yield f"n={n} d={d}/small move", "constant", asc.wasserstein(mu, near)
        yield f"n={n} d={d}/conditional", "constant", asc.conditional_wasserstein(mu, near)
        first, second = source.covariance(d), source.covariance(d)
        yield f"n={n} m={m} d={d}/bures", "constant", asc.bures(first, second)
        gaussians = [asc.Gaussian(source.normal(d), cov) for cov in (first, second)]
        yield f"n={n} m={m} d={d}/gaussians", "constant", asc.wasserstein(*gaussians)
    places = torch.tensor([0.2, 0.2, 0.5, 1.0], dtype=torch.float64)
    source = Source("sequences")
    pair = [asc.Particles(source.normal(4, 3), None, places) for _ in range(2)]
    yield "positions/conditional", "constant", asc.conditional_wasserstein(*pair)


def attacks() -> Group:
    """Mass splitting, finite attacks, worst inputs and projected gradients."""
    for recipe in (*RECIPES, *OTHERS):
        if 1 < recipe.n <= 12 and recipe.radius < 20 and recipe.weights != "some zero":
            law = asc.attacks.split(*recipe.build())
            yield f"{recipe.name}/move", "constant", law.move
            yield f"{recipe.name}/split", "constant", law.split
    for causal in (False, True):
        recipe = Recipe("softmax", 2, 5, 3, 1.0, k=2, v=2, causal=causal)
        found = asc.attacks.compare(*recipe.build(), [0.01, 0.1])
        for name, several in (("move", found.move), ("split", found.split)):
            ratios = [one.ratio for one in several]
            yield f"compare {recipe.name}/{name}", "constant", ratios
    for recipe in (Recipe("softmax", 1, 4, 2, 2.0), Recipe("softmax", 2, 5, 4, 1.0)):
        attention, _ = recipe.build()
        for head in range(recipe.h):
            mu = asc.attacks.adversarial(attention, head, 8, recipe.radius)
            sigma = asc.spectral_norm(asc.jacobian(attention, mu), tol=1e-10).lower
            yield f"adversarial {recipe.name}/head {head}", "constant", number(sigma)
    yield from _searches()
    yield from _gradients()


def _searches() -> Group:
    for recipe, weighted in (
        (Recipe("softmax", 1, 2, 1, 1.0), False),
        (Recipe("softmax", 1, 3, 2, 1.0), False),
        (Recipe("softmax", 1, 2, 2, 1.0), True),
        (Recipe("softmax", 1, 4, 2, 1.0, causal=True), False),
        (Recipe("sigmoid", 1, 3, 2, 1.0), False),
        (Recipe("l2", 1, 3, 2, 1.0, tied=True), False),
    ):
        attention, _ = recipe.build()
        found = asc.attacks.worst_case(
            attention, recipe.n, recipe.radius, weighted, starts=8, steps=300
        )
        key = f"worst case {recipe.name}{' free masses' * weighted}"
        yield f"{key}/value", "lower", SEARCHED * found.value
        if found.bound is not None:
            yield f"{key}/bound", "bound", found.bound.value
    attention, _ = Recipe("softmax", 1, 3, 2, 1.0).build()
    for point in asc.attacks.curves(attention, [2, 4], [0.5, 1.0], starts=6, steps=150).points:
        key = f"curves n={point.n} R={point.radius:g}"
        yield f"{key}/value", "lower", SEARCHED * point.found.value
        yield f"{key}/bound", "bound", point.bounds.tightest.value


def _gradients() -> Group:
    """Of a linear network the best attack is known, and a projected gradient finds it."""
    source = Source("projected gradients")
    network = nn.Linear(6, 2).double()
    with torch.no_grad():
        network.weight.copy_(source.normal(2, 6))
        network.bias.copy_(source.normal(2))
    x = source.uniform(4, 6)
    labels = network(x).argmax(1)
    found = asc.attacks.pgd(network, x, labels, 0.1, steps=60, restarts=2)
    yield "pgd/gap of a linear network", "constant", number(found.gap)
    assert math.isfinite(float(found.gap.sum()))
