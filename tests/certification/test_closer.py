"""Chains for small inputs, looked at closer: radii grow, nothing is broken, each part is in use."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.attacks.projected import pgd
from attnscope.certification import certify, closer
from attnscope.certification.chain import chain
from attnscope.certification.clean_graph import CleanGraph
from attnscope.certification.closer import Closer
from attnscope.certification.graph import Graph, Node
from attnscope.layers import Along, ResidualAttention
from attnscope.layers.mlp import MLP
from attnscope.nets import Config, Transformer


def network(seed: int, depth: int = 2, activation: str = "quadratic", **more: Any) -> Transformer:
    config = Config.vit(
        (1, 4, 4), 3, 2, dim=5, heads=2, head_dim=2, value_dim=2, hidden=6, depth=depth,
        activation=activation, **more,
    )  # fmt: skip
    made = Transformer(config, seed=seed)
    with torch.no_grad():
        g = torch.Generator().manual_seed(seed)
        for part in made.parameters():
            part.add_(0.25 * torch.randn(part.shape, generator=g))
    return made.double().eval().requires_grad_(False)


def images(count: int = 4) -> Tensor:
    return torch.rand(
        count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7)
    )


def radii(made: torch.nn.Module, x: Tensor) -> Tensor:
    return torch.tensor(
        [one.radius for one in certify(made, x, 1e-4, bisections=6)], dtype=torch.float64
    )


def graph_of(made: torch.nn.Module) -> Graph:
    links = enumerate(chain(made))
    return Graph([Node((), None), *(Node((number,), link) for number, link in links)])


@pytest.mark.parametrize("activation", ["quadratic", "relu", "softplus"])
@pytest.mark.parametrize("depth", [1, 2])
def test_radii_grow_and_are_not_broken(
    activation: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x = network(depth, depth, activation), images()
    found = radii(made, x)
    attack = pgd(made, x, made(x).argmax(1), found.clamp(min=1e-9), 40, 3)
    assert not (attack.succeeded & (found > 0)).any()
    monkeypatch.setattr(closer, "MOST", 0)
    before = radii(made, x)
    assert (found >= before * (1 - 1e-3)).all()
    assert found.mean() > 1.02 * before.mean()


@pytest.mark.parametrize("kind", [ResidualAttention, MLP])
def test_a_planted_bound_that_is_too_small_proves_too_much(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x, along = network(3, activation="relu"), images(2), kind.along
    before = radii(made, x)

    def nothing(self: Any, value: Tensor, tangent: Any) -> Along:
        found = along(self, value, tangent)
        return Along(
            0 * found.tokens,
            lambda g: 0 * found.third(g),
            lambda g: tuple(0 * part for part in found.forms(g)),  # type: ignore[misc, return-value]
        )

    monkeypatch.setattr(kind, "along", nothing)
    monkeypatch.setattr("attnscope.certification.exact.check_pristine", lambda module: None)
    assert (radii(made, x) > before).any()


@pytest.mark.parametrize("activation", ["quadratic", "softplus", "relu"])
def test_second_derivatives_of_every_unit_are_those_of_finite_differences(activation: str) -> None:
    """The rule that an activation brings for forward mode must not lose its second order."""
    made, x = network(5, 2, activation), images(1)
    graph = graph_of(made)
    clean = CleanGraph(graph, x)
    assert clean.aim(clean.logits.argmax(1), closely=True)
    assert clean.spans is not None
    one, other = torch.triu_indices(16, 16)
    factor = torch.where(one == other, 1.0, math.sqrt(2)).double()
    d = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    d, step = d / d.norm(), 1e-4
    away = step * d.reshape(1, 1, 4, 4)
    for number, second in clean.spans.seconds.items():
        up, here, down = (graph.values(z)[number][0] for z in (x + away, x, x - away))
        found = torch.einsum("q,qnd->nd", d[one] * d[other] * factor, second)
        assert torch.allclose(found, (up + down - 2 * here) / step**2, atol=1e-5, rtol=1e-5)


def test_no_perturbation_takes_a_unit_farther_than_it_is_said_to() -> None:
    made, x, eps = network(11), images(1), 0.1
    graph = graph_of(made)
    clean = CleanGraph(graph, x)
    clean.aim(clean.logits.argmax(1), closely=True)
    assert clean.spans is not None
    g, before, reached = torch.Generator().manual_seed(0), {}, 0.0
    delta = torch.randn(2000, 16, dtype=torch.float64, generator=g)
    delta = eps * delta / delta.norm(dim=1, keepdim=True)
    moved = graph.values(x + delta.reshape(-1, 1, 4, 4))
    for number in clean.curved:
        (parent,) = graph.nodes[number].parents
        tangent = clean.spans.tangent(parent, eps, before)
        weight = torch.randn(6, 5, dtype=torch.float64, generator=g)
        first = torch.einsum("sp,pnd->snd", delta, tangent.jacobian)
        rest = ((moved[parent] - clean.values[parent] - first) @ weight.mT).abs().amax(0)
        assert tangent.beside is not None
        bound = tangent.beside(weight)
        assert (rest <= bound + 1e-9).all()
        reached = max(reached, float((rest / (bound + 1e-12)).max()))
        link = graph.nodes[number].link
        assert link is not None
        before[number] = link.layer.along(clean.values[parent], tangent)  # type: ignore[attr-defined]
    assert reached > 0.1, "the bound is empty"


class Louder(MLP):
    """A block with a forward of its own, of which `along` says nothing."""

    theorem = "product of norms"

    def forward(self, x: Tensor) -> Tensor:
        return x + 2 * torch.sin(x)

    def written(self, weight: Tensor) -> Tensor:
        return weight

    def slope(self, weight: Tensor) -> Tensor:
        return torch.full((), 3.0, dtype=weight.dtype)


def test_a_layer_with_a_forward_of_its_own_is_not_followed() -> None:
    made, x = network(2), images(1)
    assert isinstance(made.layers[2], MLP)
    own = Louder(5, 6, made.layers[2].activation, None, torch.Generator().manual_seed(0))
    chained = torch.nn.Sequential(*made.layers[:2], own, *made.layers[-1:]).double().eval()
    clean = CleanGraph(graph_of(chained), x)
    assert not clean.aim(clean.logits.argmax(1), closely=True)


def test_large_inputs_and_deaf_layers_are_left_as_they_were() -> None:
    made, x = network(2, attention="l2"), images(2)
    from attnscope.certification.telescope import Clean

    clean = Clean(chain(made), x)
    clean.aim(clean.logits.argmax(1))
    looked = Closer(chain(made), clean)
    every, eps = torch.arange(2), 0.9 * clean.limits()
    assert torch.equal(looked.certify(every, eps)[0], clean.certify(every, eps)[0])
    assert not looked.fits
