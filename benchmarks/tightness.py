"""How far tokens move through attention, proved over attacked: the shipped digits network at
108/255, and what the proof costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.certification.chain import chain
from attnscope.certification.exact import exact
from attnscope.data.pictures import images
from attnscope.nets import load, shipped
from benchmarks.timing import seconds

EPS = 108 / 255
IMAGES = 40
STEPS = 60
RESTARTS = 3


def main() -> dict[str, Any]:
    """The mean ratio must stay below 1.5, and no attack may pass the bound."""
    torch.set_num_threads(1)
    network = exact(load(shipped()).eval())
    embedding, attention = chain(network)[:2]
    x = images("digits", "test").pixels[:IMAGES].double()
    eps = torch.full((len(x),), EPS, dtype=torch.float64)
    before, tokens = embedding.over(x, eps), embedding.layer(x)

    def proved() -> Tensor:
        return attention.over(tokens, before.radius, before=before).radius

    def moved(pixels: Tensor) -> Tensor:
        return attention.layer(embedding.layer(pixels))

    bound, reached = proved(), attacked(moved, x, EPS)
    ratio = bound / reached
    (taken,) = seconds(lambda: proved())
    return {
        "movement through attention at 108/255, shipped digits network: proved / attacked": {
            "value": float(ratio.mean()),
            "at most": 1.5,
            "largest": float(ratio.max()),
            "proved": float(bound.mean()),
            "attacked": float(reached.mean()),
            "ms per image": 1000 * taken / len(x),
        },
        "images whose movement passes the bound": {
            "value": float((reached > bound).sum()),
            "at most": 0,
        },
    }


def attacked(moved: Any, x: Tensor, eps: float) -> Tensor:
    r"""The largest $|F(x + \delta) - F(x)|$, $|\delta| = \varepsilon$, that ascent finds: each step
    goes to the point of the sphere in the direction of the gradient.
    """
    clean, best = moved(x), torch.zeros(len(x), dtype=x.dtype)
    generator = torch.Generator().manual_seed(0)
    for _ in range(RESTARTS):
        step = torch.randn(x.shape, dtype=x.dtype, generator=generator)
        for _ in range(STEPS):
            size = torch.linalg.vector_norm(step.flatten(1), dim=1)
            step = (eps * step / size.reshape(-1, *[1] * (x.ndim - 1))).requires_grad_()
            far = torch.linalg.vector_norm((moved(x + step) - clean).flatten(1), dim=1)
            (step,) = torch.autograd.grad(far.sum(), step)
            best = torch.maximum(best, far.detach())
    return best
