r"""Norms of clean Jacobians between the nodes of a graph, proved: dense matrices by forward
differentiation, their norms by dense decompositions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, final, runtime_checkable

import torch
import torch.autograd.forward_ad as forward_ad
from jaxtyping import Float
from torch import Tensor

from attnscope.layers.along import Along, Tangent, block_norms, dense_norm, token_norms
from attnscope.norms import SLACK, largest_eigenvalue

MOST_ENTRIES = 2**22
"""Entries of one Jacobian above which radii come from layers instead."""
MOST_LINKS = 2**19
"""Entries of a Jacobian between layers, or """
MOST_SECONDS = 2**21
"""of second derivatives, that are kept to follow single units."""
AT_ONCE = 2**24
"""Entries of the values of all nodes held at once while a Jacobian is made."""


@runtime_checkable
class Evaluates(Protocol):
    """What a graph does here: its values from one node on."""

    def values(
        self,
        x: Tensor,
        start: int = 0,
        known: list[Tensor] | None = None,
        last: int | None = None,
    ) -> list[Tensor]: ...


@final
@dataclass(frozen=True, eq=False)
class Spans:
    """From the image and from every layer that curves: norms to each node that such a layer reads,
    of its tokens and, where asked for, of all of it. A value without tokens is one token.
    """

    jacobians: dict[int, Float[Tensor, "p n d"]]
    """From the image."""
    tokens: dict[tuple[int, int], Float[Tensor, " n"]]
    blocks: dict[tuple[int, int], Float[Tensor, "n m"]]
    """From each token of a layer's output to each token of a node."""
    whole: dict[tuple[int, int], Float[Tensor, ""]]
    bends: dict[int, Float[Tensor, " n"]]
    r"""At least $|D^2(x \to z_k)[\delta, \delta]_i|$, $|\delta| \le 1$, for each token i of k."""
    local: dict[int, Float[Tensor, ""]]
    """The norm of the Jacobian of each layer that does not bound its remainder in norm."""
    links: dict[tuple[int, int], Float[Tensor, "m ..."]]
    """The Jacobians themselves from layers that curve, where they are small."""
    seconds: dict[int, Float[Tensor, "q n d"]]
    """Second derivatives from the image against the monomials, where they are small."""

    def spread(self, number: int, rests: dict[int, Tensor]) -> Float[Tensor, " n"]:
        r"""$\sum_j\min(\|D(z_j \to z_k)_i\||R_j|, \sum_b\|D(z_j \to z_k)_{ib}\||R_{jb}|)$ for each
        token i of node k; `rests` are numbers, or one for each token.
        """
        parts = []
        for j, size in rests.items():
            if (j, number) in self.tokens:
                whole = self.tokens[j, number] * torch.linalg.vector_norm(size)
                blocks = self.blocks.get((j, number))
                if blocks is not None and blocks.shape[-1] == len(size):
                    whole = torch.minimum(whole, blocks @ size)
                parts.append(whole)
        nothing = torch.zeros_like(self.tokens[0, number])
        return torch.stack([nothing, *parts]).sum(0) * (1 + SLACK)

    def tangent(self, number: int, eps: float, before: Mapping[int, Along]) -> Tangent:
        """How node k moves: exactly to first order, and how far beside it, to second order by its
        own second derivative and beyond by what every layer before it leaves.
        """
        rest = self.bends[number] * eps**2 / 2
        rest = rest + self.spread(number, {j: found.tokens for j, found in before.items()})
        spare = torch.linalg.vector_norm(rest) * (1 + SLACK)
        beside = None
        if number in self.seconds and all((j, number) in self.links for j in before):
            beside = partial(self._beside, number, eps, dict(before))
        return Tangent(self.jacobians[number], eps, rest, spare, self.whole[0, number], beside)

    def _beside(
        self, number: int, eps: float, before: Mapping[int, Along], weight: Float[Tensor, "m d"]
    ) -> Float[Tensor, "n m"]:
        r"""$\frac12\varepsilon^2\|D^2(x \to \langle w, z_{k,i}\rangle)\| + \sum_j|\langle D(z_j \to
        z_{k,i})^Tw, T_j\rangle|$: the telescoped identity with the row of a unit for a margin.
        """
        second = self.seconds[number] @ weight.mT
        total = torch.linalg.vector_norm(second, dim=0) * eps**2 / 2
        for j, found in before.items():
            link = self.links[j, number]
            rows = torch.einsum("...nd,md->nm...", link, weight).flatten(0, 1)
            total = total + found.third(rows).reshape(total.shape)
        return total * (1 + SLACK)

    def reach(
        self, number: int, eps: float, rests: dict[int, Tensor]
    ) -> tuple[Float[Tensor, " 1"], Float[Tensor, "1 n"]]:
        r"""$\|D(x \to z_k)\|\varepsilon + \sum_j\|D(z_j \to z_k)\||R_j|$, of all of node k and
        of each token.
        """
        sizes = [self.whole[0, number] * eps]
        sizes += [
            self.whole[j, number] * torch.linalg.vector_norm(size)
            for j, size in rests.items()
            if (j, number) in self.whole
        ]
        each = self.tokens[0, number] * eps + self.spread(number, rests)
        whole = torch.stack([size.reshape(()) for size in sizes]).sum()
        return whole[None] * (1 + SLACK), each[None] * (1 + SLACK)


