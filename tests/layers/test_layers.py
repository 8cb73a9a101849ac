"""The bounds of every layer hold against attack, and are not empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ascent import largest
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds import NoBound
from attnscope.layers import (
    GELU,
    SLL,
    Centre,
    ConvexPotential,
    Entrywise,
    FeedForward,
    Head,
    Layer,
    LayerNorm,
    LeakyReLU,
    PatchEmbedding,
    Positions,
    QuadraticReLU,
    ReLU,
    ResidualAttention,
    ResidualMLP,
    RMSNorm,
    SelfAttention,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
    TanhGELU,
    TokenEmbedding,
    affine,
)

N, D, M = 5, 4, 7


def radius(layer: Layer, x: Tensor, eps: float) -> Tensor:
    """How far the output for one input can move."""
    return layer.over(x[None], torch.tensor([eps], dtype=torch.float64)).radius[0]


def remainder(layer: Layer, x: Tensor, eps: float, directions: Tensor) -> Tensor:
    """The remainder of one input against each of several directions."""
    size = torch.tensor([eps], dtype=torch.float64)
    found = layer.over(x[None], size)
    assert found.remainder is not None
    return found.remainder(directions[:, None]).within(size)[:, 0]


def randomised(layer: Layer, generator: torch.Generator, size: float = 0.7) -> Layer:
    layer.double()
    with torch.no_grad():
        for part in layer.parameters():
            part.copy_(size * torch.randn(part.shape, dtype=torch.float64, generator=generator))
    return layer


def attention(
    g: torch.Generator, norm: Centre | LayerNorm | None = None, step: float = 1.0
) -> ResidualAttention:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    bias = {"query_bias": draw(2, 3), "output_bias": draw(D), "position_bias": draw(2, N, N)}
    heads = Heads(draw(2, 3, D), draw(2, 3, D), draw(2, 2, D), draw(2, D, 2), **bias)
    return ResidualAttention(Softmax, {}, heads, causal=False, norm=norm, step=step)


def alone(g: torch.Generator) -> SelfAttention:
    """Attention as a branch, with every bias."""
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)  # noqa: E731
    biases = (draw(2, 3), draw(2, 3), draw(2, 2), draw(D))
    return SelfAttention(Heads(draw(2, 3, D), draw(2, 3, D), draw(2, 2, D), draw(2, D, 2), *biases))


def feed_forward(g: torch.Generator, act: Entrywise) -> FeedForward:
    return FeedForward(
        torch.randn(M, D, generator=g), None, act, torch.randn(M, D, generator=g), None
    )


MAKERS: dict[str, Callable[[torch.Generator], Layer]] = {
    "sll quadratic": lambda g: SLL(D, M, QuadraticReLU(0.5), None, g),
    "sll relu": lambda g: SLL(D, M, ReLU(), None, g),
    "sll centred": lambda g: SLL(D, M, QuadraticReLU(0.5), Centre(), g),
    "convex softplus": lambda g: ConvexPotential(D, M, Softplus(2.0), None, g),
    "convex relu": lambda g: ConvexPotential(D, M, ReLU(), None, g),
    "residual quadratic": lambda g: ResidualMLP(D, M, QuadraticReLU(1.0), None, g, step=0.5),
    "residual relu centred": lambda g: ResidualMLP(D, M, ReLU(), Centre(), g),
    "attention": lambda g: attention(g),
    "attention centred, half step": lambda g: attention(g, Centre(), 0.5),
    "centre": lambda g: Centre(),
    "flatten head": lambda g: Head(N, D, 3, "flatten", g),
    "mean head": lambda g: Head(N, D, 3, "mean", g),
    "token head": lambda g: Head(N, D, 3, "tokens", g),
    "quadratic relu": lambda g: QuadraticReLU(0.5),
    "relu": lambda g: ReLU(),
    "leaky relu, steep": lambda g: LeakyReLU(3.0),
    "softplus": lambda g: Softplus(2.0),
    "tanh": lambda g: Tanh(),
    "sigmoid": lambda g: Sigmoid(),
    "patches": lambda g: PatchEmbedding((1, 4, 6), 2, 5, g),
    "layer norm": lambda g: LayerNorm(D),
    "rms norm": lambda g: RMSNorm(D),
    "gelu": lambda g: GELU(),
    "gelu, tanh": lambda g: TanhGELU(),
    "silu": lambda g: SiLU(),
    "feed forward": lambda g: feed_forward(g, GELU()),
    "feed forward relu": lambda g: feed_forward(g, ReLU()),
    "attention alone": lambda g: alone(g),
    "positions": lambda g: Positions(torch.zeros(N, D)),
}
SMOOTH = [
    name for name in MAKERS if any(word in name for word in ("quadratic", "softplus", "attention"))
]


def made(name: str, g: torch.Generator) -> tuple[Layer, Tensor]:
    layer = randomised(MAKERS[name](g), g)
    shape = (1, 4, 6) if name == "patches" else (N, D)
    return layer, torch.randn(shape, dtype=torch.float64, generator=g)


@pytest.mark.parametrize("eps", [0.05, 0.8])
@pytest.mark.parametrize("name", MAKERS)
def test_no_attack_moves_the_output_further_than_the_sensitivity(
    name: str, eps: float, generator: torch.Generator
) -> None:
    layer, x = made(name, generator)
    clean = layer(x).detach()
    reached = largest(
        lambda d: (layer(x + d) - clean).flatten(1).norm(dim=1), tuple(x.shape), eps, generator
    )
    bound = radius(layer, x, eps).item()
    assert reached <= bound
    loose = any(word in name for word in ("attention", "residual", "norm", "feed forward", "lu"))
    assert reached >= (0.03 if loose else 0.4) * bound, "the bound is empty"


@pytest.mark.parametrize("eps", [0.05, 0.8])
@pytest.mark.parametrize("name", MAKERS)
def test_no_attack_bends_a_layer_further_than_its_rest(
    name: str, eps: float, generator: torch.Generator
) -> None:
    layer, x = made(name, generator)
    found = layer.over(x[None], torch.tensor([eps], dtype=torch.float64))
    if found.rest is None:
        assert "attention" in name or found.remainder is affine
        return
    clean = layer(x).detach()

    def bent(d: Tensor) -> Tensor:
        first = torch.func.jvp(lambda z: layer(z), (x.expand_as(d).clone(),), (d,))[1]
        return (layer(x + d) - clean - first).flatten(1).square().sum(1).add(1e-30).sqrt()

    reached = largest(bent, tuple(x.shape), eps, generator, steps=30)
    assert reached <= float(found.rest()[0].detach()) + 1e-12


@pytest.mark.parametrize("eps", [0.05, 0.8])
@pytest.mark.parametrize("name", MAKERS)
def test_no_attack_lowers_a_margin_further_than_the_remainder(
    name: str, eps: float, generator: torch.Generator
) -> None:
    layer, x = made(name, generator)
    directions = torch.randn(3, *layer(x).shape, dtype=torch.float64, generator=generator)
    bounds = remainder(layer, x, eps, directions)
    assert bounds.shape == (3,)
    for g, bound in zip(directions, bounds.tolist(), strict=True):
        point = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((layer(point) * g).sum(), point)
        value = (layer(x) * g).sum().detach()

        def lowered(
            d: Tensor, value: Tensor = value, slope: Tensor = slope, g: Tensor = g
        ) -> Tensor:
            return value + (slope * d).flatten(1).sum(1) - (layer(x + d) * g).flatten(1).sum(1)

        reached = largest(lowered, tuple(x.shape), eps, generator)
        assert reached <= bound + 1e-12
        assert name not in SMOOTH or eps > 0.1 or reached >= 0.01 * bound, "the bound is empty"


@pytest.mark.parametrize("step", [0.25, 3.0])
def test_the_residual_counts_once_whatever_the_step(
    step: float, generator: torch.Generator
) -> None:
    layer = attention(generator, step=step)
    with torch.no_grad():
        layer.output.mul_(1e-6)
    x = torch.randn(N, D, dtype=torch.float64, generator=generator)
    assert 0.1 <= radius(layer, x, 0.1).item() <= 0.1 * (1 + 1e-3)


@pytest.mark.parametrize("block", [SLL, ConvexPotential])
@pytest.mark.parametrize("activation", [QuadraticReLU(0.3), ReLU(), Softplus(5.0)])
def test_blocks_are_1_lipschitz_whatever_their_weights(
    block: type, activation: torch.nn.Module, generator: torch.Generator
) -> None:
    for size in (0.1, 1.0, 10.0):
        layer = randomised(block(D, M, activation, None, generator), generator, size)
        for _ in range(5):
            x = torch.randn(1, D, dtype=torch.float64, generator=generator)
            jacobian = torch.func.jacrev(lambda row, layer=layer: layer(row[None])[0])(x[0])
            assert float(torch.linalg.matrix_norm(jacobian.detach(), 2)) <= 1 + 1e-9


@pytest.mark.parametrize("activation", [QuadraticReLU(0.3), ReLU(), Softplus(5.0)])
def test_curvature_of_an_activation_bounds_its_remainder(activation: torch.nn.Module) -> None:
    u = torch.linspace(-2, 2, 401, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(activation(u).sum(), u)
    for theta in (0.01, 0.3, 1.5):
        t = torch.linspace(-theta, theta, 301, dtype=torch.float64)[:, None]
        remainder = activation(u + t) - activation(u) - slope * t
        curvature = activation.curvature(u, torch.full_like(u, theta))
        kinked = activation.kinked(u, torch.full_like(u, theta))
        linear = torch.zeros_like(u) if kinked is None else kinked.double()
        assert (remainder <= curvature * t.square() / 2 + linear * t.abs() + 1e-12).all()
        if activation.cornered:
            chord = activation.chord(u, torch.full_like(u, theta))
            assert (remainder <= chord * t.abs() + 1e-12).all()
            assert torch.allclose(remainder[[0, -1]].amax(0), chord * theta, atol=1e-12)


def test_corners_of_units_that_read_apart_are_exact(generator: torch.Generator) -> None:
    """With orthogonal rows and one token the worst step is known: Pythagoras over the units."""
    layer = randomised(ResidualMLP(D, D, ReLU(), None, generator), generator, 1.0)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(D))
        layer.bias.zero_()
    x, e = torch.full((1, 1, D), 1e-9, dtype=torch.float64), 0.3
    g = torch.randn(1, 1, 1, D, dtype=torch.float64, generator=generator)
    layer.requires_grad_(False)
    pulls = (-(g[0, 0, 0] @ layer.written(layer.weight).double().mT)).clamp(min=0)
    eps = torch.tensor([e], dtype=torch.float64)
    found = layer.over(x, eps).remainder(g).within(eps)
    expected = e * float(torch.linalg.vector_norm(pulls))
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_quadratic_relu_has_a_lipschitz_slope() -> None:
    act = QuadraticReLU(0.5)
    u = torch.linspace(-2, 2, 4001, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(act(u).sum(), u)
    assert torch.allclose(slope, ((u + 0.5) / 1.0).clamp(0, 1).detach())
    assert float(act(torch.tensor(3.0))) == 3.0
    assert float(act(torch.tensor(-3.0))) == 0.0


def test_a_stack_of_inputs_and_radii_equals_a_loop(generator: torch.Generator) -> None:
    eps = torch.tensor([0.1, 0.4, 0.2], dtype=torch.float64)
    for name in ("sll quadratic", "residual relu centred", "convex relu", "flatten head", "tanh"):
        layer, _ = made(name, generator)
        x = torch.randn(3, N, D, dtype=torch.float64, generator=generator)
        g = torch.randn(2, *layer(x).shape, dtype=torch.float64, generator=generator)
        found = layer.over(x, eps)
        curved = found.remainder(g).within(eps)
        assert found.radius.shape == (3,)
        assert curved.shape == (2, 3)
        for i, e in enumerate(eps.tolist()):
            assert torch.allclose(found.radius[i], radius(layer, x[i], e))
            assert torch.allclose(curved[:, i], remainder(layer, x[i], e, g[:, i]))


@pytest.mark.parametrize("norm", [LayerNorm(D), RMSNorm(D)])
def test_blocks_with_a_norm_layer_have_no_bound_whole_and_the_same_parts(
    norm: LayerNorm | RMSNorm, generator: torch.Generator
) -> None:
    x = torch.randn(N, D, dtype=torch.float64, generator=generator)
    for layer in (
        attention(generator, norm),
        attention(generator, norm, 0.5),
        ResidualMLP(D, M, ReLU(), norm, generator),
        SLL(D, M, ReLU(), norm, generator),
    ):
        layer.double()
        with pytest.raises(NoBound, match="centre"):
            radius(layer, x, 0.1)
        with pytest.raises(NoBound, match="centre"):
            layer.over(x[None], torch.ones(1), torch.ones(1, N))
        parts = layer.parts()
        assert parts is not None
        assert torch.allclose(parts.double()(x[None])[0], layer(x), rtol=1e-12)


def test_token_numbers_have_no_ball(generator: torch.Generator) -> None:
    with pytest.raises(NoBound, match="token numbers"):
        radius(TokenEmbedding(5, 4, D, generator), torch.zeros(4), 0.1)


def test_patches_are_the_pixels_of_the_image_tile_by_tile(generator: torch.Generator) -> None:
    layer = PatchEmbedding((2, 4, 6), 2, 8, generator)
    image = torch.rand(3, 2, 4, 6, generator=generator)
    patches = layer.patches(image)
    assert patches.shape == (3, 6, 8)
    assert torch.equal(patches[1, 4], image[1, :, 2:4, 2:4].flatten())
    assert torch.allclose(layer.weight.mT @ layer.weight, torch.eye(8), atol=1e-5), (
        "it starts as an isometry"
    )
