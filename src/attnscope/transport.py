"""Wasserstein distances between measures: exact between clouds, closed form between Gaussians,
conditional for sequences.
"""

from __future__ import annotations

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.measures import Gaussian, Particles, square_root
from attnscope.validation import check_same_kind, check_shape, check_tensor, described

MOST_COST_ENTRIES = 2**28
LARGEST_POWER = 10


def wasserstein(mu: Particles | Gaussian, nu: Particles | Gaussian, p: float = 2) -> float:
    r"""The distance $W_p(\mu, \nu) = (\min_\pi \int |x - y|^p d\pi)^{1/p}$: the distance itself,
    not its power.

    Exact between weighted clouds (network simplex; sorting on a line), Bures' formula between
    Gaussians (p = 2 only).
    """
    _check_pair(mu, nu, p)
    if isinstance(mu, Gaussian) and isinstance(nu, Gaussian):
        if p != 2:
            raise ValueError(
                f"between Gaussians only p = 2 has a closed form, got p = {p}. Sample them to use"
                " another p."
            )
        gap = torch.linalg.vector_norm(mu.mean.detach().double() - nu.mean.detach().double())
        return math.hypot(float(gap), bures(mu.cov, nu.cov))
    assert isinstance(mu, Particles)
    assert isinstance(nu, Particles)
    return _between_clouds(mu.x, mu.weights, nu.x, nu.weights, p)


def conditional_wasserstein(mu: Particles, nu: Particles, p: float = 2) -> float:
    r"""$d_p(\mu,\nu) = (\int W_p(\mu(\cdot|s), \nu(\cdot|s))^p d\theta(s))^{1/p}$ for sequences
    with positions [castin24, Sec. 4].

    $\theta$ is the law of the positions, which both must share: otherwise the distance is infinite.
    Two sequences of n tokens in order have $d_2 = \|X - Y\|_F/\sqrt{n}$.
    """
    _check_pair(mu, nu, p)
    if not isinstance(mu, Particles) or not isinstance(nu, Particles):
        raise TypeError("conditional_wasserstein compares sequences of tokens: pass two Particles.")
    (x, w, s), (y, z, t) = _sequence(mu), _sequence(nu)
    places, counts = torch.unique_consecutive(s, return_counts=True)
    other_places, other_counts = torch.unique_consecutive(t, return_counts=True)
    if not torch.equal(places, other_places):
        return math.inf
    here, there = torch.split(w, counts.tolist()), torch.split(z, other_counts.tolist())
    masses = torch.stack([part.sum() for part in here])
    if not torch.allclose(
        masses,
        torch.stack([part.sum() for part in there]),
        rtol=0,
        atol=1e-9 if mu.x.dtype == torch.float64 else 1e-5,
    ):
        return math.inf
    if len(places) == len(s) == len(t):
        size = _size(x, y)
        distances = size * torch.linalg.vector_norm(x / size - y / size, dim=-1)
    else:
        clouds = zip(
            torch.split(x, counts.tolist()),
            here,
            torch.split(y, other_counts.tolist()),
            there,
            strict=True,
        )
        distances = torch.tensor(
            [_between_clouds(a, v / v.sum(), b, u / u.sum(), p) for a, v, b, u in clouds],
            dtype=torch.float64,
        )
    return _power_mean(distances, masses / masses.sum(), p)


def bures(sigma: Float[Tensor, "d d"], tau: Float[Tensor, "d d"]) -> float:
    r"""The distance $W_2$ between $N(0, \Sigma)$ and $N(0, T)$: $\min_O |\Sigma^{1/2} - T^{1/2}
    O|_F$ over orthogonal $O$.

    Its square is $\mathrm{tr}(\Sigma + T - 2(\Sigma^{1/2}T\Sigma^{1/2})^{1/2})$; this form does not
    cancel near equality.
    """
    for name, matrix in (("sigma", sigma), ("tau", tau)):
        check_tensor(name, matrix, "d d")
        Gaussian(torch.zeros_like(matrix[0]), matrix)
    check_same_kind("tau", tau, "sigma", sigma)
    check_shape("tau", tau, tuple(sigma.shape), "the shape of sigma")
    first, second = (square_root(matrix.detach().double()) for matrix in (sigma, tau))
    left, _, right = torch.linalg.svd(second.mT @ first)
    return float(torch.linalg.matrix_norm(first - second @ (left @ right)))


