"""Flows in depth: what is proved about them, where they end, their energies and shapes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from golden_source import RECIPES, Group, Recipe, Source, number

import attnscope as asc
from attnscope import flows

SOLVER = {"rtol": 1e-11, "atol": 1e-13, "settle": None}
"""Fine enough that the steps which the solver happens to choose do not show."""


def stability() -> Group:
    """Proved growth of supports and of distances between flows."""
    for recipe in RECIPES:
        attention, _ = recipe.build()
        if recipe.variant == "sigmoid" and "tokens" in recipe.options:
            continue
        for radius, time in ((0.1, 0.5), (1.0, 1.0), (5.0, 0.1)):
            key = f"{recipe.name}/R={radius:g} t={time:g}"
            grown = flows.radius_bound(attention, radius, time)
            yield f"{key}/{grown.name}", "bound", grown.value
            if recipe.biases or recipe.places:
                continue
            constants = flows.velocity_lipschitz(attention, radius)
            yield f"{key}/in space", "bound", constants.space
            yield f"{key}/in measure", "bound", constants.measure
            apart = flows.stability_bound(attention, radius, 0.1 * time)
            yield f"{key}/{apart.name}", "bound", apart.value
    causal = RECIPES[5].build()[0]
    yield "causal, p = 3", "bound", flows.stability_bound(causal, 0.2, 0.1, p=3).value


def particles() -> Group:
    """Final states of clouds: variants, surfaces, masks, weights, schedules, residual layers."""
    for recipe in (
        Recipe("softmax", 1, 6, 2, 1.0),
        Recipe("softmax", 2, 8, 3, 1.0, k=2, v=2, biases=True),
        Recipe("softmax", 1, 7, 3, 1.0, causal=True),
        Recipe("softmax", 2, 5, 4, 1.0, k=2, v=2, places="rotary", causal=True),
        Recipe("softmax", 1, 5, 2, 1.0, weights="any"),
        Recipe("l2", 1, 6, 2, 1.0),
        Recipe("sigmoid", 2, 6, 2, 1.0, biases=True),
        Recipe("linear", 1, 6, 2, 1.0),
        Recipe("exponential", 1, 5, 2, 1.0),
        Recipe("sinkhorn", 1, 5, 2, 1.0),
    ):
        attention, mu = recipe.build()
        found = asc.flow(attention, mu, [0.0, 0.2, 0.5], **SOLVER)
        yield f"{recipe.name}/final", "constant", number(found.final.x)
        yield f"{recipe.name}/covariance on the way", "constant", number(found.cov[1])
        layers = asc.residual(attention, mu, 0.1, 4, pre_norm=torch.tanh)
        yield f"{recipe.name}/after four layers", "constant", number(layers.final.x)
    yield from _surfaces()


def _surfaces() -> Group:
    recipe = Recipe("softmax", 1, 6, 3, 1.0)
    attention, mu = recipe.build()
    gains = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    spaces = {"sphere": asc.Sphere(2.0), "ellipsoid": asc.Ellipsoid.from_gains(gains)}
    for name, space in spaces.items():
        start = mu.at(space(mu.x))
        found = asc.flow(attention, start, [0.0, 0.5], space=space, **SOLVER)
        yield f"{name}/final", "constant", number(found.final.x)
        made = asc.residual(attention, start, 0.1, 3, post_norm=space)
        yield f"{name}/after three layers", "constant", number(made.final.x)
    other = replace(recipe, strength=2.0).build()[0]
    found = asc.flow([attention, other], mu, [0.0, 0.6], **SOLVER)
    yield "two layers in time/final", "constant", number(found.final.x)
    near = mu.at(mu.x + 0.01 * Source("near").normal(6, 3))
    pair = [asc.flow(attention, one, [0.0, 0.2, 0.4], **SOLVER) for one in (mu, near)]
    yield "two flows/distances", "constant", number(flows.distances(*pair))
    yield "two flows/causal distances", "constant", number(flows.distances(*pair, causal=True))


def gaussians() -> Group:
    """Final means and covariances of Gaussians."""
    for variant in ("softmax", "l2", "sinkhorn", "linear"):
        for h, d, rank in ((1, 2, 2), (2, 3, 2)):
            attention, _ = Recipe(
                variant, h, 3, d, 1.0, k=2, v=2, biases=h > 1, strength=0.5
            ).build()
            source = Source(f"gaussian flow {variant} {h} {d}")
            start = asc.Gaussian(source.normal(d) / 2, source.covariance(d, rank))
            found = asc.flow(attention, start, [0.0, 0.1, 0.3], **SOLVER)
            key = f"{variant} h={h} d={d} rank={rank}"
            yield f"{key}/mean", "constant", number(found.final.mean)
            yield f"{key}/covariance", "constant", number(found.final.cov)
            layers = asc.residual(attention, start, 0.1, 3)
            yield f"{key}/covariance after three layers", "constant", number(layers.final.cov)
    matrix = torch.eye(2, dtype=torch.float64)
    blowing = asc.Softmax(asc.Heads.from_matrices(matrix, matrix))
    start = asc.Gaussian(torch.zeros(2, dtype=torch.float64), matrix)
    found = asc.flow(blowing, start, [0.0, 10.0], **SOLVER)
    assert found.status == "blew up"
    yield "explosion/time", "constant", round(found.stop_time, 6)


def energies() -> Group:
    """Energies and their rates, on particles, on surfaces and on Gaussians."""
    for variant, made in (
        ("softmax", asc.Softmax),
        ("exponential", asc.Exponential),
        ("sinkhorn", asc.Sinkhorn),
    ):
        for d, n in ((1, 4), (3, 8)):
            source = Source(f"energy {variant} {d}")
            matrix = source.covariance(d)
            attention = made(asc.Heads.from_matrices(matrix, 0.7 * matrix))
            mu = asc.Particles(source.normal(n, d), source.weights(n))
            sphere = asc.Sphere()
            for name, found in (
                ("free", flows.energy(attention, mu)),
                ("sphere", flows.energy(attention, mu.at(sphere(mu.x)), sphere)),
            ):
                yield f"{variant} d={d} {name}/energy", "constant", found.value
                if d > 1 or name == "free":  # in one dimension nothing moves on the sphere
                    yield f"{variant} d={d} {name}/rate", "constant", found.rate
    source = Source("energy of gaussians")
    key, cov = source.normal(1, 3, 3), source.covariance(3)
    gram = (key.mT @ key)[0]
    for name, attention in (
        ("softmax", asc.Softmax(asc.Heads.from_matrices(gram, 0.5 * gram))),
        ("sinkhorn", asc.Sinkhorn(asc.Heads.from_matrices(gram, 0.5 * gram))),
        ("l2", asc.L2(asc.Heads(key, key, 0.5 * gram[None], scale=1.0))),
    ):
        found = flows.energy(attention, asc.Gaussian(torch.zeros(3, dtype=torch.float64), cov))
        yield f"{name} gaussian/energy", "constant", found.value
        yield f"{name} gaussian/rate", "constant", found.rate


def shapes() -> Group:
    """Ranks, anisotropy and clusters."""
    for d, rank in ((1, 1), (4, 2), (8, 8)):
        cov = Source(f"shape {d}").covariance(d, rank)
        yield f"d={d}/rank", "constant", number(flows.rank(cov))
        yield f"d={d}/rank at the widest gap", "constant", number(flows.spectral_gap_rank(cov))
        yield f"d={d}/anisotropy", "constant", number(flows.anisotropy(cov))
    cloud = Source("clusters").normal(40, 2)
    for gap in (0.1, 0.3, math.sqrt(0.5)):
        found = flows.clusters(asc.Particles(cloud), gap)
        yield f"gap={gap:.3g}/clusters", "constant", float(found.number)
