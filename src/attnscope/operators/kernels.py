r"""Tiled analytic derivatives of the softmax kernel on queries, keys and values.

With $P_i = \mathrm{softmax}_j(s\langle q_i, k_j\rangle + \beta_j)$ over the keys that i may read
and $o_i = \sum_j P_{ij} v_j$,

$$ \dot o_i = \sum_j P_{ij}\big[\dot v_j + \dot s_{ij}(v_j - o_i)\big], \qquad
   \dot s_{ij} = s\langle\dot q_i, k_j\rangle + s\langle q_i, \dot k_j\rangle + \dot\beta_j, $$

and the adjoint reads $\bar s_{ij} = P_{ij}\langle\bar o_i, v_j - o_i\rangle$. P is kept when it
fits a budget; otherwise each tile is made again from the row normalisers, so that memory stays O(n
d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.operators._tiles import tile_sizes
from attnscope.operators.precision import common_rounding, wide

STORED_BYTES, STORED_ROWS = 2**30, 2048
"""P is stored while it takes no more than this, and up to this length: beyond, it is many times as
large as the tokens, and the basis of a search needs the room.
"""


class Tile(NamedTuple):
    """Problems `group`, query rows `rows` (block number `block` of them), keys before `keys`."""

    block: int
    group: slice
    rows: slice
    keys: int


class Gradients(NamedTuple):
    q: Float[Tensor, "g m k"]
    k: Float[Tensor, "g n k"]
    v: Float[Tensor, "g n v"]
    bias: Float[Tensor, "g n"] | None


class SoftmaxKernel:
    """Derivatives at fixed (q, k, v): g independent problems (sequences times heads) at once."""

    def __init__(
        self,
        q: Float[Tensor, "g m k"],
        k: Float[Tensor, "g n k"],
        v: Float[Tensor, "g n v"],
        bias: Float[Tensor, "g n"],
        scale: float,
        position_bias: Float[Tensor, "h m n"] | None = None,
        places: Float[Tensor, "g n"] | None = None,
        triangular: bool = False,
        slope: Float[Tensor, "g n k"] | None = None,
        head: Int[Tensor, " g"] | None = None,
    ) -> None:
        """`places` switch the causal mask on; `triangular` says that they are in order, so that row
        i reads keys up to i; `slope` is the gradient of a key bias that moves with its key; `head`
        is the number of each problem's position bias.

        Queries and keys are held times the scale: every product with a change wants them so.
        """
        self.q, self.k, self.v, self.bias, self.scale = scale * q, scale * k, v, bias, scale
        self.position_bias, self.places, self.triangular, self.slope = (
            position_bias,
            places,
            triangular,
            slope,
        )
        self.head = head
        self.o = torch.empty(*q.shape[:-1], v.shape[-1], dtype=v.dtype, device=v.device)
        entries = q.shape[0] * q.shape[1] * k.shape[1] // (2 if triangular else 1)
        small = q.shape[1] <= STORED_ROWS and entries * q.element_size() <= STORED_BYTES
        self.stored: list[Tensor] | None = [] if small else None
        self.normaliser = None if self.stored is not None else torch.empty_like(q[..., 0])
        for tile in self._tiles():
            scores = self._scores(tile)
            if self.normaliser is not None:
                self.normaliser[tile.group, tile.rows] = torch.logsumexp(scores, dim=-1)
            if self.stored is None:
                p = torch.softmax(scores, dim=-1)
            else:
                if tile.block == len(self.stored):
                    self.stored.append(
                        torch.empty(len(q), *scores.shape[1:], dtype=q.dtype, device=q.device)
                    )
                p = torch.softmax(scores, dim=-1, out=self.stored[tile.block][tile.group])
            self.o[tile.group, tile.rows] = torch.bmm(p, v[tile.group, : tile.keys])

    def rounding(self) -> float:
        """An estimate of the relative error of products: scores are differences of large terms, and
        so is how values differ where they have much in common.
        """
        return max(common_rounding(self.v), rounding_of(self.q, self.k, 1 / abs(self.scale)))

    def restricted(self, index: Int[Tensor, " c"]) -> SoftmaxKernel:
        """The kernel of these problems alone, nothing computed again."""

        def some(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[index]

        smaller = copy(self)
        smaller.q, smaller.k, smaller.v, smaller.o, smaller.bias = (
            part[index] for part in (self.q, self.k, self.v, self.o, self.bias)
        )
        smaller.normaliser, smaller.places = some(self.normaliser), some(self.places)
        smaller.slope, smaller.head = some(self.slope), some(self.head)
        smaller.stored = None if self.stored is None else [p[index] for p in self.stored]
        return smaller

    def jvp(
        self,
        q: Float[Tensor, "g m k"],
        k: Float[Tensor, "g n k"],
        v: Float[Tensor, "g n v"],
        bias: Float[Tensor, "g n"] | None = None,
    ) -> Float[Tensor, "g m v"]:
        """The change of o when queries, keys, values (and key bias) change; written over `q` where
        that has its shape.
        """
        out = q if q.shape == self.o.shape else _token_major(self.o)
        for tile in self._tiles():
            _, group, rows, keys = tile
            change = torch.bmm(q[group, rows], self.k[group, :keys].mT)
            change.baddbmm_(self.q[group, rows], k[group, :keys].mT)
            if bias is not None:
                change += bias[group, None, :keys]
            out[group, rows] = self._moved(tile, change, v)
        return out

    def jvp_of_scores(
        self, scores: Float[Tensor, "g m n"], v: Float[Tensor, "g n v"]
    ) -> Float[Tensor, "g m v"]:
        """The change of o when scores (which are written over) and values change."""
        out = _token_major(self.o)
        for tile in self._tiles():
            _, group, rows, keys = tile
            out[group, rows] = self._moved(tile, scores[group, rows, :keys], v)
        return out

    def _moved(self, tile: Tile, change: Tensor, v: Float[Tensor, "g n v"]) -> Tensor:
        """$\\dot o$ of a tile from the change of its scores."""
        p = self._coupling(tile)
        _, group, rows, keys = tile
        change *= p
        part = torch.bmm(change, self.v[group, :keys])
        part.baddbmm_(p, v[group, :keys])
        return part.addcmul_(change.sum(-1, keepdim=True), self.o[group, rows], value=-1)

    def vjp(self, o: Float[Tensor, "g m v"]) -> Gradients:
        """The adjoint of `jvp`: gradients of <o, output> in queries (over `o` where that has their
        shape), keys, values and key bias.
        """
        grads = Gradients(
            o if o.shape == self.q.shape else _token_major(self.q),
            _token_major(self.k),
            _token_major(self.v),
            None if self.slope is None else torch.zeros_like(self.bias),
        )
        for tile in reversed(list(self._tiles())):
            _, group, rows, keys = tile
            change, kept = self._pulled(tile, o[group, rows], grads.v)
            grads.q[group, rows] = torch.bmm(change, self.k[group, :keys])
            _gather(grads.k[group, :keys], change.mT, self.q[group, rows], kept)
            if grads.bias is not None:
                grads.bias[group, :keys] += change.sum(-2)
        return grads

    def vjp_of_scores(
        self, o: Float[Tensor, "g m v"]
    ) -> tuple[Float[Tensor, "g m n"], Float[Tensor, "g n v"]]:
        """The adjoint of `jvp_of_scores`: gradients in scores and values."""
        scores, v = o.new_zeros(*o.shape[:2], self.k.shape[1]), _token_major(self.v)
        for tile in reversed(list(self._tiles())):
            _, group, rows, keys = tile
            scores[group, rows, :keys] = self._pulled(tile, o[group, rows], v)[0]
        return scores, v

    def _pulled(self, tile: Tile, here: Tensor, v: Float[Tensor, "g n v"]) -> tuple[Tensor, bool]:
        """The gradient in the scores of a tile, after its part of that in the values was added;
        and whether what other tiles have written is kept: the last rows read every key, so they
        come first, and write where the others add.
        """
        p = self._coupling(tile)
        _, group, rows, keys = tile
        kept = rows.stop < self.q.shape[1]
        _gather(v[group, :keys], p.mT, here, kept)
        change = torch.bmm(here, self.v[group, :keys].mT)
        change -= (here * self.o[group, rows]).sum(-1, keepdim=True)
        return change.mul_(p), kept

    def _tiles(self) -> Iterator[Tile]:
        problems, m, n = *self.q.shape[:2], self.k.shape[1]
        sizes = tile_sizes(self.q.device)
        rows = min(sizes.narrow if self.triangular else sizes.rows, m)
        size = max(1, sizes.entries // (rows * n))
        for block, start in enumerate(range(0, m, rows)):
            stop = min(start + rows, m)
            for first in range(0, problems, size):
                yield Tile(
                    block,
                    slice(first, min(first + size, problems)),
                    slice(start, stop),
                    stop if self.triangular else n,
                )

    def _coupling(self, tile: Tile) -> Tensor:
        if self.stored is not None:
            return self.stored[tile.block][tile.group]
        assert self.normaliser is not None
        return self._scores(tile).sub_(self.normaliser[tile.group, tile.rows, None]).exp_()

    def _scores(self, tile: Tile) -> Tensor:
        _, group, rows, keys = tile
        scores = torch.baddbmm(
            self.bias[group, None, :keys],
            self.q[group, rows],
            self.k[group, :keys].mT,
            alpha=1 / self.scale,
        )
        if self.position_bias is not None and self.head is not None:
            scores += self.position_bias[self.head[group], rows, :keys]
        if self.places is not None:
            first = rows.start if self.triangular else 0
            hidden = self.places[group, None, first:keys] > self.places[group, rows, None]
            scores[..., first:].masked_fill_(hidden, float("-inf"))
        return scores


def rounding_of(q: Float[Tensor, "g m k"], k: Float[Tensor, "g n k"], scale: float) -> float:
    r"""An estimate of the relative error of products: a derivative is a difference of terms as
    large as the scores, $us\,\max_i|q_i|\max_j|k_j|$ with u the unit roundoff.
    """
    largest = (wide(part).norm(dim=-1).amax(-1) for part in (q, k))
    return 2 * torch.finfo(q.dtype).eps * math.prod(largest).max().item() * scale


def _gather(into: Tensor, left: Tensor, right: Tensor, kept: bool) -> None:
    """Add a product to what is there, or write it: `baddbmm_` into what lies token by token goes
    problem by problem, one copy is faster.
    """
    made = torch.bmm(left, right)
    if kept:
        into += made
    else:
        into.copy_(made)


def _token_major(like: Float[Tensor, "g n k"]) -> Float[Tensor, "g n k"]:
    """Room for a tensor of this shape that lies token by token, as projections want it."""
    problems, n, k = like.shape
    return like.new_empty(n, problems, k).transpose(0, 1)
