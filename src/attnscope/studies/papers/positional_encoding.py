r"""Positions are what tells sequences from sets: sinusoidal waves added to the tokens, or the pair
$[x_i, i/n]$ of the masked mean field. Without them a permuted sentence is the same sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.measures import Particles
from attnscope.studies.drawing import new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._defects import DefectFigure, relative
from attnscope.studies.table import Table

NONE, WAVES, PAIR, MASK = "no positions", "sinusoidal waves", "[x_i, i/n]", "[x_i, i/n] and a mask"
PREFIX = "a prefix under the mask on [0, 1] x R^d"


class PositionalEncoding(DefectFigure):
    """Positional encodings, among them the pair of token and place, tell sequences from sets."""

    name = "positional_encoding"
    figure = "positional encodings"
    identity = "f does not see the order"

    def cases(self) -> Mapping[str, bool]:
        # the identity is "the mean of the outputs does not change with the order"
        return {NONE: True, WAVES: False, PAIR: False, MASK: False, PREFIX: True}

    def defect(self, case: str, x: Tensor, generator: torch.Generator) -> float:
        n, d = x.shape
        if case == PREFIX:  # the first half alone, and as a part of the whole
            attention = Softmax(
                Heads.from_matrices(*(0.5 * normal(generator, 2, d, d))), causal=True
            )
            places = torch.arange(1, n + 1, dtype=x.dtype) / n
            masses = torch.full((n,), 1 / n, dtype=x.dtype)
            half = n // 2
            whole = attention(x, Particles(x, masses, places))[:half]
            alone = Particles(x[:half], masses[:half] * n / half, places[:half])
            return relative(attention(x[:half], alone), whole)
        order = torch.arange(n).roll(1)
        encoded = [_encoded(case, at) for at in (x, x[order])]
        size = encoded[0].shape[-1]
        attention = Softmax(
            Heads.from_matrices(*(0.5 * normal(generator, 2, size, size))), causal=case == MASK
        )
        read, turned = (attention(at, Particles(at)).mean(0) for at in encoded)
        return relative(turned, read)

    def figures(self, table: Table) -> dict[str, Any]:
        made = super().figures(table)
        figure = new_figure(7.4, 3.2)
        left, right = figure.subplots(1, 2)
        code = waves(64, 32).numpy()
        image = left.imshow(code.T, aspect="auto", origin="lower")
        figure.colorbar(image, ax=left, label="value")
        left.set(title="sinusoidal waves", xlabel="position", ylabel="coordinate")
        left.grid(False)
        right.plot(np.arange(64), code @ code[32], label="waves: $\\langle p_i, p_{32}\\rangle$")
        right.plot(np.arange(64), np.arange(64) / 4, "--", label="$i/n$ of the pair, scaled")
        right.set(title="what a token sees of a place", xlabel="position")
        right.legend()
        return {**made, f"{self.name}_waves": figure}

    def verdicts(self, table: Table) -> list[Any]:
        said = {
            NONE: "without positions the order of the tokens is not seen",
            PREFIX: "under the mask on [0, 1] x R^d a prefix evolves by itself",
        }
        return [
            one._replace(statement=said.get(name, f"{name}: the order of the tokens is seen"))
            for one, name in zip(
                super().verdicts(table), dict.fromkeys(row.case for row in table), strict=True
            )
        ]


def waves(n: int, d: int) -> Float[Tensor, "n d"]:
    r"""$\sin(i/10000^{2k/d})$ and cosines, interleaved [vaswani17]."""
    rates = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, :d]


def _encoded(case: str, x: Tensor) -> Tensor:
    n, d = x.shape
    if case == WAVES:
        return x + waves(n, d)
    if case in (PAIR, MASK):
        places = torch.arange(1, n + 1, dtype=x.dtype) / n
        return torch.cat([x, places[:, None]], dim=-1)
    return x
