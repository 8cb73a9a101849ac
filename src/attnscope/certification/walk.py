"""Radii along a graph, and the remainders of its layers over them: first order only."""

from __future__ import annotations

from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.certification.chain import FARTHEST, NEAREST
from attnscope.certification.graph import Graph, Node
from attnscope.certification.spans import Spans
from attnscope.layers import OverBall, affine
from attnscope.norms import SLACK


@runtime_checkable
class Known(Protocol):
    """What a walk reads of a clean pass."""

    graph: Graph
    values: list[Tensor]
    spans: Spans | None


@final
class Walk:
    """Radii from the image on: of every node as a whole, and of its tokens."""

    def __init__(self, clean: Known, eps: float) -> None:
        self.clean, self.spans = clean, clean.spans
        whole = torch.full((1,), eps, dtype=torch.float64)
        nodes = clean.graph.nodes
        self.radii: list[Tensor] = [whole]
        self.each: list[Tensor | None] = [self._alone(0, whole)]
        self.found: list[OverBall | None] = [None]
        self.rests: dict[int, Tensor] = {}
        for number in range(1, len(nodes)):
            self._step(number, nodes[number], eps)

    def _alone(self, number: int, radius: Tensor) -> Tensor | None:
        """A single token may take all of the radius; None where there are no tokens."""
        value = self.clean.values[number]
        return radius[:, None].expand(value.shape[:2]) if value.ndim == 3 else None

    def _step(self, number: int, node: Node, eps: float) -> None:
        radius, each, found = self._by_layer(number, node)
        if self.spans is not None and found is not None and found.remainder is not affine:
            self.rests[number] = self._rest(number, node, found)
        if self.spans is not None and number in self.spans.jacobians:
            whole, tokens = self.spans.reach(number, eps, self.rests)
            radius = torch.minimum(radius, whole)
            if each is not None:
                each = torch.minimum(each, tokens)
        radius = radius.clamp(min=NEAREST)
        self.found.append(found)
        self.radii.append(radius)
        self.each.append(None if each is None else torch.minimum(each, radius[:, None]))

    def _by_layer(self, number: int, node: Node) -> tuple[Tensor, Tensor | None, OverBall | None]:
        """What the node says of itself, from the radii of its parents."""
        if node.link is None:
            one, other = node.parents
            radius = (self.radii[one] + self.radii[other]) * (1 + SLACK)
            here, there = self.each[one], self.each[other]
            both = None if here is None or there is None else (here + there) * (1 + SLACK)
            return radius, both, None
        (parent,) = node.parents
        reach = self.radii[parent]
        if not bool(reach < FARTHEST):
            nothing = torch.full_like(reach, torch.inf)
            return nothing, self._alone(number, nothing), None
        x, each = self.clean.values[parent], self.each[parent]
        found = node.link.over(x, reach, each)
        alone = self._alone(number, found.radius)
        if alone is None or found.budget is None or each is None:
            return found.radius, alone, found
        moved = (found.budget @ each[..., None])[..., 0] * (1 + SLACK)
        return found.radius, torch.minimum(moved, alone), found

    def _rest(self, number: int, node: Node, found: OverBall) -> Tensor:
        r"""At least $|R|$: what the layer says, or its radius and its slope at the clean input."""
        assert self.spans is not None
        if found.rest is not None:
            return found.rest()
        reach = self.radii[node.parents[0]]
        return (found.radius + self.spans.local[number] * reach) * (1 + SLACK)

    def remainder(self, number: int, gradients: Float[Tensor, "c 1 ..."]) -> Float[Tensor, " c"]:
        """The smallest bound of the remainder against these gradients."""
        node, found = self.clean.graph.nodes[number], self.found[number]
        assert node.link is not None
        assert found is not None
        (parent,) = node.parents
        radius, each = self.radii[parent], self.each[parent]
        bounds = []
        if self.spans is not None and number in self.rests:
            size = torch.linalg.vector_norm(gradients.flatten(2), dim=-1)
            bounds.append(size * self.rests[number])
        if found.remainder is not None:
            left = node.link.remainder(found, gradients)
            bounds.append(left.within(radius))
            if left.form is not None and each is not None:
                bent = (each * (left.form @ each[..., None])[..., 0]).sum(-1) / 2
                corner = 0.0 if left.corners is None else (left.corners * each).sum(-1)
                bounds.append(bent + corner)
        if not bounds:
            return torch.full((len(gradients),), torch.inf, dtype=torch.float64)
        return torch.stack(bounds).amin(0)[:, 0] * (1 + SLACK)
