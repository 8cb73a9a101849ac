r"""The field of a large cloud in dimension at most three, by Chebyshev interpolation in the query.

$\Gamma_\mu(x)$ is a smooth function of x: its values at a few tensor Chebyshev nodes of a box
around the queries give it everywhere [trefethen13]. A score is linear in the query, so $e^{\langle
x, u_j\rangle}$ is a product over coordinates and the sums over j at all nodes are one matrix
product: about $n\,m^d$ operations and $n\,m\,d$ exponentials instead of $n^2$ of each.

The degrees adapt until the last coefficients and the error at sampled queries are below the
tolerance. What is returned is an ESTIMATE of the error, not a bound.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Kernel
from attnscope.measures import Particles

SMALLEST_CLOUD = 2000
"""Below this number of particles the exact field is as fast."""
MOST_NODES = 20_000
FIRST_DEGREE, GROWTH = {1: 16, 2: 12, 3: 8}, 1.5
CHECKS = 16
EXACT_CALLS = 30
"""How often the exact field is used after no degree served, before the next attempt."""
DEAR_NODE = 4
"""Without a kernel a node costs as much as a query: this many queries must share one."""
CHUNK_NUMBERS = 2**18
DENSEST = 1e-200
"""A denominator below this has lost digits to underflow: the exact field is used."""


@final
class Interpolated:
    """The field of pointwise attentions with a stated relative error; it remembers the degrees that
    worked.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.degrees: list[int] | None = None
        self.exact_calls = 0

    @classmethod
    def serving(cls, attention: Attention, mu: object, tolerance: float) -> Interpolated | None:
        """An interpolated field for this attention on this cloud, or None where the exact one is
        the way.
        """
        if not isinstance(mu, Particles) or mu.n < SMALLEST_CLOUD or tolerance <= 0:
            return None
        return cls(tolerance) if interpolable(attention) else None

    def __call__(
        self, attention: Attention, x: Float[Tensor, "m d"], mu: Particles
    ) -> tuple[Float[Tensor, "m d"], float]:
        """The field at x and the estimate of its error, relative to the largest velocity. The exact
        field when no degree serves.
        """
        if self.exact_calls > 0 or not interpolable(attention):
            self.exact_calls -= 1
            return attention.evaluate(x, mu, None), 0.0
        box = _Box(x)
        degrees = box.fitted(self.degrees or [FIRST_DEGREE[x.shape[-1]]] * x.shape[-1])
        sampled = _sample(x, box)
        exact = attention.evaluate(x[sampled], mu, None)
        scale = float(torch.linalg.vector_norm(exact, dim=-1).max())
        kernel = attention.kernel(box.centre[None], mu)
        most = min(MOST_NODES, len(x) // (DEAR_NODE if kernel is None else 1))
        while math.prod(degrees) <= most:
            values = _at_nodes(attention, kernel, box, degrees, mu)
            if values is None:
                break
            coefficients = _coefficients(values, degrees)
            tails = _tails(coefficients, degrees, scale)
            off = [axis for axis, tail in enumerate(tails) if tail > self.tolerance / 2]
            if not off:
                missed = torch.linalg.vector_norm(
                    box.evaluate(coefficients, x[sampled]) - exact, dim=-1
                ).max()
                error = max(float(missed) / max(scale, 1e-300), *tails)
                if error <= self.tolerance:
                    self.degrees = [
                        _shorter(m) if tail < self.tolerance / 1e3 else m
                        for m, tail in zip(degrees, tails, strict=True)
                    ]
                    return box.evaluate(coefficients, x), error
            degrees = [
                _longer(m) if m > 1 and (axis in off or not off) else m
                for axis, m in enumerate(degrees)
            ]
            if degrees == [1] * len(degrees):
                break
        self.degrees, self.exact_calls = None, EXACT_CALLS
        return attention.evaluate(x, mu, None), 0.0


def interpolable(attention: Attention) -> bool:
    """Whether the variant allows it, and the field depends on the query through its value alone, in
    dimension at most three.
    """
    return (
        attention.interpolates
        and attention.heads.dim <= 3
        and not attention.causal
        and not attention.heads.positional
    )


class _Box:
    """The smallest box along the principal axes of the points, and coordinates in [-1, 1] in it."""

    def __init__(self, x: Float[Tensor, "m d"]) -> None:
        middle = x.mean(0)
        self.frame = torch.linalg.eigh((x - middle).mT @ (x - middle)).eigenvectors
        turned = x @ self.frame
        low, high = turned.amin(0), turned.amax(0)
        self.half = (high - low) / 2
        self.centre = self.frame @ ((high + low) / 2)
        self.flat = self.half <= 1e-14 * (self.centre.abs().max() + self.half.max())

    def fitted(self, degrees: list[int]) -> list[int]:
        """One node along an axis in which the points do not differ."""
        return [
            1 if flat else max(m, 4) for m, flat in zip(degrees, self.flat.tolist(), strict=True)
        ]

    def nodes(self, degrees: list[int]) -> list[Float[Tensor, " nodes"]]:
        """Chebyshev nodes of each axis, as offsets from the centre."""
        return [half * _nodes(m).to(half) for m, half in zip(degrees, self.half, strict=True)]

    def evaluate(
        self, coefficients: Float[Tensor, "*degrees c"], x: Float[Tensor, "m d"]
    ) -> Float[Tensor, "m c"]:
        """The Chebyshev series at x, a few rows at a time."""
        rows = max(1, CHUNK_NUMBERS // (coefficients.numel() // coefficients.shape[-2]))
        return torch.cat([self._series(coefficients, part) for part in x.split(rows)])

    def _series(self, coefficients: Tensor, x: Tensor) -> Tensor:
        unit = (
            (x - self.centre)
            @ self.frame
            / torch.where(self.flat, torch.ones_like(self.half), self.half)
        ).clamp(-1, 1)
        *rest, last = coefficients.shape[:-1]
        out = coefficients.movedim(-1, 0).reshape(-1, last) @ _chebyshev(unit[:, -1], last)
        for axis in reversed(range(len(rest))):
            out = (out.reshape(-1, rest[axis], len(x)) * _chebyshev(unit[:, axis], rest[axis])).sum(
                1
            )
        return out.mT


def _at_nodes(
    attention: Attention, kernel: Kernel | None, box: _Box, degrees: list[int], mu: Particles
) -> Float[Tensor, "*degrees d"] | None:
    """The exact field at the tensor nodes; None when it underflows there."""
    nodes = box.nodes(degrees)
    if kernel is not None:
        out = _separated(attention, kernel, box, nodes, mu)
        return None if out is None else out.reshape(*degrees, -1)
    grid = torch.cartesian_prod(*nodes).reshape(-1, len(degrees)) @ box.frame.mT + box.centre
    return attention.evaluate(grid, mu, None).reshape(*degrees, -1)


def _separated(
    attention: Attention, kernel: Kernel, box: _Box, nodes: list[Tensor], mu: Particles
) -> Tensor | None:
    r"""$\sum_j e^{c_j} v_j \prod_i e^{z_i u_{ji}}$ at all nodes z, per head, each factor scaled by
    its largest value.
    """
    heads, (q, k, bias, scale) = attention.heads, kernel
    offset = bias + scale * (k @ q.mT)[..., 0]
    slopes = scale * k @ (heads.query @ box.frame)
    read = heads.read(mu.x)
    outputs = []
    for h in range(heads.count):
        total, log_scale = _sums(nodes, slopes[h], offset[h], read[h])
        numerator, denominator = total[..., :-1], total[..., -1:]
        if float(denominator.min()) < DENSEST:
            return None
        outputs.append(
            numerator / denominator if attention.normalised else numerator * log_scale.exp()
        )
    return heads.write(torch.stack(outputs))


def _sums(
    nodes: list[Tensor],
    slopes: Float[Tensor, "n d"],
    offset: Float[Tensor, " n"],
    read: Float[Tensor, "n v"],
) -> tuple[Float[Tensor, "nodes w"], Float[Tensor, "nodes 1"]]:
    """Sums over the particles with a last column for the mass, and the logarithm of what they were
    divided by.
    """
    highest, lowest = slopes.amax(0), slopes.amin(0)
    shifts = [torch.maximum(z * highest[i], z * lowest[i]) for i, z in enumerate(nodes)]
    top, along = offset.max(), slopes.mT.contiguous()
    payload = torch.cat([read, torch.ones_like(read[:, :1])], dim=-1).mT * (offset - top).exp()
    count, width = math.prod(len(z) for z in nodes), payload.shape[0]
    total = torch.zeros(
        count // len(nodes[-1]), len(nodes[-1]) * width, dtype=read.dtype, device=read.device
    )
    widest = max(count // len(nodes[-1]), len(nodes[-1]) * width)
    rows = max(1, CHUNK_NUMBERS // widest)
    for start in range(0, len(slopes), rows):
        part = slice(start, start + rows)
        factors = [
            (z[:, None] * along[i, part]).sub_(shifts[i][:, None]).exp_()
            for i, z in enumerate(nodes)
        ]
        left = torch.ones_like(factors[0][:1])
        for factor in factors[:-1]:
            left = (left[:, None, :] * factor).flatten(0, 1)
        right = (factors[-1][:, None, :] * payload[:, part]).flatten(0, 1)
        total += left @ right.mT
    log_scale = shifts[0]
    for shift in shifts[1:]:
        log_scale = (log_scale[:, None] + shift).flatten()
    return total.reshape(count, width), (log_scale + top)[:, None]


def _nodes(m: int) -> Float[Tensor, " m"]:
    return torch.cos(math.pi * (torch.arange(m, dtype=torch.float64) + 0.5) / m)


def _chebyshev(unit: Float[Tensor, " m"], degree: int) -> Float[Tensor, "degree m"]:
    """T_0 .. T_{degree-1} at these points, by the three-term recurrence."""
    rows = unit.new_ones(degree, len(unit))
    if degree > 1:
        rows[1] = unit
    twice = 2 * unit
    for k in range(2, degree):
        torch.mul(twice, rows[k - 1], out=rows[k]).sub_(rows[k - 2])
    return rows


def _coefficients(
    values: Float[Tensor, "*degrees c"], degrees: list[int]
) -> Float[Tensor, "*degrees c"]:
    for axis, m in enumerate(degrees):
        basis = _chebyshev(_nodes(m).to(values), m) * (2 / m)
        basis[0] /= 2
        values = torch.movedim(torch.tensordot(basis, values, dims=([1], [axis])), 0, axis)
    return values


def _tails(
    coefficients: Float[Tensor, "*degrees c"], degrees: list[int], scale: float
) -> list[float]:
    """Per axis, the largest of the last two coefficients along it, relative to the field."""
    tails = []
    for axis, m in enumerate(degrees):
        last = coefficients.narrow(axis, m - 2, 2).abs().max() if m > 1 else torch.zeros(())
        tails.append(float(last) / max(scale, 1e-300))
    return tails


def _sample(x: Float[Tensor, "m d"], box: _Box) -> Tensor:
    """Some queries to check at: the extreme ones along each axis, and others at random (always the
    same numbers).
    """
    turned = x @ box.frame
    drawn = torch.randint(len(x), (CHECKS,), generator=torch.Generator().manual_seed(0)).to(
        x.device
    )
    return torch.cat([turned.argmin(0), turned.argmax(0), drawn])


def _longer(m: int) -> int:
    return 4 * math.ceil(GROWTH * m / 4)


def _shorter(m: int) -> int:
    return max(4, m - 4)
