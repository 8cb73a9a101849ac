"""The campaign against certificates: every proved radius is attacked at that radius and beyond.

Attention variants and torch's encoders, depths 1 to 3, norm layers before and after, pooling,
activations, inputs in single precision, images at the edge of [0, 1]. `python -m benchmarks
soundness` attacks 5,000 radii, in pieces that are kept; `campaign(count)` a part of them.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attacks.projected import pgd
from attnscope.certification import certify
from attnscope.files import write_atomically
from attnscope.layers import ClassToken, FirstToken, MeanToken, Positions, Tokens
from attnscope.nets import Config, Transformer

RADII = 5000
PIECE = 250
TOGETHER = 10
"""Images of one network."""
NETWORKS = 2 * 48 + PIECE // TOGETHER
"""Networks from the first of one piece to the first of the next. There are 48 pairs of kind and
depth, and a piece takes about 25 networks: each begins among the pairs where the last one ended.
"""
CAP = 1200.0
"""Seconds of CPU time after which no further piece is begun."""
BEYOND = (1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Attacks at these multiples of the proved radius: the first must fail, a later one says how much
is left between proof and attack.
"""
STRENGTH = (20, 2)
"""Steps and starts of every attack."""


def main() -> dict[str, Any]:
    """No radius may be broken. Pieces are kept in `soundness-DATE.json` as they end, and not run
    again on that day; `ATTNSCOPE_SECONDS` of CPU time are not exceeded by more than one of them.
    """
    torch.set_num_threads(1)
    allowed = float(os.environ.get("ATTNSCOPE_SECONDS", CAP))
    path = Path(__file__).parent / f"soundness-{datetime.date.today().isoformat()}.json"
    pieces = json.loads(path.read_text()) if path.exists() else {}
    begun = time.process_time()
    for number in range(RADII // PIECE):
        if str(number) in pieces or time.process_time() - begun > allowed:
            continue
        attacked, broken, worst = campaign(PIECE, number * NETWORKS)
        pieces[str(number)] = {
            "first": number * NETWORKS,
            "attacked": attacked,
            "broken": broken,
            "worst": worst,
        }
        write_atomically(path, json.dumps(pieces, indent=1) + "\n")
    attacked, broken = (
        sum(piece[part] for piece in pieces.values()) for part in ("attacked", "broken")
    )
    worst = max((piece["worst"] for piece in pieces.values()), default=0.0)
    return {
        "proved radii that were attacked": {"value": float(attacked)},
        "certificates broken": {"value": float(broken), "at most": 0},
        "largest proved radius / adversarial distance found": {"value": worst, "at most": 1},
    }


def campaign(count: int, start: int = 0, together: int = TOGETHER) -> tuple[int, int, float]:
    """How many radii were attacked, how many were broken, and the largest ratio of a proved radius
    to the distance of a misread image.
    """
    attacked, broken, worst = 0, 0, 0.0
    for seed, network in networks(start):
        x = pictures(seed)[:together]
        labels = network(x.double()).argmax(1)
        found = certify(network, x, 1e-4, labels, bisections=6)
        radius = torch.tensor([one.radius for one in found], dtype=torch.float64)
        alive = torch.nonzero(radius > 0)[:, 0][: count - attacked]
        attacked += len(alive)
        if len(alive):
            hit = misread(network, x[alive].double(), labels[alive], radius[alive])
            broken += int(hit[0].sum())
            worst = max(
                worst, *(1 / times for times, of in zip(BEYOND, hit, strict=True) if of.any()), 0.0
            )
        if attacked >= count:
            return attacked, broken, worst
    raise AssertionError("networks never end")


def misread(network: nn.Module, x: Tensor, labels: Tensor, radius: Tensor) -> Tensor:
    """Whether an attack succeeds, for each of BEYOND and each image: all of them in one stack."""
    times = torch.tensor(BEYOND, dtype=torch.float64)
    balls = (times[:, None] * radius).flatten()
    images = x.repeat(len(times), *(1,) * (x.ndim - 1))
    hit = pgd(network, images, labels.repeat(len(times)), balls, *STRENGTH).succeeded
    return hit.reshape(len(times), -1)


def pictures(seed: int) -> Tensor:
    """Random images 1 x 4 x 4; a third at the edge of [0, 1], half of all sets in float32."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(TOGETHER, 1, 4, 4, dtype=torch.float64, generator=generator)
    x[::3] = (2 * x[::3] - 0.5).clamp(0, 1)
    return x.float() if random.Random(f"pictures {seed}").random() < 0.5 else x


def networks(start: int = 0) -> Iterator[tuple[int, nn.Module]]:
    """All kinds in turn, for ever, with other weights each time; what is drawn beside the kind does
    not depend on it.
    """
    kinds = [
        *itertools.product(("softmax", "l2", "sigmoid"), ("none", "centre", "layer", "rms")),
        *itertools.product(("encoder",), ("pre gelu", "pre relu", "post gelu", "post relu")),
    ]
    for seed in itertools.count(start):
        (family, norm), depth = kinds[seed % len(kinds)], 1 + seed // len(kinds) % 3
        torch.manual_seed(seed)
        draw = random.Random(seed)
        made = (
            encoder(norm, depth, draw)
            if family == "encoder"
            else ours(family, norm, depth, seed, draw)
        )
        with torch.no_grad():
            for part in made.parameters():
                part.add_(0.2 * torch.randn_like(part))
        yield seed, made.double().eval()


def ours(variant: str, norm: str, depth: int, seed: int, draw: random.Random) -> Transformer:
    config = Config.vit(
        (1, 4, 4), 3, 2, dim=4, heads=2, head_dim=2, value_dim=2, hidden=6, depth=depth, norm=norm,
        attention=variant, options={"tokens": 4} if variant == "sigmoid" else {},
        activation=draw.choice(("relu", "quadratic", "softplus")),
        mlp=draw.choice(("residual", "sll", "convex")),
        pooling=draw.choice(("mean", "flatten")),
    )  # fmt: skip
    return Transformer(config, seed=seed)


def encoder(kind: str, depth: int, draw: random.Random) -> nn.Sequential:
    """torch's encoder with a class token or a mean."""
    place, activation = kind.split()
    layer = nn.TransformerEncoderLayer(
        4, 2, 6, 0.0, activation, 1e-3, batch_first=True, norm_first=place == "pre"
    )
    norm = nn.LayerNorm(4) if place == "pre" else None
    body = nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False)
    named = draw.random() < 0.5
    first = [ClassToken(torch.randn(1, 4))] if named else []
    return nn.Sequential(
        nn.Conv2d(1, 4, 2, 2), Tokens(), *first, Positions(torch.randn(4 + named, 4)), body,
        FirstToken() if named else MeanToken(), nn.Linear(4, 3),
    )  # fmt: skip
