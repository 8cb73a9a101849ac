r"""Several singular values at once, multiplicities included."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from attnscope.operators.deflation import deflated
from attnscope.operators.lanczos import Lanczos, Ritz
from attnscope.operators.operator import LinearOperator
from attnscope.operators.scaling import exponents, norms, scaled, times_powers
from attnscope.operators.search import allowance
from attnscope.operators.spectrum import check_call, legible
from attnscope.operators.starts import draw
from attnscope.validation import brief


@dataclass(frozen=True, eq=False)
class SingularValues:
    r"""The largest singular values: numbers per map, or tensors that begin with the stack's shape.

    Each of `values` is a proved lower bound of its true value, up to rounding; `residuals` are
    $\|J^* p_i - \theta_i z_i\|/\theta_1$; `pairs` counts those of all searches; `converged` says
    that the last search found nothing new and none was cut short.
    """

    values: Float64[Tensor, "*stack k"]
    residuals: Float64[Tensor, "*stack k"]
    pairs: int | Tensor
    converged: bool | Tensor

    __repr__ = brief


def singular_values(
    op: LinearOperator, k: int = 5, tol: float = 1e-6, seed: int = 0, max_pairs: int = 200
) -> SingularValues:
    r"""The k largest singular values in the metric of the map, multiplicities included; each is a
    lower bound of its true value.

    A single start sees one copy of a multiple value, so the search is repeated on the orthogonal
    complement of the right vectors found until nothing new is larger than the k-th. The values are
    those of J restricted to the span of all vectors found. Each search takes at most `max_pairs`
    pairs.
    """
    check_call(op, tol, None, max_pairs)
    op = legible(op)
    rows, columns = op.shape
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= min(rows, columns):
        raise ValueError(
            f"k must be a whole number from 1 to {min(rows, columns)}, the smaller side of the map,"
            f" got {k!r}."
        )
    if not op.stack:
        return _several(op.flat(), k, tol, seed, max_pairs)
    assert op.restrict is not None
    parts = [op.restrict(torch.tensor([b], device=op.device)) for b in range(math.prod(op.stack))]
    found = [_several(part.flat(), k, tol, seed, max_pairs) for part in parts]
    return SingularValues(
        torch.stack([one.values for one in found]).reshape(*op.stack, k),
        torch.stack([one.residuals for one in found]).reshape(*op.stack, k),
        torch.tensor([one.pairs for one in found]).reshape(op.stack),
        torch.tensor([one.converged for one in found]).reshape(op.stack),
    )


def _several(op: LinearOperator, k: int, tol: float, seed: int, max_pairs: int) -> SingularValues:
    op = op.adjoint() if op.shape[0] < op.shape[1] else op
    powers = exponents(norms(op.mv(draw(op, seed).vectors)))
    if powers.any():
        found = _several(scaled(op, -powers), k, tol, seed, max_pairs)
        back = times_powers(found.values[None], powers)[0]
        return replace(found, values=back)
    exact = op if op.dtype == torch.float64 or op.exact is None else op.exact()
    right = torch.zeros(0, op.shape[1], dtype=torch.float64, device=op.device)
    values = torch.zeros(0, dtype=torch.float64)
    pairs, settled, whole = 0, False, True
    for attempt in range(k + 1):
        search = _search(deflated(op, right.to(op.dtype)[None]), k, tol, seed, attempt, max_pairs)
        pairs, whole = pairs + search.pairs, whole and search.converged
        right = torch.linalg.qr(torch.cat([right, search.right.to(torch.float64)]).mT)[0].mT
        images = torch.stack(
            [exact.mv(z.to(exact.dtype)[None])[0].to(torch.float64) for z in right]
        )
        before = values
        left, values, turn = torch.linalg.svd(images.mT, full_matrices=False)
        right, left, values = (turn @ right)[:k], left.mT[:k], values[:k]
        filled = len(right) == op.shape[1]
        settled = filled or (
            len(values) == k == len(before) and bool((values - before).max() <= tol * values[0])
        )
        if settled:
            break
    pulled = torch.stack([exact.rmv(p.to(exact.dtype)[None])[0].to(torch.float64) for p in left])
    residuals = torch.linalg.vector_norm(pulled - values[:, None] * right, dim=1) / values[0].clamp(
        min=1e-300
    )
    return SingularValues(
        values.cpu() * (1 - allowance(exact)),
        residuals.cpu(),
        pairs,
        settled and whole,
    )


class _Search(NamedTuple):
    right: Float[Tensor, "found N"]
    pairs: int
    converged: bool


def _search(
    op: LinearOperator, k: int, tol: float, seed: int, attempt: int, max_pairs: int
) -> _Search:
    """Right Ritz vectors of the largest values of one problem, run until the first k have converged
    or the space is used up.
    """
    lanczos = Lanczos(op, draw(op, seed, attempt).vectors)
    converged = False
    while not converged and lanczos.process.alpha.shape[1] < max_pairs:
        lanczos.step()
        ritz = Ritz.of(lanczos.process)
        enough = ritz.values.shape[1] > k and bool((ritz.errors[0, :k] <= tol).all())
        converged = enough or bool(lanczos.process.finished[0])
    held = min(k, int((ritz.values[0] > 0).sum()))
    right = (
        lanczos.vectors(ritz.right[:, :held], np.zeros(1, dtype=int))[0]
        if held
        else lanczos.start[:1]
    )
    return _Search(right, lanczos.process.alpha.shape[1], converged)
