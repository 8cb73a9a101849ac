r"""What the solver moves: particles as they are, a Gaussian as its mean and a factor of its
covariance.

On $N(m, LL^T)$ the field is affine, $\Gamma(x) = Bx + b$, so $m' = Bm + b$ and $L' = BL$
[castin25]: $S = LL^T$ stays symmetric and positive semi-definite whatever the solver's error, and
keeps its rank.

A motion is an array (members, numbers), one row per member of the stack, in float64. `velocity` is
its time derivative, `size` the number whose blow-up is that of the member, `moved` how far each
member went relative to its larger size.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention import Attention
from attnscope.flows.fast import Interpolated
from attnscope.flows.spaces import Space
from attnscope.measures import Gaussian, Particles

Array = NDArray[np.float64]
Members = NDArray[np.int64]


class CloudMotion:
    """Particles in $R^d$ or on a surface. On a surface the solver moves points of the cone over it
    and reads them radially.
    """

    def __init__(self, mu: Particles, space: Space | None, fast: Interpolated | None) -> None:
        self.dtype, self.shape, self.space, self.fast = mu.x.dtype, mu.x.shape, space, fast
        self.original = mu
        exact = mu.to(torch.float64)
        x, weights = (
            exact.x.detach().reshape(-1, mu.n, mu.dim),
            exact.weights.detach().reshape(-1, mu.n),
        )
        positions = None if exact.positions is None else exact.positions.reshape(-1, mu.n)
        self.cloud = Particles(x, weights / weights.sum(-1, keepdim=True), positions)
        self.start = x.reshape(len(x), -1).cpu().numpy().copy()
        self.field_error = 0.0

    def _points(self, y: Array) -> Tensor:
        return torch.from_numpy(y).to(self.cloud.x.device).reshape(-1, *self.shape[-2:])

    def velocity(self, attention: Attention, y: Array, members: Members) -> Array:
        z = self._points(y)
        x = z if self.space is None else self.space(z)
        field = self._field(attention, self._among(x, members))
        if self.space is not None:
            field = self.space.gauge(z) * self.space.velocity(x, field)
        return field.reshape(len(y), -1).cpu().numpy()

    def _among(self, x: Tensor, members: Members) -> Particles:
        if len(members) == len(self.cloud.x):
            return self.cloud.at(x)
        kept = torch.from_numpy(members).to(x.device)
        positions = None if self.cloud.positions is None else self.cloud.positions[kept]
        return Particles(x, self.cloud.weights[kept], positions)

    def _field(self, attention: Attention, mu: Particles) -> Tensor:
        if self.fast is None:
            places = mu.places() if attention.causal or attention.heads.positional else None
            return attention.evaluate(mu.x, mu, places)
        single = [Particles(mu.x[i], mu.weights[i]) for i in range(len(mu.x))]
        fields = [self.fast(attention, one.x, one) for one in single]
        self.field_error = max(self.field_error, *(error for _, error in fields))
        return torch.stack([field for field, _ in fields])

    def size(self, y: Array) -> Array:
        return np.linalg.norm(y, axis=-1)

    def moved(self, before: Array, after: Array) -> Array:
        first, second = (
            self._points(y) if self.space is None else self.space(self._points(y))
            for y in (before, after)
        )
        radius = torch.maximum(_farthest(first), _farthest(second))
        return (_farthest(second - first) / radius.clamp(min=1e-300)).cpu().numpy()

    def state(self, y: Array) -> Particles:
        x = self._points(y) if self.space is None else self.space(self._points(y))
        return self.original.at(x.reshape(self.shape).to(self.dtype))


class GaussianMotion:
    """Mean and factor, d + d^2 numbers per member."""

    def __init__(self, mu: Gaussian) -> None:
        self.dtype, self.shape, self.device, d = (
            mu.mean.dtype,
            mu.mean.shape,
            mu.mean.device,
            mu.dim,
        )
        exact = mu.to(torch.float64)
        parts = (exact.mean.detach().reshape(-1, d), exact.factor().detach().reshape(-1, d * d))
        self.start = torch.cat(parts, dim=-1).cpu().numpy().copy()
        self.field_error = 0.0

    def _parts(self, y: Array) -> tuple[Tensor, Tensor]:
        return _mean_and_factor(torch.from_numpy(y).to(self.device), self.shape[-1])

    def velocity(self, attention: Attention, y: Array, members: Members) -> Array:
        return gaussian_velocity(attention, torch.from_numpy(y).to(self.device)).cpu().numpy()

    def size(self, y: Array) -> Array:
        return np.linalg.norm(y, axis=-1)

    def moved(self, before: Array, after: Array) -> Array:
        """The larger of the mean's movement and the covariance's: a factor may turn while its
        covariance rests.
        """
        (m, f), (mean, factor) = self._parts(before), self._parts(after)
        size = torch.from_numpy(
            np.maximum(self.size(before), self.size(after)).clip(min=1e-150)
        ).to(self.device)
        shift = torch.linalg.vector_norm(mean - m, dim=-1) / size
        change = torch.linalg.matrix_norm(factor @ factor.mT - f @ f.mT) / size**2
        return torch.maximum(shift, change).cpu().numpy()

    def state(self, y: Array) -> Gaussian:
        mean, factor = self._parts(y)
        cov = factor @ factor.mT
        return Gaussian(
            mean.reshape(self.shape).to(self.dtype),
            cov.reshape(*self.shape, self.shape[-1]).to(self.dtype),
        )


Motion = CloudMotion | GaussianMotion


def gaussian_velocity(
    attention: Attention, y: Float[Tensor, "*stack numbers"]
) -> Float[Tensor, "*stack numbers"]:
    """The time derivative of mean and factor, of one Gaussian or of a stack."""
    mean, factor = _mean_and_factor(y, attention.heads.dim)
    affine = attention.on_gaussian(Gaussian.from_factor(mean, factor))
    moving = (affine.matrix @ mean[..., None])[..., 0] + affine.offset
    return torch.cat([moving, (affine.matrix @ factor).flatten(-2)], dim=-1)


def _mean_and_factor(y: Tensor, d: int) -> tuple[Tensor, Tensor]:
    return y[..., :d], y[..., d:].unflatten(-1, (d, d))


def _farthest(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).amax(-1)
