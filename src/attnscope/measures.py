r"""The two kinds of probability measure that attention acts on.

`Particles` is $\sum_i w_i \delta_{x_i}$ (optionally on $[0,1] \times R^d$, each token at a
position, for causal use); `Gaussian` is $N(m, \Sigma)$, singular covariances included. Both may be
stacks: leading axes hold independent measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.validation import (
    as_generator,
    brief,
    check_same_kind,
    check_shape,
    check_tensor,
    described,
)

MOST_QUADRATURE_POINTS = 10_000_000
HIGHEST_ORDER = 300
"""Of a quadrature: beyond, its masses overflow while they are worked out."""


@final
@dataclass(frozen=True, eq=False, init=False)
class Particles:
    r"""The measure $\sum_i w_i \delta_{x_i}$, or a stack of them with the same number of particles.

    `weights` are non-negative and sum to one, uniform by default. `positions` in [0, 1] say where a
    token stands for causal attention; without them token $i$ of $n$ stands at $i/n$.
    """

    x: Float[Tensor, "*stack n d"]
    weights: Float[Tensor, "*stack n"]
    positions: Float[Tensor, "*stack n"] | None

    __repr__ = brief

    def __init__(
        self, x: Tensor, weights: Tensor | None = None, positions: Tensor | None = None
    ) -> None:
        check_tensor("x", x, "... n d")
        if weights is None:
            weights = torch.full_like(x[..., 0], 1.0 / x.shape[-2])
        else:
            _check_companion("weights", weights, x)
            _check_masses(weights)
        if positions is not None:
            _check_companion("positions", positions, x)
            if positions.min() < 0 or positions.max() > 1:
                raise ValueError(
                    f"positions must lie in [0, 1], got values from {positions.min():.6g} to"
                    f" {positions.max():.6g}. Token i of n usually stands at i/n."
                )
        self._set(x, weights, positions)

    def _set(self, x: Tensor, weights: Tensor, positions: Tensor | None) -> None:
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "positions", positions)

    def at(self, x: Float[Tensor, "*stack n e"]) -> Particles:
        """The same masses and positions elsewhere (not checked again: this is the hot path)."""
        moved = object.__new__(Particles)
        moved._set(x, self.weights, self.positions)
        return moved

    def to(self, target: torch.dtype | torch.device | str) -> Particles:
        """The same measure in another dtype or on another device."""
        moved = object.__new__(Particles)
        try:
            positions = None if self.positions is None else self.positions.to(target)
            moved._set(self.x.to(target), self.weights.to(target), positions)
        except RuntimeError as error:  # torch: no such device, or none of that kind here
            reason = str(error).splitlines()[0]
            raise ValueError(f"particles cannot go to {described(target)}: {reason}") from error
        return moved

    def rows(self, index: Int[Tensor, " c"]) -> Particles:
        """These measures of a stack, whose axes become one (not checked again: masses that came
        from another precision sum to one only there).
        """
        last = self.x.ndim - 3
        positions = None if self.positions is None else self.positions.flatten(0, last)[index]
        picked = object.__new__(Particles)
        picked._set(self.x.flatten(0, last)[index], self.weights.flatten(0, last)[index], positions)
        return picked

    @property
    def n(self) -> int:
        return self.x.shape[-2]

    @property
    def dim(self) -> int:
        return self.x.shape[-1]

    def places(self) -> Float[Tensor, "*stack n"]:
        """Where each token stands: `positions`, or token order i/n when there are none (float32 at
        least, so that none coincide).
        """
        if self.positions is not None:
            return self.positions
        precise = torch.promote_types(self.x.dtype, torch.float32)
        order = torch.arange(1, self.n + 1, dtype=precise, device=self.x.device) / self.n
        return order.expand(self.x.shape[:-1])

    def mean(self) -> Float[Tensor, "*stack d"]:
        return torch.einsum("...n,...nd->...d", self.weights, self.x)

    def cov(self) -> Float[Tensor, "*stack d d"]:
        centred = self.x - self.mean()[..., None, :]
        made = torch.einsum("...n,...nd,...ne->...de", self.weights, centred, centred)
        if not made.isfinite().all():
            raise ValueError(
                f"the covariance of these particles overflows {self.x.dtype}: their entries reach"
                f" {self.x.abs().max():.3g}. Scale them down."
            )
        return made

    def radius(self) -> Float[Tensor, "*stack"]:
        """The radius of the smallest ball around 0 that holds every particle."""
        return torch.linalg.vector_norm(self.x, dim=-1).amax(-1)


@final
@dataclass(frozen=True, eq=False)
class Gaussian:
    r"""The measure $N(m, \Sigma)$, or a stack of them. $\Sigma$ is symmetric and positive
    semi-definite, singular allowed.
    """

    mean: Float[Tensor, "*stack d"]
    cov: Float[Tensor, "*stack d d"]

    __repr__ = brief

    def __post_init__(self) -> None:
        check_tensor("mean", self.mean, "... d")
        check_tensor("cov", self.cov, "... d d")
        check_same_kind("cov", self.cov, "mean", self.mean)
        check_shape(
            "cov", self.cov, (*self.mean.shape, self.mean.shape[-1]), "one d x d matrix per mean"
        )
        cov = self.cov.detach()
        tolerance = _tolerance(cov.dtype) * cov.abs().amax((-2, -1))
        asymmetry = (cov - cov.mT).abs().amax((-2, -1))
        if (asymmetry > tolerance).any():
            raise ValueError(
                "cov must be symmetric, got entries that differ from their mirror by up to"
                f" {asymmetry.max():.3g}. Pass (cov + cov.mT) / 2 if that is what you mean."
            )
        wide = cov if cov.dtype in (torch.float32, torch.float64) else cov.float()
        least = torch.linalg.eigvalsh((wide + wide.mT) / 2)[..., 0]
        if (least < -tolerance * self.dim).any():
            raise ValueError(
                f"cov must be positive semi-definite, got an eigenvalue {least.min():.3g}. A"
                " covariance is L @ L.mT for some factor L."
            )

    @property
    def dim(self) -> int:
        return self.mean.shape[-1]

    def to(self, target: torch.dtype | torch.device | str) -> Gaussian:
        """The same measure in another dtype or on another device."""
        return Gaussian(self.mean.to(target), self.cov.to(target))

    @staticmethod
    def from_factor(
        mean: Float[Tensor, "*stack d"], factor: Float[Tensor, "*stack d d"]
    ) -> Gaussian:
        r"""$N(m, LL^T)$, a Gaussian by construction (not checked: this is the hot path)."""
        made = object.__new__(Gaussian)
        object.__setattr__(made, "mean", mean)
        object.__setattr__(made, "cov", factor @ factor.mT)
        object.__setattr__(made, "_factor", factor)
        return made

    def any_factor(self) -> Float[Tensor, "*stack d d"]:
        r"""Some $L$ with $L L^T = \Sigma$: the one it was made from, which keeps small variances
        exact, or `factor()`.
        """
        made_from: Tensor | None = vars(self).get("_factor")
        return self.factor() if made_from is None else made_from

    def factor(self) -> Float[Tensor, "*stack d d"]:
        r"""The symmetric square root $L = \Sigma^{1/2}$, so that $L L^T = \Sigma$."""
        return square_root(self.cov)

    def sample(self, n: int, generator: torch.Generator | int) -> Particles:
        """`n` independent draws, from a `torch.Generator` or an integer seed."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n must be a whole number of at least 1, got {n!r}.")
        source = as_generator(generator, self.mean.device)
        shape = (*self.mean.shape[:-1], n, self.dim)
        noise = torch.randn(shape, dtype=self.mean.dtype, device=self.mean.device, generator=source)
        return Particles(self.mean[..., None, :] + noise @ self.factor())

    def quadrature(self, order: int) -> Particles:
        r"""Gauss-Hermite particles: integrates every polynomial of degree $2\,$order$-1$ per
        coordinate exactly.

        A tensor grid on the range of the covariance: order**rank particles.
        """
        if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= HIGHEST_ORDER:
            raise ValueError(
                f"order must be a whole number from 1 to {HIGHEST_ORDER}, got {order!r}."
            )
        values, vectors = torch.linalg.eigh((self.cov + self.cov.mT) / 2)
        flat = values.reshape(-1, self.dim)
        rounding = self.dim * torch.finfo(values.dtype).eps * flat.abs().amax(-1, keepdim=True)
        kept = (flat > rounding).any(0)
        rank = int(kept.sum())
        if order**rank > MOST_QUADRATURE_POINTS:
            raise ValueError(
                f"quadrature(order={order}) in rank {rank} needs {order}**{rank} particles, more"
                f" than {MOST_QUADRATURE_POINTS:,}. Use a smaller order, or gaussian.sample(n,"
                " generator=seed)."
            )
        nodes, masses = np.polynomial.hermite_e.hermegauss(order)
        masses = masses / masses.sum()
        index = np.indices((order,) * rank).reshape(rank, order**rank)
        grid, weights = nodes[index].T, masses[index].prod(0)
        scaled = (vectors * values.clamp(min=0).sqrt()[..., None, :])[..., kept]
        x = self.mean[..., None, :] + torch.as_tensor(grid).to(self.mean) @ scaled.mT
        return Particles(x, torch.as_tensor(weights).to(x).expand(x.shape[:-1]).clone())


def square_root(cov: Float[Tensor, "*stack d d"]) -> Float[Tensor, "*stack d d"]:
    """The symmetric square root of a positive semi-definite matrix; what rounding made negative
    counts as zero.
    """
    values, vectors = torch.linalg.eigh((cov + cov.mT) / 2)
    return (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-8 if dtype == torch.float64 else 1e-4


def _check_companion(name: str, value: Tensor, x: Tensor) -> None:
    check_tensor(name, value, "... n")
    check_same_kind(name, value, "x", x)
    check_shape(name, value, tuple(x.shape[:-1]), "one per particle")


def _check_masses(weights: Tensor) -> None:
    weights = weights.detach()
    if weights.min() < 0:
        raise ValueError(
            f"weights must not be negative, got a smallest weight of {weights.min():.6g}."
        )
    off = float((weights.sum(-1, dtype=torch.float64) - 1).abs().max())
    if off > _tolerance(weights.dtype):
        raise ValueError(
            f"weights must sum to 1, got a sum that is off by {off:.3g}. Pass weights /"
            " weights.sum() instead."
        )
