"""How fused attention is cut: some heads, a strip of queries, and every key that the strip may
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LEAST_TILE_ROWS = 16


class Sizes(NamedTuple):
    """How large tiles are: rows of queries, fewer where rows read different ranges and short strips
    waste less on what is hidden, and scores of all problems together.
    """

    rows: int
    narrow: int
    entries: int


IN_CACHE = Sizes(256, 64, 2**20)
"""A few megabytes: on a CPU a tile is read and written several times and should stay in the cache.
"""
LAUNCHED = Sizes(1024, 256, 2**25)
"""Elsewhere each operation is a launch, and must be large enough to fill the device."""


def tile_sizes(device: torch.device) -> Sizes:
    return IN_CACHE if device.type == "cpu" else LAUNCHED


class Inputs(NamedTuple):
    """Queries, keys and values (a group is the heads that share them), additive bias and sinks; or
    changes of them, or gradients, where None is zero.

    Axes of the bias, and the first one of the sinks, may have length 1.
    """

    q: Float[Tensor, "b h m k"] | None
    k: Float[Tensor, "b g n k"] | None
    v: Float[Tensor, "b g n v"] | None
    bias: Float[Tensor, "b h m n"] | None = None
    sinks: Float[Tensor, "b h 1 1"] | None = None


class Tile(NamedTuple):
    """Batches, groups (both together: problems of a batched product), query rows and keys."""

    batch: slice
    group: slice
    problems: slice
    rows: slice
    keys: slice
    free: slice
    """The keys, counted from the first of the tile, that every row of it reads."""

    @property
    def there(self) -> tuple[slice, slice, slice, slice]:
        """Its rows in (batches, groups, heads of a group, rows, ...)."""
        return self.batch, self.group, slice(None), self.rows

    @property
    def scores(self) -> tuple[slice, slice, slice, slice, slice]:
        """Its scores in (batches, groups, heads of a group, rows, keys)."""
        return *self.there, self.keys


class Grid:
    """The shape of a problem and its tiles.

    `mask` says which keys a row reads: a boolean tensor that broadcasts over (b, h, m, n), or an
    integer one of shape (b or 1, 1, m, 2) with the first key of each row's interval and the one
    after its last.
    """

    def __init__(self, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        self.batches, self.groups, self.n = k.shape[:3]
        self.m, self.shared = q.shape[2], q.shape[1] // k.shape[1]
        boolean = mask is not None and mask.dtype == torch.bool
        self.reads = self.biases(mask) if boolean else None
        self.inside = None if boolean else mask
        self.sizes = tile_sizes(q.device)
        self.strips = list(self._strips())

    @property
    def entries(self) -> int:
        """The scores of all tiles."""
        of_each = sum((rows.stop - rows.start) * (k.stop - k.start) for rows, k, _ in self.strips)
        return self.batches * self.groups * self.shared * of_each

    def tiles(self) -> Iterator[Tile]:
        for rows, keys, free in self.strips:
            height, width = rows.stop - rows.start, keys.stop - keys.start
            at_once = max(1, self.sizes.entries // (self.shared * height * width))
            batches, groups = max(1, at_once // self.groups), min(at_once, self.groups)
            for b in range(0, self.batches, batches):
                batch = slice(b, min(b + batches, self.batches))
                for g in range(0, self.groups, groups):
                    group = slice(g, min(g + groups, self.groups))
                    first = b * self.groups + g
                    count = (batch.stop - b) * (group.stop - g)
                    yield Tile(batch, group, slice(first, first + count), rows, keys, free)

    def _strips(self) -> Iterator[tuple[slice, slice, slice]]:
        """Rows, the keys that some of them read, and those that all of them read."""
        rows, narrow, entries = self.sizes
        most = rows if self.inside is None else narrow
        height = min(most, max(LEAST_TILE_ROWS, entries // (self.shared * self.n)))
        ends = None if self.inside is None else self.inside.cpu()  # once, not at every product
        for start in range(0, self.m, height):
            strip = slice(start, min(start + height, self.m))
            if ends is None:
                yield strip, slice(0, self.n), slice(0, self.n)
                continue
            first, stop = ends[:, 0, strip].flatten(0, 1).unbind(-1)
            low = min(int(first.min()), self.n - 1)
            high = max(int(stop.max()), low + 1)  # one key even where no row reads any
            free = (int(first.max()) - low, int(stop.min()) - low)
            # where no key is free for all, every column is looked at: both ends then meet at 0
            yield strip, slice(low, high), slice(*free) if free[0] < free[1] else slice(0, 0)

    def hide(self, tile: Tile, z: Tensor) -> None:
        """Write -inf where a row does not read a key."""
        if self.reads is not None:
            z.masked_fill_(~self.reads[tile.scores], float("-inf"))
        if self.inside is None:
            return
        batch = tile.batch if self.inside.shape[0] > 1 else slice(None)
        ends = self.inside[batch, :, None, tile.rows, None]
        at = torch.arange(tile.keys.start, tile.keys.stop, device=z.device)
        for part in (slice(0, tile.free.start), slice(tile.free.stop, None)):
            if at[part].numel():
                hidden = (at[part] < ends[..., 0]) | (at[part] >= ends[..., 1])
                z[..., part].masked_fill_(hidden, float("-inf"))

    def tiled(self, tile: Tile, flat: Tensor) -> Tensor:
        """(problems, rows of all heads of a group, keys) split into its five axes."""
        batches, groups = tile.batch.stop - tile.batch.start, tile.group.stop - tile.group.start
        height = tile.rows.stop - tile.rows.start
        return flat.view(batches, groups, self.shared, height, flat.shape[-1])

    def grouped(self, x: Tensor) -> Tensor:
        """Heads split into groups."""
        return x.unflatten(1, (self.groups, self.shared))

    def queries(self, q: Tensor) -> Tensor:
        """As (problems, heads of a group, m, k)."""
        return self.grouped(q).flatten(0, 1)

    def keys(self, k: Tensor) -> Tensor:
        """Keys or values as (problems, n, k)."""
        return k.flatten(0, 1)

    def biases(self, bias: Tensor | None) -> Tensor | None:
        """Over all batches, heads, rows and keys, as a view."""
        return None if bias is None else self._wide(bias, self.m, self.n)

    def sinks(self, sinks: Tensor | None) -> Tensor | None:
        """Over all batches and heads, as a view."""
        return None if sinks is None else self._wide(sinks, 1, 1)

    def _wide(self, part: Tensor, m: int, n: int) -> Tensor:
        return self.grouped(part.expand(self.batches, self.groups * self.shared, m, n))

    def output(self, v: Tensor) -> Tensor:
        """Room for the output that lies token by token, as the model's projection wants it."""
        heads = self.groups * self.shared
        return v.new_empty(self.batches, self.m, heads, v.shape[-1]).transpose(1, 2)
