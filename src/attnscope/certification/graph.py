r"""A network as a graph of residual branches, and the telescoped certificate along it.

Let $z_k = f_k(z_{p(k)})$ be the layers and sums of a network, $m$ a margin, $g_k$ its clean
gradient at $z_k$, $\Delta_k$ the change of $z_k$ and $R_k = f_k(z + \Delta) - f_k(z) - Df_k\Delta$.
Exactly

$$ m(x + \delta) - m(x) = \langle\nabla_xm, \delta\rangle + \sum_k\langle g_k, R_k\rangle, $$

whatever the graph: sums have no remainder. Each $R_k$ is bounded over the ball that its input can
reach, from the clean Jacobians of spans,

$$ |\Delta_k| \le \|D(x \to z_k)\|\varepsilon + \sum_{j \le k}\|D(z_j \to z_k)\||R_j|, $$

for all of $z_k$ and for each of its tokens, or from radii layer by layer where these are too large
to hold. Where every layer knows what is beyond its second order, the quadratic part of all of it is
the Hessian of the margin, computed and not bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from attnscope.certification.chain import Link


@final
@dataclass(frozen=True, eq=False)
class Node:
    """One layer and the node it reads, or a sum of two nodes."""

    parents: tuple[int, ...]
    link: Link | None

    @property
    def place(self) -> str:
        return "a sum" if self.link is None else self.link.place


@final
@dataclass(frozen=True)
class Share:
    """What one layer takes from a margin: its remainder, over inputs that move by `reach`."""

    place: str
    theorem: str
    reach: float
    remainder: float


@final
class Graph:
    """Nodes in the order of evaluation; node 0 is the image, the last one has the logits."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)

    def values(
        self,
        x: Tensor,
        start: int = 0,
        known: list[Tensor] | None = None,
        last: int | None = None,
    ) -> list[Tensor]:
        """The values of all nodes, or of those up to `last`; with `known` those before `start` are
        taken from there, and `x` is the value of that node.
        """
        made = [x] if known is None else [*known[:start], x]
        for node in self.nodes[start + 1 : None if last is None else last + 1]:
            if node.link is None:
                made.append(made[node.parents[0]] + made[node.parents[1]])
            else:
                made.append(_applied(node.link, made[node.parents[0]]))
        return made

    def __call__(self, x: Tensor) -> Tensor:
        return self.values(x)[-1]


def _applied(link: Link, x: Tensor) -> Tensor:
    """What a layer makes of its input; derivatives are taken on copies of one image side by side,
    so that its first axis must stay that of the images.
    """
    made = link.layer(x)
    if made.shape[:1] != x.shape[:1]:
        raise ValueError(
            f"{link.place} mixes images: it makes shape {tuple(made.shape)} of {tuple(x.shape)}."
            " Keep the first axis for the batch."
        )
    return made