def spans_of(
    graph: Evaluates,
    values: list[Tensor],
    curved: list[int],
    asked: list[int],
    blind: Mapping[int, tuple[Callable[[Tensor], Tensor], Tensor]],
    whole: bool,
) -> Spans | None:
    """The spans of one image, or None where a Jacobian is too large to hold or a layer has no
    forward derivative. `blind` are the layers whose own Jacobian is wanted, by number, each with
    the value that it reads; `whole` asks for norms of all tokens together.
    """
    last = max(asked, default=0)
    for start in (0, *curved):
        widest = max((values[k].numel() for k in asked if k >= start), default=0)
        if start <= last and values[start].numel() * widest > MOST_ENTRIES:
            return None
    made = Spans({}, {}, {}, {}, {}, {}, {}, {})
    try:
        for start in (0, *curved):
            for number, jacobian in _jacobians(graph, values, start, asked).items():
                if start == 0:
                    made.jacobians[number] = jacobian
                made.tokens[start, number] = token_norms(jacobian)
                if not whole and start > 0:
                    apart = jacobian.reshape(*tokens_of(values[start]), *jacobian.shape[1:])
                    made.blocks[start, number] = block_norms(apart)
                    if jacobian.numel() <= MOST_LINKS:
                        shape = (*values[start].shape[1:], *jacobian.shape[1:])
                        made.links[start, number] = jacobian.reshape(shape)
                if whole or start == 0:
                    made.whole[start, number] = dense_norm(jacobian)
        if not whole:
            _bend(made, graph, values, asked)
        for number, (layer, x) in blind.items():
            (jacobian,) = _jacobians(_One(layer), [x, values[number]], 0, [1]).values()
            made.local[number] = dense_norm(jacobian)
    except (RuntimeError, NotImplementedError):
        return None
    return made


@final
class _One:
    """A single layer as a graph of two nodes."""

    def __init__(self, layer: Callable[[Tensor], Tensor]) -> None:
        self.layer = layer

    def values(
        self,
        x: Tensor,
        start: int = 0,
        known: list[Tensor] | None = None,
        last: int | None = None,
    ) -> list[Tensor]:
        return [x, self.layer(x)]


def _jacobians(
    graph: Evaluates, values: list[Tensor], start: int, asked: list[int]
) -> dict[int, Float[Tensor, "p n d"]]:
    """Rows are directions at the start, the other axes the tokens of the node asked for."""
    later = [number for number in asked if number >= start]
    if not later:
        return {}
    source = values[start]
    basis = torch.eye(source.numel(), dtype=source.dtype).reshape(-1, *source.shape[1:])
    size = max(1, AT_ONCE // sum(value.numel() for value in values[start:]))
    made: dict[int, list[Tensor]] = {number: [] for number in later}
    for some in basis.split(size):
        with torch.no_grad(), forward_ad.dual_level():
            dual = forward_ad.make_dual(source.expand_as(some).clone(), some)
            known = [value.expand(len(some), *value.shape[1:]) for value in values[:start]]
            found = graph.values(dual, start, known, later[-1])
            for number in later:
                tangent = forward_ad.unpack_dual(found[number]).tangent
                shape = (len(some), *tokens_of(values[number]))
                zero = torch.zeros(shape, dtype=source.dtype)
                made[number].append(zero if tangent is None else tangent.reshape(shape).clone())
    return {number: torch.cat(parts) for number, parts in made.items()}


def _bend(made: Spans, graph: Evaluates, values: list[Tensor], asked: list[int]) -> None:
    r"""Second derivatives in all pairs of pixels, as matrices (d, pairs) against the monomials
    $\delta_a^2$, $\sqrt2\delta_a\delta_b$, whose length is $|\delta|^2$.
    """
    if not asked:
        return
    image = values[0]
    count = image.numel()
    one, other = torch.triu_indices(count, count)
    basis = torch.eye(count, dtype=image.dtype).reshape(-1, *image.shape[1:])
    factor = torch.where(one == other, 1.0, math.sqrt(2)).to(image)
    grams = {number: torch.zeros((), dtype=image.dtype) for number in asked}
    small = [k for k in asked if len(one) * values[k].numel() <= MOST_SECONDS]
    kept: dict[int, list[Tensor]] = {number: [] for number in small}
    size = max(1, AT_ONCE // (4 * sum(value.numel() for value in values)))

    def asked_of(x: Tensor) -> tuple[Tensor, ...]:
        found = graph.values(x, last=asked[-1])
        return tuple(found[number] for number in asked)

    for some in torch.arange(len(one)).split(size):
        x = image.expand(len(some), *image.shape[1:]).clone()
        left, right = basis[one[some]], basis[other[some]]
        bent = torch.func.jvp(
            lambda z, v=left: torch.func.jvp(asked_of, (z,), (v,))[1], (x,), (right,)
        )[1]
        for number, part in zip(asked, bent, strict=True):
            rows = part.reshape(len(some), *tokens_of(values[number])) * factor[some, None, None]
            if number in kept:
                kept[number].append(rows)
            rows = rows.movedim(0, -1)
            grams[number] = grams[number] + rows @ rows.mT
    made.seconds.update({number: torch.cat(parts) for number, parts in kept.items()})
    made.bends.update({
        number: largest_eigenvalue(gram).sqrt() * (1 + SLACK) for number, gram in grams.items()
    })  # fmt: skip


def tokens_of(value: Float[Tensor, "1 ..."]) -> tuple[int, int]:
    """How many tokens, and of what size; one where there are none."""
    return (value.shape[1], value.shape[2]) if value.ndim == 3 else (1, value[0].numel())
