r"""Chains of layers for small inputs: what the bounds of single layers leave open is asked again of
the whole chain, its second order exactly.

A chain is a graph without sums, so `CleanGraph` speaks of it where all of its layers know what is
beyond their second order. That is dearer by far, image by image, and asked only where the
telescoped certificate with worst cases of single layers has failed.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.certification.chain import Link
from attnscope.certification.clean_graph import MOST_FORMS, CleanGraph
from attnscope.certification.graph import Graph, Node
from attnscope.certification.telescope import WHOLE, Clean

MOST = 2**14
"""Entries of the input times entries of the largest value: more are not looked at closer."""


@final
class Closer:
    """A clean pass of some images that certifies as `Clean` does, and tries again where that
    fails.
    """

    def __init__(self, links: list[Link], clean: Clean) -> None:
        self.clean, self.labels = clean, clean.labels
        self.graph = Graph(
            [Node((), None), *(Node((number,), link) for number, link in enumerate(links))]
        )
        pixels, *sizes = (value[0].numel() for value in clean.values)
        self.fits = pixels <= MOST_FORMS and pixels * max(sizes) <= MOST
        self.known: dict[int, CleanGraph] = {}

    def limits(self) -> Float[Tensor, " b"]:
        return self.clean.limits()

    def certify(
        self, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]
    ) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
        """As `Clean.certify`."""
        found, taken = self.clean.certify(image, eps)
        hopeful = (found == 0) & (eps < self.limits()[image])
        for at in torch.nonzero(hopeful)[:, 0].tolist():
            one = self._aimed(int(image[at])) if self.fits else None
            if one is None:
                break
            share = (one.falls(float(eps[at]))[0] / one.margins).amax()
            taken[at] = torch.minimum(taken[at], share)
            found[at] = WHOLE if bool(share < 1) else 0
        return found, taken

    def _aimed(self, number: int) -> CleanGraph | None:
        """One image on the graph; None, and for good, where a layer cannot be followed."""
        if number not in self.known:
            one = CleanGraph(self.graph, self.clean.values[0][number : number + 1])
            self.fits = one.aim(self.labels[number : number + 1], closely=True)
            if not self.fits:
                return None
            self.known[number] = one
        return self.known[number]
