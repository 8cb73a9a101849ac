r"""Tiled attention on queries, keys and values: its value, both derivatives, and the one second
derivative that serves every composition of them, in memory linear in the number of tokens.

One head, $u_{ij} = s\langle q_i, k_j\rangle$, score $z_{ij} = c(u_{ij}) + b_{ij}$ with
$c(u) = u$ or the soft-cap $C\tanh(u/C)$, and a sink of logit a that has no value:

$$ P_{ij} = \frac{e^{z_{ij}}}{e^a + \sum_l e^{z_{il}}}, \qquad o_i = \sum_j P_{ij} v_j. $$

A change of the inputs moves u and $\dot z = c'(u)\dot u + \dot b$. With
$\delta_i = \sum_j P_{ij}\dot z_{ij} + P_{i0}\dot a$ (0 is the sink)

$$ \dot o_i = \sum_j P_{ij}\big[\dot z_{ij} v_j + \dot v_j\big] - \delta_i o_i, $$

and the adjoint at g is $\bar z_{ij} = P_{ij}\langle g_i, v_j - o_i\rangle$,
$\bar a = -\sum_i P_{i0}\langle g_i, o_i\rangle$, $\bar v_j = \sum_i P_{ij} g_i$.

The pairing $\phi = \langle g, \dot o\rangle$ is linear in g and in the change: its gradients in
those two are again the derivative and the adjoint. Its gradient in the inputs, with
$w_{ij} = \langle g_i, v_j\rangle$, $r_i = \langle g_i, o_i\rangle$ and
$y_{ij} = \langle g_i, \dot v_j\rangle$ ($w = y = 0$ for the sink), follows from

$$ \frac{\partial\phi}{\partial z_{ij}} = P_{ij}\big[a_{ij} - \mathbb{E}_{P_i}a\big], \quad
   a_{ij} = (\dot z_{ij} - \delta_i)(w_{ij} - r_i) + y_{ij}, \quad
   \frac{\partial\phi}{\partial\dot z_{ij}} = \bar z_{ij}. $$

Tiles are made again from two numbers per row, its largest score and its total (log-sum-exp alone
loses the total where a row is masked by a huge finite number).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.operators import kernels
from attnscope.operators._tiles import Grid, Inputs, Tile

__all__ = ["Form", "Inputs", "Tiled"]


class Form(NamedTuple):
    """What is never differentiated: the scale of the scores and their soft-cap."""

    scale: float
    softcap: float | None = None


class _Made(NamedTuple):
    """A tile made again, and what meets in it; rows are those of all heads of a group."""

    exp: Float[Tensor, "p rows keys"]
    """$e^{z - \\max z}$"""
    steep: Float[Tensor, "p rows keys"]
    """$c'(u)e^{z - \\max z}$: the slope costs products nothing where tiles are kept"""
    tanh: Float[Tensor, "p rows keys"] | None
    """of the soft-cap, while the tile is not kept: second derivatives alone ask for it"""
    inverse: Float[Tensor, "p rows 1"] | None
    """one over the row's total; None where the others carry it, as those that are kept do"""
    sink: Float[Tensor, "p rows 1"] | None
    """$e^{a - \\max z}$"""
    q: Float[Tensor, "p rows k"]
    k: Float[Tensor, "p keys k"]
    v: Float[Tensor, "p keys v"]
    o: Float[Tensor, "p rows v"]


