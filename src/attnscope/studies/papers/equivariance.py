r"""Permutation equivariance of every block: $f(PX) = Pf(X)$ for attention without a mask, norms,
MLPs and the residual stack of them; a causal mask and positions break it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attnscope.attention import Heads, variants
from attnscope.flows import residual
from attnscope.measures import Particles
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._defects import DefectFigure, relative

CAUSAL, POSITIONS = "causal softmax", "softmax of x + position"


class Equivariance(DefectFigure):
    """Every block of a transformer commutes with permutations of the tokens; a mask does not."""

    name = "equivariance"
    figure = "permutation equivariance of every block"
    identity = "f(PX) = P f(X)"

    def cases(self) -> Mapping[str, bool]:
        exact = [*(f"{name} attention" for name in variants()), "LayerNorm", "MLP", "three blocks"]
        return dict.fromkeys(exact, True) | {CAUSAL: False, POSITIONS: False}

    def defect(self, case: str, x: Tensor, generator: torch.Generator) -> float:
        block = _block(case, x, generator)
        order = torch.arange(len(x)).roll(
            1 + int(torch.randint(len(x) - 1, (1,), generator=generator))
        )
        return relative(block(x[order]), block(x)[order])


def _block(case: str, x: Tensor, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    n, d = x.shape
    query, key, value, output = (0.3 * normal(generator, 2, d, d) for _ in range(4))
    heads = Heads(query, key, value, output)
    kind = variants()[case.removesuffix(" attention") if case.endswith("attention") else "softmax"]
    attention = kind(heads, causal=case == CAUSAL)
    norm = nn.LayerNorm(d, dtype=torch.float64)
    up, down = normal(generator, 2, d, d) / d**0.5
    positions = normal(generator, n, d)

    def mlp(at: Tensor) -> Tensor:
        return torch.relu(at @ up.mT) @ down.mT

    def blocks(at: Tensor) -> Tensor:
        return residual(attention, Particles(at), 0.5, 3, pre_norm=norm, mlp=mlp).final.x

    others: dict[str, Callable[[Tensor], Tensor]] = {
        "LayerNorm": norm,
        "MLP": mlp,
        "three blocks": blocks,
        POSITIONS: lambda at: attention(at + positions, Particles(at + positions)),
    }
    return torch.no_grad()(others.get(case, lambda at: attention(at, Particles(at))))
