r"""Memory of the backward pass against the depth: autograd keeps the activations of every layer,
invertible layers find them again from the output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attnscope.nets.invertible import Invertible
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, RED, new_figure
from attnscope.studies.papers._covariances import normal
from attnscope.studies.papers._figure import PaperFigure, drawn
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive

SAME = 1e-8
FLAT = 1.5
LINEAR = 0.8


class Kept(NamedTuple):
    """Bytes that the graph keeps for the backward pass beside the weights, in two ways, and the
    relative distance of the two gradients.
    """

    depth: int
    stored: int
    inverted: int
    apart: float


@dataclass(frozen=True)
class MemoryConfig:
    depths: tuple[int, ...] = (2, 4, 8, 16, 32)
    tokens: int = 64
    dim: int = 16
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryCell(Cell):
    depth: int
    tokens: int
    dim: int
    seed: int


class BackwardMemory(PaperFigure):
    """Memory of the backward pass against the depth, with and without stored activations."""

    name = "backward_memory"
    paper = "ablin24"
    figure = "memory of the backward pass"
    topic = "talk"
    seconds = (2, 10)
    Config = MemoryConfig
    fast = MemoryConfig(depths=(2, 4, 8), tokens=16, dim=8)
    tables: ClassVar[dict[str, type]] = {"results": Kept}

    def cells(self, config: MemoryConfig, workbench: Workbench) -> Iterable[MemoryCell]:
        for depth in config.depths:
            check_positive("depth", depth)
            if config.tokens <= config.dim:
                raise ValueError(
                    "activations are told from weights by their number of tokens, which must be"
                    f" above the dimension {config.dim}, got {config.tokens}."
                )
            yield MemoryCell(depth=depth, tokens=config.tokens, dim=config.dim, seed=config.seed)

    def run(self, cell: MemoryCell, workbench: Workbench) -> list[Kept]:
        workbench.check(0.0, f"{cell.depth} layers")
        network = Invertible.random("softmax", cell.depth, cell.tokens, cell.dim, radius=1.0)
        network.requires_grad_(False)
        x = normal(drawn(cell.seed), cell.tokens, cell.dim)
        x = 0.9 * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        sizes, gradients = [], []
        for store in (True, False):
            at = x.clone().requires_grad_()
            kept: dict[int, int] = {}

            def keep(part: Tensor, kept: dict[int, int] = kept) -> Tensor:
                if cell.tokens in part.shape:  # an activation, not a weight
                    held = part.untyped_storage()
                    kept[held.data_ptr()] = held.nbytes()
                return part

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
                y = network(at, store=store)
            sizes.append(sum(kept.values()))
            y.square().sum().backward()
            assert at.grad is not None
            gradients.append(at.grad)
        apart = torch.linalg.vector_norm(gradients[1] - gradients[0])
        return [
            Kept(
                cell.depth,
                int(sizes[0]),
                int(sizes[1]),
                float(apart / torch.linalg.vector_norm(gradients[0])),
            )
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        figure = new_figure(5.4, 4)
        ax = figure.add_subplot()
        depths = [row.depth for row in table]
        stored, inverted = ([getattr(row, name) / 1e3 for row in table] for name in NAMES)
        ax.plot(depths, stored, "o-", color=RED, label="activations stored")
        ax.plot(depths, inverted, "s-", color=BLUE, label="found again by the inverse")
        ax.set(xlabel="layers", ylabel="kept for the backward pass (kB)", ylim=(0, None))
        ax.set_title("Memory of the backward pass")
        ax.legend()
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        if len(table) < 2:
            return []
        first, last = table.rows[0], table.rows[-1]
        deeper = last.depth / first.depth
        grown = last.stored / max(first.stored, 1)
        flat = last.inverted / max(first.inverted, 1)
        apart = max(row.apart for row in table)
        return [
            Verdict(
                "stored activations grow in proportion to the depth",
                "they do",
                f"{grown:.2f} times the memory for {deeper:g} times the layers",
                grown >= LINEAR * deeper,
                f"at least {LINEAR:g} of the factor of the depth",
            ),
            Verdict(
                "with invertible layers the memory does not grow with the depth",
                "it is constant",
                f"{flat:.2f} times the memory for {deeper:g} times the layers",
                flat <= FLAT,
                f"a factor of at most {FLAT:g}; weights are not counted",
            ),
            Verdict(
                "both ways give the same gradient",
                "up to rounding",
                f"relative distance up to {apart:.1e}",
                apart <= SAME,
                f"below {SAME:g} counts as the same",
            ),
        ]


NAMES = ("stored", "inverted")
