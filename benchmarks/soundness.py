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
NETWORKS = 96
"""Networks from the first of one piece to the first of the next: all kinds at all depths, twice."""
CAP = 1200.0
"""Seconds of CPU time after which no further piece is begun."""
TOGETHER = 10
"""Images of one network."""
BEYOND = (1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Attacks at these multiples of the proved radius: the first must fail, a later one says how much
is left between proof and attack.
"""


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
        pieces[str(number)] = {"attacked": attacked, "broken": broken, "worst": worst}
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
        for times in BEYOND:
            if len(alive):
                some = x[alive].double(), labels[alive], times * radius[alive]
                strength = (20, 2) if times == 1.0 else (10, 1)
                hit = pgd(network, *some, *strength).succeeded
                broken += int(hit.sum()) if times == 1.0 else 0
                worst = max(worst, 1 / times) if bool(hit.any()) else worst
                alive = alive[~hit]
        if attacked >= count:
            return attacked, broken, worst
    raise AssertionError("networks never end")


def pictures(seed: int) -> Tensor:
    """Random images 1 x 4 x 4; a third at the edge of [0, 1], every other set in float32."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(TOGETHER, 1, 4, 4, dtype=torch.float64, generator=generator)
    x[::3] = (2 * x[::3] - 0.5).clamp(0, 1)
    return x.float() if seed % 2 else x


def networks(start: int = 0) -> Iterator[tuple[int, nn.Module]]:
    """All kinds in turn, for ever, with other weights each time."""
    kinds = [
        *itertools.product(("softmax", "l2", "sigmoid"), ("none", "centre", "layer", "rms")),
        *itertools.product(("encoder",), ("pre gelu", "pre relu", "post gelu", "post relu")),
    ]
    for seed in itertools.count(start):
        (family, norm), depth = kinds[seed % len(kinds)], 1 + seed // len(kinds) % 3
        torch.manual_seed(seed)
        made = (
            encoder(norm, depth, seed) if family == "encoder" else ours(family, norm, depth, seed)
        )
        with torch.no_grad():
            for part in made.parameters():
                part.add_(0.2 * torch.randn_like(part))
        yield seed, made.double().eval()


def ours(variant: str, norm: str, depth: int, seed: int) -> Transformer:
    config = Config.vit(
        (1, 4, 4), 3, 2, dim=4, heads=2, head_dim=2, value_dim=2, hidden=6, depth=depth, norm=norm,
        attention=variant, options={"tokens": 4} if variant == "sigmoid" else {},
        activation=("relu", "quadratic", "softplus")[seed % 3],
        mlp=("residual", "sll", "convex")[seed // 3 % 3],
        pooling=("mean", "flatten")[seed % 2],
    )  # fmt: skip
    return Transformer(config, seed=seed)


def encoder(kind: str, depth: int, seed: int) -> nn.Sequential:
    """torch's encoder with a class token or a mean."""
    place, activation = kind.split()
    layer = nn.TransformerEncoderLayer(
        4, 2, 6, 0.0, activation, 1e-3, batch_first=True, norm_first=place == "pre"
    )
    norm = nn.LayerNorm(4) if place == "pre" else None
    body = nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False)
    named = seed % 2 == 0
    first = [ClassToken(torch.randn(1, 4))] if named else []
    return nn.Sequential(
        nn.Conv2d(1, 4, 2, 2), Tokens(), *first, Positions(torch.randn(4 + named, 4)), body,
        FirstToken() if named else MeanToken(), nn.Linear(4, 3),
    )  # fmt: skip
