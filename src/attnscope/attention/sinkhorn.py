r"""Sinkhorn attention: rows and columns normalised alternately until both marginals are mu
[sander22].

$$ \Gamma_\mu(x) = \sum_h C_h \int \kappa_h(x, y)\, y\, d\mu(y), \qquad
   \kappa_h = e^{\langle A_h x, y\rangle/\varepsilon + f_h(x) + g_h(y)} $$

with $\int \kappa(x, \cdot) d\mu = \int \kappa(\cdot, y) d\mu = 1$: the entropic transport plan of
mu to itself. Off the support $f(x) = -\log\int e^{\langle Ax, y\rangle/\varepsilon + g(y)}
d\mu(y)$, so the coupling is a softmax whose key bias is $g$.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from attnscope.attention._heads import Heads
from attnscope.attention._normalised import Normalised
from attnscope.attention._parts import Affine, Climbed, Kernel
from attnscope.attention._rows import CHUNK_BYTES, by_rows
from attnscope.measures import Gaussian, Particles
from attnscope.validation import check_positive

RATE_WINDOW = 10
"""Iterations between two estimates of the convergence rate."""


class NotConverged(RuntimeWarning):
    """An iteration stopped at its limit; the message says the residual that it reached."""


class Potentials(NamedTuple):
    r"""Dual potentials; `residual` is the largest error of a column sum of $\kappa$ when its rows
    are normalised exactly.
    """

    f: Float[Tensor, "*stack h n"]
    g: Float[Tensor, "*stack h n"]
    residual: float
    iterations: int


@final
@dataclass(frozen=True, eq=False)
class Sinkhorn(Normalised):
    """The coupling has both marginals equal to mu. Log-domain iteration, over-relaxed once its rate
    is known [thibault21].
    """

    eps: float = 1.0
    tolerance: float | None = None
    """Where to stop: 1e-10 in float64 and 1e-5 below by default."""
    max_iterations: int = 5000

    name: ClassVar[str] = "sinkhorn"
    lipschitz: ClassVar[str] = "no"
    reference: ClassVar[str] = "sander22"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("eps", self.eps)
        check_positive("max_iterations", self.max_iterations)
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)
        if self.causal:
            raise ValueError(
                "Sinkhorn attention has no causal form: under a mask the first token may read"
                " itself only, and no coupling with the right column sums can then exist but the"
                " identity. Use causal=False, or another variant."
            )

    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel:
        at, to = self.token_numbers(x, mu, positions)
        potentials = self.potentials(mu)
        wanted = self._tolerance(mu.x.dtype)
        if potentials.residual > wanted:
            warnings.warn(
                f"Sinkhorn stopped after {potentials.iterations} iterations at residual"
                f" {potentials.residual:.2e}, above {wanted:.2e}. Raise max_iterations, eps or"
                " tolerance.",
                NotConverged,
                stacklevel=2,
            )
        bias = potentials.g + mu.weights.log()[..., None, :]
        return Kernel(
            self.heads.queries(x, at), self.heads.keys(mu.x, to), bias, self.heads.scale / self.eps
        )

    def coupling(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        _refuse_position_bias(self)
        return super().coupling(x, mu, positions)

    def potentials(self, mu: Particles) -> Potentials:
        """The dual potentials of mu on its own particles, and how well they solve the two marginal
        equations.

        Their derivative is that of the equations, not of the iteration; a cloud whose coupling is
        above CHUNK_BYTES is the exception, there autograd follows the iteration.
        """
        to = self.token_numbers(mu.x, mu, None)[1]
        q, k = self.heads.queries(mu.x, to), self.heads.keys(mu.x, to)
        if self.heads.count * mu.weights.numel() * mu.n * mu.x.element_size() > CHUNK_BYTES:
            return self._iterate(q, k, mu.weights)
        found = self._iterate(q.detach(), k.detach(), mu.weights.detach())
        f, g = _with_derivative(q, k, self.heads.scale / self.eps, mu.weights, found.g)
        return found._replace(f=f, g=g)

    def _iterate(
        self,
        q: Float[Tensor, "*stack h n k"],
        k: Float[Tensor, "*stack h n k"],
        weights: Float[Tensor, "*stack n"],
    ) -> Potentials:
        scale, log_mass = self.heads.scale / self.eps, weights.log()[..., None, :]
        f = g = torch.zeros_like(k[..., 0])
        averaged = _positive_kernel(self.heads)
        relax, before, tolerance = 1.0, float("inf"), self._tolerance(q.dtype)
        for iteration in range(1, self.max_iterations + 1):
            f_exact = _soft_minimum(q, k, scale, g + log_mass)
            row_error = _mass_error(f, f_exact, weights) if iteration > 1 else 0.0
            f = f_exact if iteration == 1 else f + relax * (f_exact - f)
            g_exact = _soft_minimum(k, q, scale, f + log_mass)
            error = max(row_error, _mass_error(g, g_exact, weights))
            if error <= tolerance / 2:
                break
            if averaged:
                g = (g + f_exact) / 2
                continue
            g = g + relax * (g_exact - g)
            if iteration % RATE_WINDOW == 0:
                relax = _relaxation(relax, (error / before) ** (1 / RATE_WINDOW))
                before = error
        f = _soft_minimum(q, k, scale, g + log_mass)
        residual = _mass_error(g, _soft_minimum(k, q, scale, f + log_mass), weights)
        return Potentials(f, g, residual, iteration)

    def on_gaussian(self, mu: Gaussian) -> Affine:
        r"""$\Gamma(x) = \sum_h C_h(m + B_0(x - m))$, $B_0 = L R^{-1} L^T A$, $R = (I + (I + 4
        L^TASA^TL)^{1/2})/2$, $S = LL^T$.

        [castin25, Sec. 4]; biases of queries and keys add terms of x or of y alone, which the
        potentials absorb.
        """
        factor = mu.any_factor()[..., None, :, :]
        a = self.heads.a / self.eps
        inner = factor.mT @ a @ factor
        vectors, values, _ = torch.linalg.svd(inner)
        r = (1 + (1 + 4 * values**2).sqrt()) / 2
        spread = factor @ vectors
        matrix = self.heads.values @ (spread / r[..., None, :]) @ spread.mT @ a
        centre = mu.mean[..., None, :, None]
        offset = self.heads.values @ centre - matrix @ centre
        return Affine(matrix=matrix.sum(-3), offset=offset[..., 0].sum(-2) + self.heads.constant)

    def energy(self, mu: Particles) -> Climbed:
        r"""Half of the transport problem's value, $\max_\pi \int\langle Ax,y\rangle d\pi -
        \varepsilon KL(\pi|\mu\otimes\mu) = -\varepsilon\int (f + g) d\mu$ [sander22].
        """
        f, g, _, _ = self.potentials(mu)
        value = -self.eps / 2 * (mu.weights * (f + g)[..., 0, :]).sum(dtype=torch.float64)
        return Climbed(value, torch.ones_like(mu.weights, dtype=torch.float64))

    def energy_on_gaussian(self, mu: Gaussian) -> Float64[Tensor, ""]:
        r"""$\frac\varepsilon2[tr(R - I) - \frac12\log\det R]$, R as in `on_gaussian` [castin25]."""
        a, root = self.heads.a[0].detach().to(torch.float64), mu.factor().to(torch.float64)
        singular = torch.linalg.svdvals(root @ a @ root / self.eps)
        r = (1 + (1 + 4 * singular**2).sqrt()) / 2
        return self.eps * ((r - 1).sum() - r.log().sum() / 2) / 2

    def _tolerance(self, dtype: torch.dtype) -> float:
        return (
            self.tolerance
            if self.tolerance is not None
            else (1e-10 if dtype == torch.float64 else 1e-5)
        )


def _soft_minimum(
    q: Float[Tensor, "*stack h m k"],
    k: Float[Tensor, "*stack h n k"],
    scale: float,
    bias: Float[Tensor, "*stack h n"],
) -> Float[Tensor, "*stack h m"]:
    r"""$-\log\sum_j e^{s\langle q_i, k_j\rangle + \beta_j}$, a few rows at a time."""

    def rows(part: Tensor, _: Tensor | None) -> Tensor:
        return -torch.logsumexp(scale * part @ k.mT + bias[..., None, :], dim=-1, keepdim=True)

    return by_rows(rows, q, None, bias.numel())[..., 0]


def _with_derivative(
    q: Float[Tensor, "*stack h n k"],
    k: Float[Tensor, "*stack h n k"],
    scale: float,
    weights: Float[Tensor, "*stack n"],
    g: Float[Tensor, "*stack h n"],
) -> tuple[Float[Tensor, "*stack h n"], Float[Tensor, "*stack h n"]]:
    r"""The potentials (f, g) with the derivative of the fixed point $g = G(g)$: $dg = (I - P'P +
    1w^T)^{-1}\, dG$.

    P and P' are the coupling read by rows and by columns; $1w^T$ fixes the constant that f and g
    may exchange. A ridge of rounding size keeps couplings solvable that fall apart into blocks,
    each with a constant of its own.
    """
    log_mass = weights.log()[..., None, :]
    scores = scale * q @ k.mT
    f = -torch.logsumexp(scores + (g + log_mass)[..., None, :], dim=-1)
    update = -torch.logsumexp(scores + (f + log_mass)[..., :, None], dim=-2)
    plan = (scores + f[..., :, None] + g[..., None, :]).detach().exp()
    mass = weights.detach()[..., None, None, :]
    ridge = 1 + 100 * torch.finfo(q.dtype).eps
    system = (
        ridge * torch.eye(q.shape[-2], dtype=q.dtype, device=q.device)
        - (plan.mT * mass) @ (plan * mass)
        + mass
    )
    g = g + torch.linalg.solve(system, update - update.detach())
    return -torch.logsumexp(scores + (g + log_mass)[..., None, :], dim=-1), g


def _positive_kernel(heads: Heads) -> bool:
    r"""Whether every $A_h$ is symmetric and positive: then $f = g$, and averaging with the row
    update halves the error each time.
    """
    if heads.query_bias is not None or heads.key_bias is not None or heads.rotary is not None:
        return False
    a = heads.a.detach()
    rounding = 100 * torch.finfo(a.dtype).eps * float(a.abs().max())
    return bool(
        (a - a.mT).abs().max() <= rounding
        and torch.linalg.eigvalsh((a + a.mT) / 2).min() >= -rounding
    )


def _relaxation(relax: float, rate: float) -> float:
    r"""The best relaxation $2/(1 + \sqrt{1 - \lambda^2})$, $\lambda$ from the observed rate: $(r +
    \omega - 1)^2 = \omega^2\lambda^2 r$.

    Back to plain iteration when the error grew.
    """
    if not 0 < rate < 1:
        return 1.0
    squared = min(((rate + relax - 1) / relax) ** 2 / rate, 1 - 1e-8)
    return 2 / (1 + (1 - squared) ** 0.5)


def _mass_error(potential: Tensor, exact: Tensor, weights: Tensor) -> float:
    """Largest error of a marginal, over the particles that carry mass, when `potential` stands for
    `exact`.
    """
    error = torch.expm1(potential.detach() - exact.detach()).abs()
    return float(error.masked_fill(weights[..., None, :] == 0, 0.0).max())


def _refuse_position_bias(attention: Sinkhorn) -> None:
    if attention.heads.position_bias is not None:
        raise ValueError(
            "Sinkhorn attention takes no position bias: a plan between measures knows points, not"
            " token numbers."
        )