def _between_clouds(x: Tensor, w: Tensor, y: Tensor, z: Tensor, p: float) -> float:
    x, w, y, z = (part.detach().to("cpu", torch.float64) for part in (x, w, y, z))
    size = _size(x, y)
    return size * _between_small_clouds(x / size, w, y / size, z, p)


def _size(x: Tensor, y: Tensor) -> float:
    """A power of two near the largest coordinate: dividing by it is exact, and squares of what is
    left do not overflow.
    """
    largest = float(max(x.abs().max(), y.abs().max()))
    return 2.0 ** max(math.frexp(largest)[1] - 1, -1000) if largest else 1.0


def _between_small_clouds(x: Tensor, w: Tensor, y: Tensor, z: Tensor, p: float) -> float:
    if x.shape[-1] == 1:
        unit = float(max(x.max(), y.max()) - min(x.min(), y.min())) or 1.0
        on_line = ((x[:, 0] / unit).numpy(), (y[:, 0] / unit).numpy(), w.numpy(), z.numpy())
        import ot  # seconds, with all that it brings

        return unit * max(float(ot.wasserstein_1d(*on_line, p=p)), 0.0) ** (1 / p)
    if p > LARGEST_POWER:
        raise ValueError(
            f"above p = {LARGEST_POWER} the solver cannot tell large |x - y|^p apart exactly, got p"
            f" = {p}. Use a smaller p."
        )
    if len(w) * len(z) > MOST_COST_ENTRIES:
        raise ValueError(
            f"exact transport between {len(w):,} and {len(z):,} particles needs a cost matrix of"
            f" {len(w) * len(z):,} entries, more than {MOST_COST_ENTRIES:,}. Compare smaller"
            " samples, or one-dimensional projections."
        )
    gaps = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    unit = float(gaps.max()) or 1.0
    import ot

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # POT only warns when the network simplex did not finish
        value = ot.emd2(
            (w / w.sum()).numpy(),
            (z / z.sum()).numpy(),
            ((gaps / unit) ** p).numpy(),
            numItermax=100_000_000,
        )
    return unit * max(float(value), 0.0) ** (1 / p)


def _power_mean(distances: Tensor, masses: Tensor, p: float) -> float:
    unit = float(distances.max()) or 1.0
    return unit * float((masses * (distances / unit) ** p).sum()) ** (1 / p)


def _sequence(mu: Particles) -> tuple[Tensor, Tensor, Tensor]:
    """Points, weights and places of the particles that carry mass, in the order of their places."""
    x, w, s = (
        part.detach().to("cpu", torch.float64)[mu.weights.detach().cpu() > 0]
        for part in (mu.x, mu.weights, mu.places())
    )
    order = s.argsort(stable=True)
    return x[order], w[order], s[order]


def _check_pair(mu: object, nu: object, p: float) -> None:
    if not isinstance(mu, Particles | Gaussian) or type(mu) is not type(nu):
        raise TypeError(
            f"expected two Particles or two Gaussians, got {described(mu)[:60]} and"
            f" {described(nu)[:60]}. Sample the Gaussian to compare it with a cloud."
        )
    assert isinstance(nu, Particles | Gaussian)
    points, others = (m.x if isinstance(m, Particles) else m.mean for m in (mu, nu))
    wanted = "n d" if isinstance(mu, Particles) else "d"
    check_tensor("mu", points, wanted)
    check_tensor("nu", others, wanted)
    check_same_kind("nu", others, "mu", points)
    check_shape("nu", others, (*others.shape[:-1], points.shape[-1]), "the dimension of mu")
    if isinstance(p, bool) or not isinstance(p, int | float) or not 1 <= p < math.inf:
        raise ValueError(f"p must be a number with 1 <= p < infinity, got {described(p)}.")
