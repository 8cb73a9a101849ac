"""One image on a graph: its values, gradients, spans and Hessian, and what margins can lose."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds import NoBound
from attnscope.certification.chain import FARTHEST
from attnscope.certification.graph import Graph, Share
from attnscope.certification.second_order import hessians_of, largest_fall
from attnscope.certification.spans import Spans, spans_of, tokens_of
from attnscope.certification.walk import Walk
from attnscope.layers import Along, Follows, Layer, Tangent, affine
from attnscope.norms import SLACK, largest_eigenvalue

Parts = list[tuple[str, str, float, Tensor]]
"""Layer, theorem, how far its input moves, what it takes from each margin."""
MOST_PIXELS = 512
"""Entries of an image above which no Hessian is made."""
MOST_FORMS = 128
"""Entries above which what is beyond second order is a number for every layer, and no form."""


@final
class CleanGraph:
    """A clean pass of one image with the gradients of all its margins and the norms of its spans,
    ready to be certified at any radius.
    """

    def __init__(self, graph: Graph, image: Float[Tensor, "1 ..."]) -> None:
        self.graph = graph
        with torch.no_grad():
            self.values = graph.values(image)
        self.logits: Float[Tensor, "1 classes"] = self.values[-1]

    def aim(self, label: Int[Tensor, " 1"], spans: bool = True, closely: bool = False) -> bool:
        """Take the margins of this class, their gradients at every node, and the spans; whether the
        second order is exact. `closely` asks for nothing where it would not be.
        """
        self.label = int(label)
        self.curved: list[int] = []
        self.hessians: Tensor | None = None
        leaf = self.values[0].detach().requires_grad_()
        with torch.enable_grad():
            held = self.graph.values(leaf)
            classes = held[-1].shape[1]
            others = [number for number in range(classes) if number != self.label]
            slopes = []
            for number in others:
                margin = held[-1][0, self.label] - held[-1][0, number]
                found = torch.autograd.grad(margin, held, retain_graph=True, allow_unused=True)
                slopes.append(
                    [
                        torch.zeros_like(value) if part is None else part
                        for value, part in zip(held, found, strict=True)
                    ]
                )
        self.gradients = [torch.stack(parts) for parts in zip(*slopes, strict=True)]
        doubt = SLACK * (1 + self.logits.abs().amax())
        own = self.logits[0, self.label]
        self.margins: Float[Tensor, " c"] = own - self.logits[0, others] - doubt
        norm = torch.linalg.vector_norm(self.gradients[0].flatten(2), dim=-1)[:, 0]
        self.slopes: Float[Tensor, " c"] = norm * (1 + SLACK)
        self.spans: Spans | None = None
        if spans and self.limit() > 0:
            self._measure(closely)
        return self.follows

    def _measure(self, closely: bool) -> None:
        """Spans between the layers that curve: these are asked once, at a radius that does not
        matter, whether they do and whether they know how much. The Hessian, where all of them know
        what is beyond second order.
        """
        tiny, asked = torch.full((1,), 1e-6, dtype=torch.float64), set()
        far = torch.full_like(tiny, FARTHEST)  # a piece of a piecewise linear map ends somewhere
        blind: dict[int, tuple[Layer, Tensor]] = {}
        for number, node in enumerate(self.graph.nodes):
            if node.link is None:
                continue
            x = self.values[node.parents[0]]
            over = node.link.over(x, tiny)
            if over.remainder is affine and node.link.over(x, far).remainder is affine:
                continue
            self.curved.append(number)
            asked.add(node.parents[0])
            if over.rest is None:
                blind[number] = (node.link.layer, x)
        follows = all(self._follows(number) for number in self.curved)
        follows = follows and self.values[0].numel() <= MOST_PIXELS
        if closely and not follows:
            return
        self.spans = spans_of(
            self.graph, self.values, self.curved, sorted(asked), blind, whole=not follows
        )
        if follows and self.spans is not None:
            self.hessians = hessians_of(self.graph, self.values[0], self.label)

    @property
    def follows(self) -> bool:
        """Whether the second order is exact, and only what is beyond it bounded."""
        return self.hessians is not None

    def _follows(self, number: int) -> bool:
        """Whether a layer knows what is beyond its second order, for an input that hardly moves."""
        node = self.graph.nodes[number]
        layer = None if node.link is None else node.link.layer
        if not isinstance(layer, Follows):
            return False
        x, nothing = self.values[node.parents[0]], torch.zeros((), dtype=torch.float64)
        still = torch.zeros(1, *tokens_of(x), dtype=torch.float64)
        try:
            layer.along(x, Tangent(still, 1e-6, still[0, :, 0], nothing, nothing))
        except (NoBound, NotImplementedError):
            return False
        return True

    def limit(self) -> float:
        """No radius above this can be certified: there the linear part alone eats the margin."""
        return float((self.margins / self.slopes).amin().clamp(min=0))

    def falls(self, eps: float) -> tuple[Float[Tensor, " c"], list[Share]]:
        """How far each margin can fall at this radius, and what each layer has to do with it, for
        the margin that is worst off.
        """
        total, parts = self._second_order(eps) if self.follows else self._first_order(eps)
        total = total.masked_fill(total.isnan(), torch.inf) * (1 + SLACK)
        worst = int((self.margins - total).argmin())
        return total, [
            Share(place, name, reach, float(left[worst])) for place, name, reach, left in parts
        ]

    def _first_order(self, eps: float) -> tuple[Tensor, Parts]:
        """The linear part, and remainders of single layers."""
        walk = Walk(self, eps)
        parts: Parts = []
        total = self.slopes * eps
        for number, node in enumerate(self.graph.nodes):
            found = walk.found[number]
            if node.link is None or (found is not None and found.remainder is affine):
                continue
            if found is None:
                return torch.full_like(total, torch.inf), []
            left = walk.remainder(number, self.gradients[number])
            total = total + left
            parts.append((node.place, found.theorem, float(walk.radii[node.parents[0]]), left))
        return total, parts

    def _second_order(self, eps: float) -> tuple[Tensor, Parts]:
        """The linear and quadratic part together, and what is beyond of single layers."""
        assert self.hessians is not None
        assert self.spans is not None
        parts: Parts = []
        before: dict[int, Along] = {}
        spent, forms = torch.zeros_like(self.margins), torch.zeros_like(self.hessians)
        for number in self.curved:
            node = self.graph.nodes[number]
            (parent,) = node.parents
            layer = node.link.layer if node.link is not None else None
            assert isinstance(layer, Follows)
            tangent = self.spans.tangent(parent, eps, before)
            found = before[number] = layer.along(self.values[parent], tangent)
            left, bent = self._left(found, self.gradients[number][:, 0])
            spent, forms = spent + left, forms if bent is None else forms + bent
            if bent is not None:
                left = left + largest_eigenvalue(bent) * eps**2
            parts.append((node.place, "second order", float(tangent.whole()), left))
        slopes = self.gradients[0].flatten(1)
        return largest_fall(slopes, self.hessians - 2 * forms, eps) + spent, parts

    def _left(self, found: Along, gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        r"""What a layer leaves of each margin: a number, and a form of $\delta$ beside it."""
        pixels = self.values[0].numel()
        if found.forms is None or pixels > MOST_FORMS:
            return found.third(gradients), None
        forms, left = found.forms(gradients)
        lost = ~(forms.isfinite().all(-1).all(-1) & left.isfinite())
        return left.masked_fill(lost, torch.inf), forms.masked_fill(lost[:, None, None], 0.0)

    def certified(self, eps: float) -> bool:
        """Whether every margin stays above what it can fall."""
        return bool((self.falls(eps)[0] < self.margins).all())
