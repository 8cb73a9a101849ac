"""A layer of one's own that keeps the contract gets what ours get, budgets by tokens included."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from certify_cases import Sine, broken
from torch import Tensor, nn

from attnscope.certification import certify
from attnscope.certification.chain import chain
from attnscope.certification.joint import Joint
from attnscope.certification.telescope import Clean
from attnscope.layers import OverBall, Remainder, Tanh
from attnscope.nets import Config, Transformer

BEND = 4 / (3 * 3**0.5)
"""The largest second derivative of tanh."""


class OwnTanh(nn.Module):
    r"""Entrywise tanh, with bounds written down here: $v \mapsto v$, and $M_{ii} = \max_r |g_{ir}|
    \max|\tanh''|$.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        same = torch.eye(x.shape[1], dtype=torch.float64).expand(len(x), -1, -1)

        def remainder(gradients: Tensor) -> Remainder:
            bent = BEND * gradients.abs().amax(-1)
            if each is None:
                return Remainder(bent.amax(-1) * eps**2 / 2)
            return Remainder(form=torch.diag_embed(bent))

        return OverBall(eps, same, remainder, "tanh is 1-Lipschitz")


class Mixing(nn.Module):
    r"""$x_i + \sum_j P_{ij}\tanh(x_j)$: tokens mix by fixed weights."""

    def __init__(self, mix: Tensor) -> None:
        super().__init__()
        self.mix = nn.Parameter(mix)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix @ torch.tanh(x)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        budget = (torch.eye(x.shape[1], dtype=torch.float64) + self.mix.abs()).expand(
            len(x), -1, -1
        )
        norm = 1 + torch.linalg.matrix_norm(self.mix, 2)

        def remainder(gradients: Tensor) -> Remainder:
            """The remainder of tanh at token j is seen through column j of P."""
            return Remainder(form=torch.diag_embed(BEND * (self.mix.mT @ gradients).abs().amax(-1)))

        return OverBall(norm * eps, budget, remainder, "mixing")


class Blind(nn.Module):
    """The same layer without its budgets."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        found = self.layer.over(x, eps)
        assert found.remainder is not None

        def remainder(gradients: Tensor) -> Remainder:
            return Remainder(found.remainder(gradients).within(eps))

        return dataclasses.replace(found, budget=None, remainder=remainder)


class OwnPatches(nn.Module):
    """Images (1, 4, 4) to 4 tokens of 4 pixels, twice as large."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.pieces(x)

    def pieces(self, x: Tensor) -> Tensor:
        stack = x.shape[:-3]
        return x.reshape(*stack, 2, 2, 2, 2).transpose(-3, -2).reshape(*stack, 4, 4)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        budget = 2 * torch.eye(4, dtype=torch.float64).expand(len(x), -1, -1)
        zero = lambda g: Remainder(torch.zeros(g.shape[:2], dtype=torch.float64))  # noqa: E731
        return OverBall(2 * eps, budget, zero, "patches", cut=self.pieces)


def vit(*own: nn.Module, patches: nn.Module | None = None) -> nn.Sequential:
    """The layers of a small transformer with others between its block and its head."""
    config = Config.vit((1, 4, 4), 3, 2, dim=4, heads=2, head_dim=2, value_dim=2, hidden=6)
    first, *block, head = Transformer(config, seed=3).layers
    return nn.Sequential(patches or first, *block, *own, head).double().eval().requires_grad_(False)


def images(count: int = 3) -> Tensor:
    return torch.rand(
        count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def radii(network: nn.Module, x: Tensor) -> Tensor:
    found = certify(network, x, 1e-3, bisections=9)
    return torch.tensor([one.radius for one in found], dtype=torch.float64)


def in_tokens(network: nn.Module, x: Tensor) -> int:
    """After how many layers there are budgets; 0 when the chain is not certified by tokens."""
    clean = Clean(chain(network), x)
    clean.aim(clean.logits.argmax(1))
    joint = Joint(clean.links, clean.values, torch.full((len(x),), 0.01, dtype=torch.float64))
    return len(joint.budgets) - 1 if joint.fits else 0


def test_an_own_layer_is_certified_like_a_built_in_of_the_same_map() -> None:
    x = images()
    own, ours, torchs = vit(OwnTanh()), vit(Tanh()), vit(nn.Tanh())
    assert in_tokens(own, x) == in_tokens(ours, x) == in_tokens(torchs, x) == 4
    radius, expected = radii(own, x), radii(ours, x)
    assert (radius <= expected * (1 + 1e-9)).all(), "ours knows the interval reached"
    assert torch.allclose(expected, radii(torchs, x), rtol=1e-6)
    assert (radius > 0).all()
    assert broken(own, x, own(x).argmax(1), radius) == 0


def mixing() -> Mixing:
    mix = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Mixing(0.4 * mix)


def test_budgets_of_an_own_layer_prove_more_than_its_radius_alone() -> None:
    x = images()
    seeing, blind = vit(mixing(), mixing()), vit(Blind(mixing()), Blind(mixing()))
    assert torch.equal(seeing(x), blind(x))
    assert in_tokens(seeing, x) == 5
    assert in_tokens(blind, x) == 3, "budgets end before the first layer without one"
    radius, without = radii(seeing, x), radii(blind, x)
    assert (radius >= without * (1 - 1e-9)).all()
    assert float((radius / without).median()) > 1.01
    assert broken(seeing, x, seeing(x).argmax(1), radius) == 0
    assert broken(blind, x, blind(x).argmax(1), without) == 0


def test_a_budget_after_a_layer_without_one_is_not_used() -> None:
    x = images()
    network = vit(Blind(mixing()), mixing())
    assert in_tokens(network, x) == 3
    assert broken(network, x, network(x).argmax(1), radii(network, x)) == 0


def test_an_own_embedding_says_how_it_cuts_its_input() -> None:
    x = images()
    network = vit(patches=OwnPatches())
    assert in_tokens(network, x) == 3
    radius = radii(network, x)
    assert (radius > 0).all()
    assert broken(network, x, network(x).argmax(1), radius) == 0


def test_budgets_need_a_remainder_of_every_layer() -> None:
    network, x = vit(Sine()), images()
    assert in_tokens(network, x) == 0
    radius = radii(network, x)
    assert (radius > 0).all()
    assert broken(network, x, network(x).argmax(1), radius) == 0


@pytest.mark.parametrize("what", ["nothing", "a form of another shape"])
def test_what_a_layer_returns_is_checked(what: str) -> None:
    class Wrong(OwnTanh):
        def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
            if what == "nothing":
                return None  # type: ignore[return-value]
            found = super().over(x, eps, each)
            return dataclasses.replace(
                found, remainder=lambda g: Remainder(form=torch.zeros(3, 4, 4))
            )

    with pytest.raises((TypeError, ValueError), match=r"layer 3 \(Wrong\)|OverBall|form"):
        certify(vit(Wrong()), images(2), 0.05)
