"""Composition: layers one after the other are an `nn.Sequential`, a branch beside its input is a
`Residual`. The two make every graph of residual branches.
"""

from __future__ import annotations

from typing import Protocol, final, runtime_checkable

from torch import Tensor, nn


@final
class Residual(nn.Module):
    r"""$x + f(x)$ for one layer, or for several of them one after the other."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.branch(x)
        return made


@runtime_checkable
class Composite(Protocol):
    """A block that says what it is made of: an nn.Sequential, a Residual, or a single layer that
    keeps the contract, equal to it as a map; None when it is a layer itself.
    """

    def parts(self) -> nn.Module | None: ...