class Tiled:
    """Attention at one point, by tiles; a row that reads no key gives 0.

    Shapes are those of `Inputs`; the mask is one that `Grid` reads.
    """

    def __init__(
        self,
        q: Float[Tensor, "b h m k"],
        k: Float[Tensor, "b g n k"],
        v: Float[Tensor, "b g n v"],
        bias: Tensor | None,
        sinks: Tensor | None,
        mask: Tensor | None,
        form: Form,
        keep: bool = False,
    ) -> None:
        """With `keep` tiles are made once, where they fit a budget: for many products here."""
        self.form, self.masked, self.given = form, mask is not None, (bias, sinks)
        self.grid = Grid(q, k, mask)
        of_each = 1 if form.softcap is None else 2  # P, and P times the slope of the soft-cap
        size = of_each * self.grid.entries * q.element_size()
        small = self.grid.m <= kernels.STORED_ROWS and size <= kernels.STORED_BYTES
        self.kept: dict[tuple[int, int], _Made] | None = {} if keep and small else None
        # every product wants one factor times the scale: the one that does not change
        self.q, self.k = self.grid.queries(form.scale * q), self.grid.keys(form.scale * k)
        self.plain_k, self.v = self.grid.keys(k), self.grid.keys(v)
        self.bias, self.sinks = self.grid.biases(bias), self.grid.sinks(sinks)

    def value(self) -> tuple[Float[Tensor, "b h m v"], Float[Tensor, "b h m 2"]]:
        """The output, and each row's largest score and total."""
        o, grid = self.grid.output(self.v), self.grid
        rows = self.q.new_empty(grid.batches, grid.groups * grid.shared, grid.m, 2)
        for tile in grid.tiles():
            z, _ = self._scores(tile)
            top = z.amax(-1, keepdim=True)
            sink = None if self.sinks is None else self._sink(tile, self.sinks)
            if sink is not None:
                top = torch.maximum(top, sink)
            if self.masked:  # where a row reads nothing its largest score is -inf: avoid NaN
                top.clamp_(min=torch.finfo(z.dtype).min)
            exp = z.sub_(top).exp_()
            total = exp.sum(-1, keepdim=True)
            if sink is not None:
                total += (sink - top).exp_()
            part = torch.bmm(exp, self.v[tile.problems, tile.keys]).mul_(_inverse(total))
            grid.grouped(o)[tile.there] = grid.tiled(tile, part)
            grid.grouped(rows)[tile.there] = grid.tiled(tile, torch.cat([top, total], -1))
        return o, rows

    def jvp(self, o: Tensor, rows: Tensor, change: Inputs) -> Float[Tensor, "b h m v"]:
        """The change of the output."""
        out, moved = self.grid.output(self.v), self._flat(change)
        for tile in self.grid.tiles():
            made = self._again(tile, o, rows)
            dz = self._product_change(tile, made, moved).mul_(made.steep)
            if moved.bias is not None:
                p = self.grid.tiled(tile, made.exp)
                self.grid.tiled(tile, dz).addcmul_(moved.bias[tile.scores], p)
            part = torch.bmm(dz, made.v)
            if moved.v is not None:
                part.baddbmm_(made.exp, moved.v[tile.problems, tile.keys])
            total = self._with_sink(tile, made, dz.sum(-1, keepdim=True), moved)
            part.addcmul_(total, made.o, value=-1)
            self.grid.grouped(out)[tile.there] = self.grid.tiled(tile, _over(part, made))
        return out

    def vjp(self, o: Tensor, rows: Tensor, g: Tensor, wanted: tuple[bool, bool]) -> Inputs:
        """The adjoint: gradients of <g, output>; those of bias and sinks where `wanted`."""
        into = _Gradients(self, wanted)
        for tile in self.grid.tiles():
            made = self._again(tile, o, rows)
            here, rate = self._rate(tile, made, g)
            into.values(tile, made.exp, here)
            w = torch.bmm(here, made.v.mT).sub_(rate)
            into.bias(tile, w, made.exp)
            if made.sink is not None:
                into.sinks(tile, -made.sink * rate)
            into.products(tile, w.mul_(made.steep), made.q, made.k)
        return into.result()

    def second(
        self, o: Tensor, rows: Tensor, change: Inputs, g: Tensor, wanted: tuple[bool, bool]
    ) -> Inputs:
        """The gradient of <g, jvp(change)> in the inputs; also the derivative of `vjp(g)` along
        `change`, since second derivatives are symmetric.
        """
        into, moved = _Gradients(self, wanted), self._flat(change)
        for tile in self.grid.tiles():
            made = self._made(tile, o, rows)
            here, rate = self._rate(tile, made, g)
            du = self._product_change(tile, made, moved)
            dz = _slope(du.clone(), made)
            if moved.bias is not None:
                self.grid.tiled(tile, dz).add_(moved.bias[tile.scores])
            delta = (dz * made.exp).sum(-1, keepdim=True)
            delta = _over(self._with_sink(tile, made, delta, moved), made)
            dz -= delta
            w = torch.bmm(here, made.v.mT).sub_(rate)
            a = w * dz
            if moved.v is not None:
                a.baddbmm_(here, moved.v[tile.problems, tile.keys].mT)
            into.values(tile, dz.mul_(made.exp), here)
            mean = (a * made.exp).sum(-1, keepdim=True)
            if made.sink is not None:
                da = -delta
                if moved.sinks is not None:
                    da = da + self._sink(tile, moved.sinks)
                mean = mean - made.sink * da * rate
                into.sinks(tile, -made.sink * (da * rate + _over(mean, made)))
            a.sub_(_over(mean, made))
            into.bias(tile, a, made.exp)
            slope, a = w.mul_(made.steep), a.mul_(made.steep)
            if made.tanh is not None and self.form.softcap is not None:  # c'' = -2 tanh c' / C
                a.addcmul_(slope * made.tanh, du, value=-2 / self.form.softcap)
            into.products(tile, a, made.q, made.k)
            q, k = self._strips(tile, moved)
            into.products(tile, slope, *(x if x is None else self.form.scale * x for x in (q, k)))
        return into.result()

    def _flat(self, change: Inputs) -> Inputs:
        """A change in the shapes that tiles are cut from."""
        return Inputs(
            None if change.q is None else self.grid.queries(change.q),
            None if change.k is None else self.grid.keys(change.k),
            None if change.v is None else self.grid.keys(change.v),
            self.grid.biases(change.bias),
            self.grid.sinks(change.sinks),
        )

    def _scores(self, tile: Tile) -> tuple[Tensor, Tensor | None]:
        """z of a tile, -inf where hidden, and the tanh of its soft-cap."""
        strip = self.q[tile.problems, :, tile.rows].flatten(1, 2)
        z, tanh = torch.bmm(strip, self.plain_k[tile.problems, tile.keys].mT), None
        if self.form.softcap is not None:
            tanh = z.div_(self.form.softcap).tanh_()
            z = tanh * self.form.softcap
        wide = self.grid.tiled(tile, z)
        if self.bias is not None:
            wide += self.bias[tile.scores]
        self.grid.hide(tile, wide)
        return z, tanh

    def _again(self, tile: Tile, o: Tensor, rows: Tensor) -> _Made:
        if self.kept is None:
            return self._made(tile, o, rows)
        place = tile.problems.start, tile.rows.start
        if place not in self.kept:
            self.kept[place] = _normalised(self._made(tile, o, rows))
        return self.kept[place]

    def _made(self, tile: Tile, o: Tensor, rows: Tensor) -> _Made:
        z, tanh = self._scores(tile)
        top, total = self._rows(tile, rows).split(1, -1)
        sink = None if self.sinks is None else (self._sink(tile, self.sinks) - top).exp_()
        exp = z.sub_(top).exp_()
        steep = exp if tanh is None else torch.addcmul(exp, exp * tanh, tanh, value=-1)
        q = self.q[tile.problems, :, tile.rows].flatten(1, 2)
        k, v = (part[tile.problems, tile.keys] for part in (self.k, self.v))
        return _Made(exp, steep, tanh, _inverse(total), sink, q, k, v, self._rows(tile, o))

    def _product_change(self, tile: Tile, made: _Made, moved: Inputs) -> Tensor:
        """The change of u."""
        du: Tensor | None = None
        q, k = self._strips(tile, moved)
        if q is not None:
            du = torch.bmm(q, made.k.mT)
        if k is not None:
            du = torch.bmm(made.q, k.mT) if du is None else du.baddbmm_(made.q, k.mT)
        return torch.zeros_like(made.exp) if du is None else du

    def _strips(self, tile: Tile, of: Inputs) -> tuple[Tensor | None, Tensor | None]:
        """Queries and keys that meet in a tile."""
        q = None if of.q is None else of.q[tile.problems, :, tile.rows].flatten(1, 2)
        return q, None if of.k is None else of.k[tile.problems, tile.keys]

    def _rows(self, tile: Tile, x: Float[Tensor, "b h m w"]) -> Float[Tensor, "p rows w"]:
        """Its rows of what every query has."""
        return _flat(self.grid.grouped(x)[tile.there])

    def _sink(self, tile: Tile, sinks: Tensor) -> Float[Tensor, "p rows 1"]:
        """A number for each head at each of its rows."""
        height = tile.rows.stop - tile.rows.start
        return _flat(sinks[tile.batch, tile.group].expand(-1, -1, -1, height, 1))

    def _with_sink(self, tile: Tile, made: _Made, total: Tensor, moved: Inputs) -> Tensor:
        """The sink's own change added to a sum over the keys."""
        if made.sink is None or moved.sinks is None:
            return total
        return total + made.sink * self._sink(tile, moved.sinks)

    def _rate(self, tile: Tile, made: _Made, g: Tensor) -> tuple[Tensor, Tensor]:
        """g_i and r_i over the row's total: what carries it needs no division entry by entry."""
        here = _over(self._rows(tile, g), made)
        return here, (here * made.o).sum(-1, keepdim=True)


