r"""Attention is a map between measures: $F(\mu)$ of the empirical measure of X is the empirical
measure of $f(X)$, and tokens of the same place may be cut or joined.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnscope.attention import Heads, variants
from attnscope.measures import Particles
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._defects import DefectFigure, relative
from attnscope.transport import wasserstein

WRITTEN = "softmax written out"
CUT = ": tokens cut into two of unequal mass"
SUMS = "softmax with unnormalised sums"


class Pushforward(DefectFigure):
    """Attention of tokens is a map of their empirical measure."""

    name = "pushforward"
    figure = "F(mu) of the empirical measure is f(X)"
    identity = "F(mu) is the measure of f(X)"

    def cases(self) -> Mapping[str, bool]:
        exact = [WRITTEN, *(name + CUT for name in variants())]
        return dict.fromkeys(exact, True) | {SUMS: False}

    def defect(self, case: str, x: Tensor, generator: torch.Generator) -> float:
        d = x.shape[-1]
        a, v = 0.3 * normal(generator, 2, d, d)
        name = case.removesuffix(CUT) if case.endswith(CUT) else "softmax"
        attention, mu = variants()[name](Heads.from_matrices(a, v)), Particles(x)
        if case == WRITTEN:  # the formula of a textbook, and the measure that the library pushes
            by_hand = torch.softmax(x @ a.mT @ x.mT, dim=-1) @ x @ v.mT
            size = float(by_hand.square().sum(-1).mean().sqrt())
            return float(wasserstein(attention.push(mu), Particles(by_hand))) / size
        if case == SUMS:  # e^<Ax, y> summed over tokens is no function of the measure
            twice = torch.cat([x, x])
            sums = [(at @ a.mT @ at.mT).exp() @ at @ v.mT for at in (x, twice)]
            return relative(sums[1][: len(x)], sums[0])
        share = 0.1 + 0.8 * torch.rand(len(x), dtype=x.dtype, generator=generator)
        cut = Particles(torch.cat([x, x]), torch.cat([share, 1 - share]) / len(x))
        return relative(attention(x, cut), attention(x, mu))
