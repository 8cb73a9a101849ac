r"""MLP blocks on tokens: two that are 1-Lipschitz whatever their weights, and the plain residual
one.

All are $x + U^T\sigma(Wx + b)$ with a convex $\sigma$, so the Taylor remainder of unit k has one
sign, and the bounds of one serve all.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.nets._layer import Layer, radii
from attnscope.nets.activations import Activation
from attnscope.nets.norms import Centre, Norm, refuse_unbounded
from attnscope.norms import SLACK, spectral

REFINED = 4
"""Tokens per input whose curvature is worked out by an eigenvalue; the others keep a cheaper bound.
"""


class MLP(Layer):
    r"""$x_i + \sum_k u_k\,\sigma(\langle w_k, x_i\rangle + b_k)$; `weight` holds the $w_k$ as
    rows.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Activation,
        norm: Norm | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, dim, generator=generator) / dim**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.activation = activation
        self.norm = norm

    @abstractmethod
    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        """The rows $u_k$ that go with the rows $w_k$, in their dtype."""

    def rows(self) -> Float[Tensor, "m d"]:
        """The $w_k$, a mean-centring before them included."""
        return self.norm(self.weight) if isinstance(self.norm, Centre) else self.weight

    def forward(self, x: Tensor) -> Tensor:
        weight = self.rows()
        read = x if self.norm is None or isinstance(self.norm, Centre) else self.norm(x)
        return x + self.activation(read @ weight.mT + self.bias) @ self.written(weight)

    def remainder(
        self,
        x: Float[Tensor, "*stack n d"],
        eps: float | Tensor,
        gradient: Float[Tensor, "c *stack n d"],
    ) -> Float[Tensor, "c ..."]:
        r"""$\frac12 e^2 \max_i \lambda_{\max}(\sum_k \beta_{ik} w_kw_k^T)$, $\beta_{ik} =
        \kappa_{ik}\max(0, -\langle u_k, g_i\rangle)$.

        $\kappa$ is the curvature that the activation can show; units at a corner of the ReLU add
        $e\,\|(l_i)_i\|$, $l_i = \min(\sum_k c_{ik}\|w_k\|, \|c_i\|\|W\|)$ with $c_{ik} = \max(0,
        -\langle u_k, g_i\rangle)$ over them.
        """
        refuse_unbounded(self.norm)
        weight = self.rows().double()
        e = radii(eps, x.shape[:-2], x.device)
        u = x.double() @ weight.mT + self.bias.double()
        length = torch.linalg.vector_norm(weight, dim=-1)
        theta = e[..., None, None] * length * (1 + SLACK)
        lowered = (-(gradient.double() @ self.written(weight).mT)).clamp(min=0)
        lowered = lowered.reshape(
            lowered.shape[0], *(1,) * (e.ndim - x.ndim + 2), *lowered.shape[1:]
        )
        kinked = self.activation.kinked(u, theta)
        largest = _largest_curvature(lowered * self.activation.curvature(u, theta), weight)
        total = largest * e.square() / 2
        if kinked is not None:
            corner = lowered * kinked
            whole = torch.linalg.vector_norm(corner, dim=-1) * spectral(weight)
            total = total + e * torch.linalg.vector_norm(
                torch.minimum(corner @ length, whole), dim=-1
            )
        return total * (1 + SLACK)


class OneLipschitz(MLP):
    r"""$x - 2W^TT^{-1}\sigma(Wx + b)$ with a diagonal $T \succeq WW^T$: $J^2 \preceq I$ since $0
    \le \sigma' \le 1$ [araujo23].
    """

    @abstractmethod
    def scale(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The diagonal of T."""

    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        return -2 * weight / self.scale(weight)[:, None]

    def sensitivity(
        self, x: Float[Tensor, "*stack n d"], eps: float | Tensor
    ) -> Float[Tensor, "*out"]:
        refuse_unbounded(self.norm)
        return radii(eps, x.shape[:-2], x.device) * (1 + SLACK)


@final
class SLL(OneLipschitz):
    r"""$T_k = \sum_j |WW^T|_{kj}\,q_j/q_k$ with learned $q > 0$ [araujo23]."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Activation,
        norm: Norm | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(dim, hidden, activation, norm, generator)
        self.log_q = nn.Parameter(torch.zeros(hidden))

    def scale(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        q = self.log_q.to(weight.dtype).exp()
        return (weight @ weight.mT).abs() @ q / q + torch.finfo(weight.dtype).eps


@final
class ConvexPotential(OneLipschitz):
    r"""$T = \|W\|^2$: a gradient step on a convex potential [meunier22]."""

    def scale(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        square = (
            torch.linalg.matrix_norm(weight, 2).square() * (1 + SLACK)
            + torch.finfo(weight.dtype).eps
        )
        return square.expand(weight.shape[0])


@final
class ResidualMLP(MLP):
    r"""$x + s\,U^T\sigma(Wx + b)$, the MLP of a Transformer with one learned matrix on each
    side.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Activation,
        norm: Norm | None,
        generator: torch.Generator,
        step: float = 1.0,
    ) -> None:
        super().__init__(dim, hidden, activation, norm, generator)
        self.output = nn.Parameter(torch.randn(hidden, dim, generator=generator) / hidden**0.5)
        self.step = step

    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        return self.step * self.output.to(weight.dtype)

    def sensitivity(
        self, x: Float[Tensor, "*stack n d"], eps: float | Tensor
    ) -> Float[Tensor, "*out"]:
        refuse_unbounded(self.norm)
        weight = self.rows().double()
        slope = 1 + spectral(weight) * spectral(self.written(weight))
        return radii(eps, x.shape[:-2], x.device) * slope * (1 + SLACK)


def _largest_curvature(
    beta: Float[Tensor, "*stack n m"], weight: Float[Tensor, "m d"]
) -> Float[Tensor, "*stack"]:
    r"""At least $\max_i \lambda_{\max}(\sum_k \beta_{ik}w_kw_k^T)$.

    Every token gets the smallest of $\max_k \sum_j \beta_{ij}|WW^T|_{jk}$, $(\beta_i^T(WW^T)^{\circ
    2}\beta_i)^{1/2}$ and $\max_k\beta_{ik}\|W\|^2$; the few for which that is largest get the
    eigenvalue itself.
    """
    gram = weight @ weight.mT
    cheap = torch.minimum(
        (beta @ gram.abs()).amax(-1), ((beta @ gram.square()) * beta).sum(-1).clamp(min=0).sqrt()
    )
    cheap = torch.minimum(cheap, beta.amax(-1) * spectral(weight).square())
    refined = min(REFINED, beta.shape[-2])
    top = cheap.topk(min(refined + 1, beta.shape[-2]), dim=-1)
    chosen = beta.gather(
        -2,
        top.indices[..., :refined, None].expand(*top.indices.shape[:-1], refined, beta.shape[-1]),
    )
    exact = torch.linalg.eigvalsh((weight.mT * chosen[..., None, :]) @ weight)[..., -1].amax(-1)
    rest = top.values[..., refined] if top.values.shape[-1] > refined else torch.zeros_like(exact)
    return torch.maximum(exact + SLACK * top.values[..., 0], rest)