class _Gradients:
    """Gradients as they add up tile by tile."""

    def __init__(self, at: Tiled, wanted: tuple[bool, bool]) -> None:
        self.grid = at.grid
        self.q, self.k, self.v = (torch.zeros_like(part) for part in (at.q, at.k, at.v))
        self.of_bias = _zeros(at.given[0] if wanted[0] else None)
        self.of_sinks = _zeros(at.given[1] if wanted[1] else None)

    def products(self, tile: Tile, du: Tensor, q: Tensor | None, k: Tensor | None) -> None:
        """From gradients in u to those in its factors; q and k are given times the scale."""
        if k is not None:
            into = self.q[tile.problems, :, tile.rows]
            into += torch.bmm(du, k).view(into.shape)
        if q is not None:
            self.k[tile.problems, tile.keys].baddbmm_(du.mT, q)

    def values(self, tile: Tile, p: Tensor, here: Tensor) -> None:
        self.v[tile.problems, tile.keys].baddbmm_(p.mT, here)

    def bias(self, tile: Tile, dz: Tensor, p: Tensor) -> None:
        if self.of_bias is not None:
            _add(self.of_bias, self.grid, tile, self.grid.tiled(tile, dz * p), tile.scores)

    def sinks(self, tile: Tile, da: Tensor) -> None:
        if self.of_sinks is not None:
            _add(self.of_sinks, self.grid, tile, self.grid.tiled(tile, da), tile.scores)

    def result(self) -> Inputs:
        grid = self.grid

        def heads(part: Tensor) -> Tensor:
            return part.unflatten(0, (grid.batches, grid.groups))

        return Inputs(
            heads(self.q).flatten(1, 2),
            heads(self.k),
            heads(self.v),
            self.of_bias,
            self.of_sinks,
        )


