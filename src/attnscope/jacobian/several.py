r"""Several singular values at once, multiplicities included."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from attnscope.jacobian.bracket import SLACK
from attnscope.jacobian.lanczos import Lanczos, Ritz, starts
from attnscope.jacobian.operator import LinearOperator
from attnscope.jacobian.spectrum import check_call


def singular_values(op: LinearOperator, k: int = 5, tol: float = 1e-6, seed: int = 0, max_pairs: int = 200) -> Float64[Tensor, "*stack k"]:
    r"""The k largest singular values in the metric of the map, multiplicities included; each is a lower bound of its true value.

    A single start sees one copy of a multiple value, so the search is repeated on the orthogonal complement of the right vectors found
    until nothing new is larger than the k-th. The values are those of J restricted to the span of all vectors found.
    """
    check_call(op, tol, None, max_pairs)
    rows, columns = op.shape
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= min(rows, columns):
        raise ValueError(f"k must be a whole number from 1 to {min(rows, columns)}, the smaller side of the map, got {k!r}.")
    if op.stack:
        assert op.restrict is not None
        parts = [op.restrict(torch.tensor([b], device=op.device)) for b in range(math.prod(op.stack))]
        return torch.stack([_several(part.flat(), k, tol, seed, max_pairs) for part in parts]).reshape(*op.stack, k)
    return _several(op.flat(), k, tol, seed, max_pairs)


def _several(op: LinearOperator, k: int, tol: float, seed: int, max_pairs: int) -> Float64[Tensor, " k"]:
    op = op.adjoint() if op.shape[0] < op.shape[1] else op
    exact = op if op.dtype == torch.float64 or op.exact is None else op.exact()
    right = torch.zeros(0, op.shape[1], dtype=torch.float64, device=op.device)
    values = torch.zeros(0, dtype=torch.float64)
    for attempt in range(k + 1):
        new = _ritz_vectors(_deflated(op, right.to(op.dtype)), k, tol, seed, attempt, max_pairs)
        right = torch.linalg.qr(torch.cat([right, new.to(torch.float64)]).mT)[0].mT
        images = torch.stack([exact.mv(z.to(exact.dtype)[None])[0].to(torch.float64) for z in right])
        before = values
        _, values, turn = torch.linalg.svd(images.mT, full_matrices=False)
        right = (turn @ right)[:k]
        values = values[:k]
        settled = len(values) == k == len(before) and bool((values - before).max() <= tol * values[0])
        if settled or len(right) == op.shape[1]:
            break
    return values.cpu() * (1 - SLACK[str(exact.dtype).removeprefix("torch.")])


def _ritz_vectors(op: LinearOperator, k: int, tol: float, seed: int, attempt: int, max_pairs: int) -> Float[Tensor, "found N"]:
    """Right Ritz vectors of the largest values of one problem, run until the first k have converged or the space is used up."""
    lanczos = Lanczos(op, starts(1, op.shape[1], op, seed, attempt))
    for pair in range(1, max_pairs + 1):
        lanczos.step()
        ritz = Ritz.of(lanczos.process)
        if lanczos.process.finished[0] or (pair > k and (ritz.errors[0, :k] <= tol).all()):
            break
    held = min(k, int((ritz.values[0] > 0).sum()))
    if held == 0:
        return lanczos.start[:1]
    return torch.cat([lanczos.vectors(ritz.right[:, i]) for i in range(held)])


def _deflated(op: LinearOperator, found: Float[Tensor, "found N"]) -> LinearOperator:
    r"""$J(I - Z Z^T)$ for the orthonormal rows Z found so far."""
    if not len(found):
        return op
    return replace(
        op,
        mv=lambda u: op.mv(u - (u @ found.mT) @ found),
        rmv=lambda u: (pulled := op.rmv(u)) - (pulled @ found.mT) @ found,
        exact=None,
        restrict=None,
    )
