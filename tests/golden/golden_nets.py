"""Networks: what invertible stacks prove, bounds of layers, certified radii and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from golden_source import Group, Recipe, Source, number, overwrite
from torch import Tensor, nn

import attnscope as asc
from attnscope.data import images
from attnscope.nets.invertible import Invertible

IMAGE = (1, 6, 6)
EPS = (1e-3, 0.01, 0.05, 0.2)

STACKS: tuple[tuple[Recipe, float | None, bool], ...] = (
    (Recipe("softmax", 1, 8, 4, 1.0), 1.0, False),
    (Recipe("softmax", 1, 8, 4, 1.0), 0.2, False),
    (Recipe("softmax", 2, 8, 4, 1.0, k=2, v=3, biases=True), 1.0, False),
    (Recipe("softmax", 3, 8, 6, 1.0, k=2, v=2), 3.0, True),
    (Recipe("softmax", 8, 8, 8, 1.0, k=1, v=1), 2.0, False),
    (Recipe("softmax", 1, 8, 4, 1.0, causal=True), 1.0, False),
    (Recipe("softmax", 2, 8, 4, 1.0, k=2, v=3, biases=True, causal=True), 2.0, True),
    (Recipe("softmax", 2, 8, 4, 1.0, k=2, v=3, places="rotary", causal=True), 1.0, False),
    (Recipe("softmax", 2, 8, 4, 1.0, k=2, v=3, places="bias"), 1.0, False),
    (Recipe("sigmoid", 1, 8, 4, 1.0), 1.0, False),
    (Recipe("sigmoid", 2, 8, 4, 1.0, k=2, v=3, biases=True, options={"tokens": 8}), 2.0, False),
    (Recipe("sigmoid", 3, 8, 6, 1.0, k=2, v=2, causal=True, options={"bias": -0.5}), 1.0, True),
    (Recipe("l2", 1, 8, 4, 1.0, tied=True), None, False),
    (Recipe("l2", 3, 20, 6, 1.0, k=2, v=2, tied=True), None, False),
    (Recipe("l2", 2, 8, 4, 1.0, k=2, v=3, biases=True, tied=True, causal=True), None, False),
    (Recipe("l2", 2, 8, 4, 1.0, k=2, v=3, tied=True), 1.0, True),
    (Recipe("l2", 1, 8, 4, 1.0), 0.5, False),
    (Recipe("l2", 2, 8, 4, 1.0, k=2, v=3, biases=True), 0.5, True),
)
"""Attention, the radius of the ball (None: everywhere), and whether tokens are squashed into it."""


def invertible() -> Group:
    """Constants, scales and displacements; volumes of layers that need no scaling."""
    for recipe, radius, squash in STACKS:
        first, second = recipe.build()[0], replace(recipe, strength=0.7).build()[0]
        for contraction in (0.5, 0.9):
            stack = Invertible([first, second], recipe.n, radius, contraction, squash=squash)
            steps = stack.steps()
            key = f"{recipe.name}/R={radius} contraction={contraction:g}{' squash' * squash}"
            scales = [
                _scale(step.attention, one)
                for step, one in zip(steps, (first, second), strict=True)
            ]
            yield f"{key}/constant", "bound", steps[0].constant
            yield f"{key}/scale", "certificate", scales[0]
            radii = stack.radii()
            if radii[0] is None or radii[1] is None or squash:
                yield f"{key}/second scale", "certificate", scales[1]
            else:  # how far a layer moves a token, apart from its scale, which may grow
                yield f"{key}/displacement", "bound", (radii[1] - radii[0]) / scales[0]
    for variant in ("softmax", "sigmoid", "l2"):
        weak = Recipe(variant, 2, 4, 4, 1.0, k=2, v=2, tied=variant == "l2", strength=0.05).build()[
            0
        ]
        heads = weak.heads
        weak = type(weak)(
            asc.Heads(heads.query, heads.key, 0.05 * heads.value, heads.output, scale=heads.scale)
        )
        stack = Invertible([weak, weak], 4, None if variant == "l2" else 1.0, 0.99)
        assert math.isclose(_scale(stack.steps()[0].attention, weak), 1)
        x = Source(f"volume {variant}").in_ball(4, 4, 1.0)
        volume = stack.log_determinant(x, "exact")
        yield f"volume/{variant}/log-determinant", "constant", number(volume.value)
        yield f"volume/{variant}/image", "constant", number(volume.y)
        yield f"volume/{variant}/back again", "constant", number(stack.inverse(volume.y).x)
        yield f"volume/{variant}/constant", "bound", stack.steps()[0].constant


def _scale(scaled: asc.Attention, given: asc.Attention) -> float:
    """The factor that a stack puts before an attention."""
    sizes = [torch.linalg.matrix_norm(one.heads.values.detach()).sum() for one in (scaled, given)]
    return float(sizes[0] / sizes[1])


NETWORKS: dict[str, dict[str, Any]] = {
    "softmax sll": {},
    "softmax sll deep": {"depth": 2, "mlp": "sll", "activation": "softplus"},
    "softmax convex relu": {"mlp": "convex", "activation": "relu"},
    "softmax residual mean": {"mlp": "residual", "pooling": "mean"},
    "softmax centre": {"norm": "centre", "activation": "softplus"},
    "softmax alone": {"mlp": "none", "position_bias": False},
    "softmax one head": {"heads": 1, "mlp": "none", "pooling": "mean"},
    "softmax eight heads": {"heads": 8, "head_dim": 2, "value_dim": 2, "step": 0.5},
    "l2 sll": {"attention": "l2"},
    "l2 convex mean": {"attention": "l2", "mlp": "convex", "pooling": "mean"},
    "sigmoid sll": {"attention": "sigmoid"},
    "sigmoid tokens residual": {
        "attention": "sigmoid",
        "options": {"tokens": 9},
        "mlp": "residual",
    },
    "no attention": {"attention": "none", "mlp": "sll", "depth": 2},
    "learned embedding": {"learned_embedding": True, "mlp": "convex", "activation": "softplus"},
}


def _transformer(name: str) -> asc.nets.Transformer:
    parts = {"dim": 6, "heads": 2, "head_dim": 3, "value_dim": 3, "hidden": 10, **NETWORKS[name]}
    network = asc.nets.Transformer(asc.nets.Config.vit(IMAGE, 4, 2, **parts)).double()
    overwrite(network, Source(f"network {name}"), 0.7)
    return network.eval().requires_grad_(False)


def layers() -> Group:
    """What every layer of these networks says of itself."""
    for name in NETWORKS:
        network, source = _transformer(name), Source(f"layers {name}")
        x = source.uniform(2, *IMAGE)
        for place, layer in enumerate(network.layers):
            made = layer(x)
            direction = source.normal(2, *made.shape)
            key = f"{name}/layer {place}"
            for eps in (0.01, 0.5):
                radii = torch.full((2,), eps, dtype=torch.float64)
                over = layer.over(x, radii)
                yield f"{key}/eps={eps:g}/movement", "bound", number(over.radius)
                left = over.remainder(direction).within(radii)
                yield f"{key}/eps={eps:g}/remainder", "bound", number(left)
            x = made
        yield f"{name}/logits", "constant", number(x)
        for place, norms in enumerate(network.attention_norms()):
            yield f"{name}/norms of A, {place}", "bound", number(norms)
    language = asc.nets.Config.language(20, 7, dim=6, heads=2, head_dim=3, value_dim=3, hidden=10)
    model = asc.nets.Transformer(language).double()
    overwrite(model, Source("language"))
    yield "language/logits", "constant", number(model(Source("sentence").ids(7, 20))[-1])


def certificates() -> Group:
    """Radii, margins and verdicts of transformers."""
    for name in NETWORKS:
        x = Source(f"images {name}").uniform(3, *IMAGE)
        yield from _certified(name, _transformer(name), x, EPS, 8)


def digits() -> Group:
    """The network that comes with the package on the first images of its test set."""
    network = asc.nets.load(asc.nets.shipped()).double().eval()
    test = images("digits", "test").first(5)
    yield from _certified(
        "shipped", network, test.pixels.double(), (0.05, 0.25, 0.5), 4, test.labels
    )
    control = asc.nets.load(asc.nets.shipped() / "control").double().eval()
    yield from _certified(
        "control", control, test.pixels.double(), (0.05, 0.25, 0.5), 4, test.labels
    )


def plain() -> Group:
    """Networks of torch's own layers."""
    for name, network, shape in (
        (
            "linear",
            nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Identity(), nn.Linear(7, 4)),
            IMAGE,
        ),
        ("relu", nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3)), (8,)),
        ("leaky", nn.Sequential(nn.Linear(8, 12), nn.LeakyReLU(0.2), nn.Linear(12, 3)), (8,)),
        (
            "tanh",
            nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)),
            (8,),
        ),
        (
            "sigmoid",
            nn.Sequential(nn.Linear(8, 9), nn.Sigmoid(), nn.Dropout(), nn.Linear(9, 3)),
            (8,),
        ),
        ("convolution", _convolution(nn.Conv2d(1, 4, 3, padding=1), 36), IMAGE),
        ("strided", _convolution(nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), 4), IMAGE),
        ("dilated", _convolution(nn.Conv2d(1, 2, 2, dilation=2), 8), IMAGE),
        ("grouped", _convolution(nn.Conv2d(2, 4, (1, 3), groups=2), 24), (2, 6, 6)),
    ):
        source = Source(f"plain {name}")
        network = network.double().eval()
        overwrite(network, source)
        yield from _certified(name, network, source.uniform(4, *shape), EPS, 30)


def _convolution(first: nn.Conv2d, features: int) -> nn.Sequential:
    rest = (
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 6),
        nn.Tanh(),
        nn.Linear(6, 3),
    )
    return nn.Sequential(first, *rest)


def _certified(
    key: str,
    network: nn.Module,
    x: Tensor,
    eps: Sequence[float],
    tries: int,
    labels: Tensor | None = None,
) -> Group:
    found = asc.certify(network, x, list(eps), labels, bisections=tries)
    yield f"{key}/radius", "certificate", [one.radius for one in found[0]]
    yield f"{key}/margin", "certificate", [one.margin for one in found[0]]
    for one, row in zip(eps, found, strict=True):
        yield f"{key}/verdict at {one:g}", "certificate", [float(each.verdict) for each in row]
