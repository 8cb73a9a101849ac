"""Norm layers: the dense Jacobian at each token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnscope.bounds import Normed, Theorem
from theorem_cases import Case

WHERE = (Normed,)


def cases(theorem: Theorem) -> Iterator[Case]:
    g = torch.Generator().manual_seed(0)
    for centred in (True, False):
        for size in (1e-4, 1.0, 30.0):
            gain, x = (torch.randn(*of, generator=g, dtype=torch.float64) for of in ((4,), (6, 4)))

            def place(s: Tensor | float, gain=gain, x=x, size=size, centred=centred):  # type: ignore[no-untyped-def]
                return Normed(s**2 * size * x, s * gain, 1e-5, centred)

            def norm(token: Tensor, gain=gain, centred=centred) -> Tensor:  # type: ignore[no-untyped-def]
                token = token - token.mean() if centred else token
                return gain * token / (token.square().mean() + 1e-5).sqrt()

            found = [torch.func.jacrev(norm)(token) for token in size * x]
            yield Case(
                f"{theorem.name}, centred {centred}, size {size}",
                float(theorem(None, place(1.0))),
                max(float(torch.linalg.matrix_norm(one, 2)) for one in found),
                lambda s, place=place: theorem(None, place(s)),  # type: ignore[misc]
            )
