r"""Golub-Kahan-Lanczos bidiagonalisation of a stack of linear maps, all processes advancing
together [golub65].

$J V_k = U_k B_k$, $J^T U_k = V_k B_k^T + \beta_k v_{k+1} e_k^T$ with $B_k$ upper bidiagonal, whose
singular values are lower bounds of those of $J$. Only $V$ is stored and reorthogonalised; every
norm is accumulated in float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import home, lengths
from attnscope.operators.scaling import in_range, norms

BLOCK = 8
MORE_STEPS = 20
CANCELLED = 1e-3
"""The least part of a Gram matrix's norm with which it may measure a vector."""


@dataclass
class Process:
    """What is known of each of the `b` problems: its bidiagonal, and where it ended."""

    alpha: Float64[np.ndarray, "b k"]
    beta: Float64[np.ndarray, "b k"]
    steps: Int[np.ndarray, " b"]
    """Columns of V that the Ritz vectors use: one more than rows of B where the left side broke
    down.
    """
    finished: Bool[np.ndarray, " b"]
    """An invariant subspace was reached up to rounding: no further step means anything."""

    def matrices(self) -> Float64[np.ndarray, "b k k"]:
        """The bidiagonals, with zeros beyond the steps of each problem."""
        k = self.alpha.shape[1]
        made = np.zeros((len(self.alpha), k, k))
        index = np.arange(k)
        made[:, index, index] = self.alpha
        made[:, index[:-1], index[1:]] = self.beta[:, :-1]
        return made

    def rows(self, which: Int[np.ndarray, " c"]) -> Process:
        return Process(self.alpha[which], self.beta[which], self.steps[which], self.finished[which])

    def continued(
        self, alpha: Float64[np.ndarray, "b m"], beta: Float64[np.ndarray, "b m"]
    ) -> Process:
        """The process as if m more steps had given these coefficients."""
        alpha, beta = (
            np.concatenate(parts, axis=1) for parts in ((self.alpha, alpha), (self.beta, beta))
        )
        return Process(alpha, beta, self.steps, self.finished)

    def last_beta(self) -> Float64[np.ndarray, " b"]:
        return self.beta[np.arange(len(self.beta)), self.steps - 1]


@dataclass
class Ritz:
    """The largest Ritz values of each problem, their residuals, and an estimate of the relative
    error of the largest.
    """

    values: Float64[np.ndarray, "b k"]
    residuals: Float64[np.ndarray, "b k"]
    right: Float64[np.ndarray, "b k k"]
    """Rows are the right singular vectors of B: coordinates of Ritz vectors in V."""
    errors: Float64[np.ndarray, "b k"]

    @classmethod
    def of(cls, process: Process) -> Ritz:
        r"""Singular values $\theta_i$ of B with residuals $\beta_k|x_i[k]|$, error estimate
        $\rho^2/(2\max(\mathrm{gap}, \rho))$.
        """
        left, values, right = np.linalg.svd(process.matrices())
        last = left[np.arange(len(left)), process.steps - 1]
        residuals = process.last_beta()[:, None] * np.abs(last)
        squared = (values / np.maximum(values[:, :1], 1e-300)) ** 2
        apart = np.abs(squared[:, :, None] - squared[:, None, :]) + 2.0 * np.eye(values.shape[1])
        scale = np.maximum(values, 1e-300)
        rho = np.where(values > 0, residuals / scale, 0.0)
        gap = apart.min(axis=2) / np.maximum(squared, 1e-300)
        gap = np.minimum(gap, 1.0)
        return cls(
            values, residuals, right, rho**2 / (2 * np.maximum(np.maximum(gap, rho), 1e-300))
        )

    def rows(self, which: Int[np.ndarray, " c"]) -> Ritz:
        return Ritz(
            self.values[which], self.residuals[which], self.right[which], self.errors[which]
        )


def ahead(process: Process) -> Float64[np.ndarray, "b m"]:
    r"""Coordinates of the best known vector of $\mathrm{span}\,V_{k+1}$, of which J has not yet
    seen the last direction.

    $\|JV_{k+1}y\|^2 = \|[B_k, \beta_ke_k]\,y\|^2 + (\alpha_{k+1}y_{k+1})^2$: with y the top right
    singular vector of the matrix that is known, one product finds almost what a pair would, and
    never less than the largest Ritz value.
    """
    return np.linalg.svd(_known(process))[2][:, 0]


