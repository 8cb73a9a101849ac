"""What a measure looks like on its way: rank and anisotropy of its covariance, clusters of its
particles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from attnscope.measures import Particles
from attnscope.validation import check_kind, check_positive, check_shape, check_tensor


def rank(cov: Float[Tensor, "*stack d d"], threshold: float = 1e-3) -> Int[Tensor, "*stack"]:
    """How many eigenvalues of a covariance exceed `threshold` times its largest one (0 for the zero
    matrix).
    """
    check_tensor("cov", cov, "... d d")
    check_positive("threshold", threshold)
    values = _eigenvalues(cov)
    return ((values > threshold * values[..., -1:]) & (values > 0)).sum(-1)


def spectral_gap_rank(
    cov: Float[Tensor, "*stack d d"], floor: float = 1e-14
) -> Int[Tensor, "*stack"]:
    """The rank at the widest gap between consecutive eigenvalues on a logarithmic scale, those
    below `floor` times the largest as one.

    With no gap wider than a factor 10 the rank is full.
    """
    check_tensor("cov", cov, "... d d")
    check_positive("floor", floor)
    values = _eigenvalues(cov).flip(-1)
    logs = (values / values[..., :1].clamp(min=1e-300)).clamp(min=floor).log10()
    drops = logs[..., :-1] - logs[..., 1:]
    if drops.shape[-1] == 0:
        return (values[..., 0] > 0).long()
    widest, place = drops.max(-1)
    full = torch.full_like(place, cov.shape[-1])
    return torch.where(
        values[..., 0] <= 0, torch.zeros_like(place), torch.where(widest > 1, place + 1, full)
    )


def anisotropy(cov: Float[Tensor, "*stack d d"]) -> Float[Tensor, "*stack"]:
    """Largest eigenvalue over the trace: 1/d for a multiple of the identity, zero included, 1 for
    rank one.
    """
    check_tensor("cov", cov, "... d d")
    size = cov.detach().abs().amax((-2, -1), keepdim=True)  # sums of eigenvalues stay in range
    scaled = cov / torch.where(size > 0, size, 1.0)
    values = _eigenvalues(scaled)
    share = values[..., -1] / torch.where(size[..., 0, 0] > 0, values.sum(-1), 1.0)
    return torch.where(size[..., 0, 0] > 0, share, 1 / cov.shape[-1]).to(cov.dtype)


def _eigenvalues(cov: Float[Tensor, "*stack d d"]) -> Float[Tensor, "*stack d"]:
    """Of the symmetric part, ascending; there are no solvers in half precision."""
    check_shape("cov", cov, (*cov.shape[:-1], cov.shape[-2]), "as many columns as rows")
    wide = cov if cov.dtype in (torch.float32, torch.float64) else cov.float()
    return torch.linalg.eigvalsh((wide + wide.mT) / 2)


class Clusters(NamedTuple):
    """Groups of particles that chains of hops of at most `gap` connect (single linkage)."""

    number: int
    labels: Int[Tensor, " n"]
    gap: float


def clusters(mu: Particles, gap: float) -> Clusters:
    """The clusters of a cloud: two particles belong together when a chain of particles leads from
    one to the other by hops <= `gap`.
    """
    check_positive("gap", gap)
    check_kind("mu", mu, Particles)
    check_tensor("mu.x", mu.x, "n d")
    x = mu.x.detach().cpu().to(torch.float64).numpy()
    cells, cell = np.unique(np.floor(x / (gap / mu.dim**0.5)), axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    count, labels = _linked_cells(x, cell, len(cells), gap)
    return Clusters(count, torch.from_numpy(labels[cell].astype(np.int64)), float(gap))


def _linked_cells(
    x: NDArray[np.float64], cell: NDArray[np.int64], count: int, gap: float
) -> tuple[int, NDArray[np.int64]]:
    """Components of the graph of cells, each of diameter `gap` so that its particles belong
    together.

    Cells whose first particles are within `gap` are linked at once; the pairs that are still apart
    and near enough are looked into.
    """
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(count + 1))
    first = x[order[starts[:-1]]]
    near = scipy.spatial.cKDTree(first).query_pairs(3 * gap, output_type="ndarray")
    close = np.linalg.norm(first[near[:, 0]] - first[near[:, 1]], axis=1) <= gap
    graph = scipy.sparse.coo_matrix(
        (np.ones(int(close.sum())), tuple(near[close].T)), shape=(count, count)
    )
    parts, part = connected_components(graph, directed=False)
    joined = DisjointSet(range(parts))
    for a, b in near[~close]:
        if not joined.connected(part[a], part[b]):
            here, there = (x[order[starts[place] : starts[place + 1]]] for place in (a, b))
            distance, _ = scipy.spatial.cKDTree(here).query(
                there, distance_upper_bound=gap * (1 + 1e-12)
            )
            if np.isfinite(distance).any():
                joined.merge(part[a], part[b])
    _, labels = np.unique([joined[place] for place in part], return_inverse=True)
    return joined.n_subsets, labels