def _zeros(like: Tensor | None) -> Tensor | None:
    return None if like is None else torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def _add(into: Tensor, grid: Grid, tile: Tile, part: Tensor, where: tuple[slice, ...]) -> None:
    """Add a tile to a tensor whose axes of length 1 stand for all of theirs."""
    groups = (grid.groups, grid.shared) if into.shape[1] > 1 else (1, 1)
    wide = into.unflatten(1, groups)
    over = [axis for axis in range(5) if wide.shape[axis] == 1 and part.shape[axis] > 1]
    if over:
        part = part.sum(over, keepdim=True)
    wide[tuple(slice(None) if wide.shape[axis] == 1 else where[axis] for axis in range(5))] += part


def _flat(tile: Tensor) -> Tensor:
    """(batches, groups, heads of a group, rows, w) as (problems, rows of all heads, w)."""
    return tile.reshape(-1, tile.shape[2] * tile.shape[3], tile.shape[4])


def _over(part: Tensor, made: _Made) -> Tensor:
    """Over the row's total, unless that is inside."""
    return part if made.inverse is None else part * made.inverse


def _normalised(made: _Made) -> _Made:
    """The same tile for many products: everything in it over the row's total."""
    exp = _over(made.exp, made)
    steep = exp if made.tanh is None else _over(made.steep, made)
    sink = None if made.sink is None else _over(made.sink, made)
    return made._replace(exp=exp, steep=steep, tanh=None, inverse=None, sink=sink)


def _inverse(total: Tensor) -> Tensor:
    """One over a row's total, 0 for a row that reads nothing."""
    return torch.where(total == 0, 0, total.reciprocal())


def _slope(dz: Tensor, made: _Made) -> Tensor:
    """c'(u) = 1 - tanh^2 times `dz`, written over it."""
    return dz if made.tanh is None else dz.addcmul_(dz * made.tanh, made.tanh, value=-1)