def still_to_come(process: Process) -> Float64[np.ndarray, " b"]:
    r"""An estimate of $\sigma/\|[B_k, \beta_ke_k]\| - 1$: what more pairs would add if they went on
    with coefficients as lately.

    B is continued by MORE_STEPS steps with the mean of its last third; its top singular value is
    what those pairs would find. Where the residual bound $\rho^2/(2\,\mathrm{gap})$ puts all of the
    residual on the second singular vector, this weighs it by the spectrum seen so far.
    """
    lately = max(2, process.alpha.shape[1] // 3)
    means = (
        coefficients[:, -lately:].mean(axis=1, keepdims=True)
        for coefficients in (process.alpha, process.beta)
    )
    continued = process.continued(*(np.repeat(mean, MORE_STEPS, axis=1) for mean in means))
    found, now = (
        np.linalg.svd(made, compute_uv=False)[:, 0]
        for made in (continued.matrices(), _known(process))
    )
    return found / np.maximum(now, 1e-300) - 1


def _known(process: Process) -> Float64[np.ndarray, "b m m"]:
    """[B, beta e] with a row of zeros below; a finished process has no further direction, its last
    beta counts as zero.
    """
    none = np.zeros((len(process.alpha), 1))
    last = np.where(process.finished, 0.0, process.beta[:, -1])[:, None]
    return (
        dataclasses.replace(process, beta=np.concatenate([process.beta[:, :-1], last], axis=1))
        .continued(none, none)
        .matrices()
    )


@dataclass
class Basis:
    """Orthonormal vectors in blocks of BLOCK, so that a new one never moves the old ones."""

    blocks: list[Float[Tensor, "b BLOCK N"]]
    count: int = 0

    def append(self, vectors: Float[Tensor, "b N"]) -> None:
        place = self.count % BLOCK
        if not place:
            self.blocks.append(vectors.new_empty(len(vectors), BLOCK, vectors.shape[1]))
        self.blocks[-1][:, place] = vectors
        self.count += 1

    def filled(self) -> Iterator[Float[Tensor, "b k N"]]:
        """The blocks, the last one cut to what it holds."""
        for number, block in enumerate(self.blocks):
            yield block[:, : self.count - number * BLOCK]

    def remove_from(self, w: Float[Tensor, "b N"]) -> Float[Tensor, " b"]:
        r"""$w \leftarrow w - V V^T w$, in place; returns $\|V^Tw\|^2$, what was removed."""
        removed = w.new_zeros(len(w))
        for block in self.filled():
            overlap = torch.bmm(
                w.unsqueeze(1), block.mT
            )  # eight times faster on a stack than block @ w
            w.unsqueeze(1).baddbmm_(overlap, block, alpha=-1)
            removed += overlap.square().sum((1, 2))
        return removed

    def combined(
        self, coordinates: Float[Tensor, "r c k"], rows: Int[Tensor, " r"]
    ) -> Float[Tensor, "r c N"]:
        """Combinations of the vectors of these problems, in ascending order, c for each."""
        parts = zip(coordinates.split(BLOCK, dim=2), self.filled(), strict=True)
        return sum(  # type: ignore[return-value]
            torch.bmm(part, block if len(rows) == len(block) else block[rows])  # all: no copy
            for part, block in parts
        )

    def shrink(self, order: Int[np.ndarray, " c"]) -> None:
        """Keep these problems, in this order; those that keep their place are not copied."""
        moved = np.flatnonzero(order != np.arange(len(order)))
        to, origin = (
            torch.as_tensor(rows, device=self.blocks[0].device) for rows in (moved, order[moved])
        )
        for number, block in enumerate(self.blocks):
            block[to] = block[origin]
            self.blocks[number] = block[: len(order)]


class Cancellation(Exception):
    """A Gram matrix nearly sends what it measures to zero: too few digits are left."""


@dataclass
class Lanczos:
    """The running state for a stack that was flattened to one axis; vectors are (b, N)."""

    op: LinearOperator
    start: Float[Tensor, "b N"]
    basis: Basis = field(init=False)

    def __post_init__(self) -> None:
        problems = len(self.start)
        self.rounding = noise(self.op.dtype)
        self.process = Process(
            np.zeros((problems, 0)),
            np.zeros((problems, 0)),
            np.zeros(problems, dtype=int),
            np.zeros(problems, dtype=bool),
        )
        self.active = np.ones(problems, dtype=bool)
        self.scale = np.zeros(problems)
        self.v = self.start
        self.u = torch.zeros(0)
        self.beta = torch.zeros(0)
        self.basis = Basis([])

    def step(self) -> None:
        """One product with J and one with its adjoint for every active problem.

        Everything happens on the device, and what the host decides from comes back in one transfer
        at the end; in a second one only where a remainder has nearly vanished.
        """
        self.basis.append(self.v)
        r = self.op.mv(self.v.reshape(-1, *self.op.in_shape)).reshape(len(self.v), -1)
        if self.basis.count > 1:
            r = torch.addcmul(r, self._column(self.beta), self.u, value=-1)
        y, alpha, cancelled = self._measured(r)
        most = self.rounding * math.sqrt(self.start.shape[1]) * self.scale
        stuck = self._sent(np.where(self.active, most, np.inf), alpha)
        moves = (alpha > stuck) & in_range(alpha, r.dtype)
        inverse = self._column(torch.where(moves, 1 / alpha, 0.0))
        self.u = r * inverse
        y = self.u if y is r else y.mul_(inverse)
        w = self.op.rmv(y.reshape(-1, *self.op.out_shape)).reshape(len(self.v), -1)
        w = torch.addcmul(w, self._column(torch.where(moves, alpha, 0.0)), self.v, value=-1)
        removed = self.basis.remove_from(w)
        self.beta = lengths(w)
        told = torch.stack(
            [part.to(alpha.dtype) for part in (alpha, self.beta, removed, moves, cancelled)]
        )
        found, beta, lost, moved, unsure = told.cpu().double().numpy()
        if (self.active & (unsure > 0)).any():
            raise Cancellation
        if (lost > 3 * beta**2).any():  # less than half is left: it may not be orthogonal yet
            self.basis.remove_from(w)
            self.beta = lengths(w)
            beta = self.beta.cpu().double().numpy()
        if (self.active & (moved == 0)).any():
            found = np.where(moved == 0, norms(r), found)  # stuck, unless squares left the range
        self._check(found, beta)
        self._remember(found, beta, self.active & (moved == 0))
        going = self.active & ~self.process.finished
        inverse = np.divide(1.0, beta, out=np.zeros_like(beta), where=going)
        self.v = w * self._column(self._sent(inverse, w))

    def _measured(
        self, r: Float[Tensor, "b N"]
    ) -> tuple[Float[Tensor, "b N"], Float[Tensor, " b"], Bool[Tensor, " b"]]:
        """What the adjoint takes, r or what a Gram matrix makes of it; the norms of r; and where
        that matrix has cancelled too much of them.
        """
        gram = self.op.gram
        if gram is None:
            alpha = lengths(r)
            return r, alpha, torch.zeros_like(alpha, dtype=torch.bool)
        y = gram(r)
        kind = torch.float64 if home(r.device) == r.device else r.dtype
        squares = (r * y).sum(1, dtype=kind).clamp(min=0)
        least = CANCELLED * gram.size * torch.linalg.vector_norm(r, dim=1).square()
        return y, squares.sqrt(), squares < least

    def _remember(
        self,
        alpha: Float64[np.ndarray, " b"],
        beta: Float64[np.ndarray, " b"],
        stuck: Bool[np.ndarray, " b"],
    ) -> None:
        """Write down the coefficients of a step, and which problems they finish."""
        process, active = self.process, self.active
        beta = np.where(stuck, self.scale, beta)  # not known, at most this
        alpha, beta = np.where(active, alpha, 0.0), np.where(active, beta, 0.0)
        process.alpha = np.concatenate([process.alpha, alpha[:, None]], axis=1)
        process.beta = np.concatenate([process.beta, beta[:, None]], axis=1)
        process.steps = process.steps + active
        self.scale = np.maximum(self.scale, np.hypot(alpha, beta))
        process.finished |= active & (
            stuck | (beta <= self.rounding * self.scale) | (process.steps >= self.start.shape[1])
        )

    def freeze(self, done: Bool[np.ndarray, " b"]) -> None:
        """These problems stop here: their vectors become zero and cost nothing in later steps but
        the arithmetic.
        """
        self.active &= ~done
        keep = torch.as_tensor(self.active, device=self.v.device)[:, None]
        self.v, self.u = self.v * keep, self.u * keep

    def vectors(
        self, coordinates: Float64[np.ndarray, "r c k"], rows: Int[np.ndarray, " r"]
    ) -> Float[Tensor, "r c N"]:
        """Combinations of the basis vectors of these problems; one coordinate more than steps takes
        the next vector too.
        """
        made = torch.as_tensor(coordinates, dtype=self.op.dtype, device=self.v.device)
        index = torch.as_tensor(rows, device=self.v.device)
        held, beyond = made[..., : self.basis.count], made[..., self.basis.count :]
        combined = self.basis.combined(held, index)
        return combined + beyond * self.v[index, None] if beyond.shape[2] else combined

    def shrink(self) -> Int[np.ndarray, " c"]:
        """Go on with the active problems alone, on the operator of that sub-stack; returns which
        problem each row now is.
        """
        assert self.op.restrict is not None
        left = int(self.active.sum())
        order = np.arange(left)
        order[~self.active[:left]] = left + np.flatnonzero(self.active[left:])
        index = torch.as_tensor(order, device=self.v.device)
        self.op = self.op.restrict(index)
        self.basis.shrink(order)
        self.start, self.v, self.u, self.beta = (
            part[index] for part in (self.start, self.v, self.u, self.beta)
        )
        self.active, self.scale = self.active[order], self.scale[order]
        self.process = self.process.rows(order)
        return order

    def _check(self, *found: Float64[np.ndarray, " b"]) -> None:
        bad = np.flatnonzero(~np.isfinite(found).all(axis=0)).tolist()
        if bad:
            raise ValueError(
                f"the operator returned NaN or infinite values for problem(s) {bad}: an overflow in"
                f" {self.op.dtype}, or a fully masked row. Use smaller inputs or a wider dtype."
            )

    def _column(self, values: Float[Tensor, " b"]) -> Float[Tensor, "b 1"]:
        return values.to(self.op.dtype)[:, None]

    def _sent(self, values: Float64[np.ndarray, " b"], like: Tensor) -> Float[Tensor, " b"]:
        """Numbers of the host on the device: they wait for nothing there."""
        return torch.as_tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def noise(dtype: torch.dtype) -> float:
    """What a vanished remainder measures, relative to the map: a smaller coupling cannot be told
    from rounding.
    """
    return 4 * torch.finfo(dtype).eps
