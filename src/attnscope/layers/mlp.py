r"""MLP blocks on tokens: two that are 1-Lipschitz whatever their weights, and the plain residual
one.

All are $x + U^T\sigma(Wx + b)$ with a convex $\sigma$, so the Taylor remainder of unit k has one
sign, and the bounds of one serve all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.layers.activations import PARTS, Entrywise
from attnscope.layers.along import Along, Tangent
from attnscope.layers.contract import OverBall, Remainder, same
from attnscope.layers.norms import Centre, Norm, TokenNorm, refuse_inner
from attnscope.layers.residual import Residual
from attnscope.layers.units import units_along
from attnscope.norms import SLACK, TINY, spectral

REFINED = 4
"""Tokens per input whose curvature is worked out by an eigenvalue; the others keep a cheaper bound.
"""


Split = tuple[Tensor, Tensor | None]
"""Curvatures (c, k, n, m) of the units away from corners, corners (c, k, n) of the tokens."""


class MLP(nn.Module, ABC):
    r"""$x_i + \sum_k u_k\,\sigma(\langle w_k, x_i\rangle + b_k)$; `weight` holds the $w_k$ as
    rows.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Entrywise,
        norm: Norm | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, dim, generator=generator) / dim**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.activation = activation
        self.norm = norm

    theorem: str
    """What bounds the slope."""
    residual: ClassVar[bool] = True
    """Whether the tokens are added to what is written."""

    @abstractmethod
    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m e"]:
        """The rows $u_k$ that go with the rows $w_k$, in their dtype."""

    def rows(self) -> Float[Tensor, "m d"]:
        """The $w_k$, a mean-centring before them included."""
        return self.norm(self.weight) if isinstance(self.norm, Centre) else self.weight

    def forward(self, x: Tensor) -> Tensor:
        weight = self.rows()
        read = x if self.norm is None or isinstance(self.norm, Centre) else self.norm(x)
        made = self.activation(read @ weight.mT + self.bias) @ self.written(weight)
        return x + made if self.residual else made

    def parts(self) -> nn.Module | None:
        """What a block is made of whose norm layer curves: norm, MLP, and the residual."""
        from attnscope.layers.feed_forward import FeedForward  # itself an MLP

        if not isinstance(self.norm, TokenNorm):
            return None
        weight = self.rows()
        branch = FeedForward(weight, self.bias, self.activation, self.written(weight), None)
        return Residual(self.norm, branch)

    @abstractmethod
    def slope(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, ""]:
        """A Lipschitz constant of the block on one token, for these rows $w_k$ in float64."""

    def over(
        self,
        x: Float[Tensor, "k n d"],
        eps: Float[Tensor, " k"],
        each: Float[Tensor, "k n"] | None = None,
    ) -> OverBall:
        r"""Tokens do not mix: the budget is the slope on the diagonal, and $M$ is diagonal too,
        $M_{ii} = \lambda_{\max}(\sum_k \beta_{ik} w_kw_k^T)$, $\beta_{ik} = \kappa_{ik}\max(0,
        -\langle u_k, g_i\rangle)$.

        $\kappa$ is the curvature that the activation can show. Units at a corner of the ReLU add
        the corners $l_i = \min((c_i^T|WW^T|c_i)^{1/2}, \|c_i\|\|W\|)$ with $c_{ik} =
        \chi_{ik}\max(0, -\langle u_k, g_i\rangle)$ over them.
        """
        refuse_inner(self.norm)
        weight = self.rows().double()
        slope = self.slope(weight) * (1 + SLACK)
        reach = eps[:, None] if each is None else each

        length = torch.linalg.vector_norm(weight, dim=-1)
        u = x.double() @ weight.mT + self.bias.double()
        theta = reach[..., None] * length * (1 + SLACK)

        def remainder(gradients: Float[Tensor, "c k n e"]) -> Remainder:
            pulls = gradients.double() @ self.written(weight).mT
            splits = self._splits(pulls, u, theta, weight)
            if each is not None:
                beta, corners = _cheapest(splits, weight, reach)
                curved = _curvatures(beta, weight) * (1 + SLACK)
                return Remainder(form=torch.diag_embed(curved), corners=corners)
            totals = []
            for beta, corners in splits:
                total = _refined(_curvatures(beta, weight), beta, weight) * eps.square() / 2
                if corners is not None:
                    total = total + eps * torch.linalg.vector_norm(corners, dim=-1)
                totals.append(total.nan_to_num(nan=torch.inf))
            return Remainder(whole=torch.stack(totals).amin(0) * (1 + SLACK))

        def rest() -> Tensor:
            return self._rest(u, theta, weight, eps)

        return OverBall(slope * eps, slope * same(x), remainder, self.theorem, rest=rest)

    def along(self, x: Float[Tensor, "1 n d"], tangent: Tangent) -> Along:
        """The tokens themselves are linear."""
        refuse_inner(self.norm)
        if type(self).forward is not MLP.forward:
            raise NotImplementedError
        weight, here = self.rows().double(), tangent.tokens(x.shape)
        bias, written = self.bias.double(), self.written(weight)
        return units_along(self.activation, x, here, weight, bias, written)

    def _splits(
        self,
        pulls: Float[Tensor, "c k n m"],
        u: Float[Tensor, "k n m"],
        theta: Float[Tensor, "k some m"],
        weight: Float[Tensor, "m d"],
    ) -> list[Split]:
        """What each unit adds to the form, and each token to the corners: which units count as near
        a corner is free.
        """
        bent = self.activation.bent(pulls, u, theta)
        if not self.activation.cornered:
            return [(bent, None)]
        pulled = self.activation.weights(pulls) * self.activation.chord(u, theta)
        parts = [part for part in PARTS if part > 0]  # a unit at its corner has no curvature
        nears = [u.abs() < part * theta for part in parts]
        return [(bent.masked_fill(near, 0.0), _corners(pulled * near, weight)) for near in nears]

    def _rest(
        self,
        u: Float[Tensor, "k n m"],
        theta: Float[Tensor, "k some m"],
        weight: Float[Tensor, "m d"],
        eps: Float[Tensor, " k"],
    ) -> Float[Tensor, " k"]:
        r"""$\|U\|\,|\rho|$: $|\rho_k| \le \frac12\kappa_k\langle w_k, d\rangle^2$ makes $|\rho| \le
        \frac12\max_k(\kappa_k|w_k|)\,\|W\||d|^2$, and near a corner $|\rho_k| \le j|\langle w_k,
        d\rangle|$.
        """
        bend, jump = self.activation.lost(u, theta)
        size, long = spectral(weight), torch.linalg.vector_norm(weight, dim=-1)
        bent = (bend * long).flatten(1).amax(1) * size * eps.square() / 2
        apart = torch.minimum(bent, jump.flatten(1).amax(1) * size * eps)
        return spectral(self.written(weight)) * apart * (1 + SLACK)


class OneLipschitz(MLP):
    r"""$x - 2W^TT^{-1}\sigma(Wx + b)$ with a diagonal $T \succeq WW^T$: $J^2 \preceq I$ since $0
    \le \sigma' \le 1$ [araujo23].
    """

    theorem = "1-Lipschitz block"

    @abstractmethod
    def scale(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The diagonal of T."""

    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        return -2 * weight / self.scale(weight)[:, None]

    def slope(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, ""]:
        return torch.ones((), dtype=weight.dtype, device=weight.device)


@final
class SLL(OneLipschitz):
    r"""$T_k = \sum_j |WW^T|_{kj}\,q_j/q_k$ with learned $q > 0$ [araujo23]."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Entrywise,
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

    theorem = "product of norms"

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Entrywise,
        norm: Norm | None,
        generator: torch.Generator,
        step: float = 1.0,
    ) -> None:
        super().__init__(dim, hidden, activation, norm, generator)
        self.output = nn.Parameter(torch.randn(hidden, dim, generator=generator) / hidden**0.5)
        self.step = step

    def written(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        return self.step * self.output.to(weight.dtype)

    def slope(self, weight: Float[Tensor, "m d"]) -> Float[Tensor, ""]:
        return 1 + self.activation.slope * spectral(weight) * spectral(self.written(weight))


def _curvatures(
    beta: Float[Tensor, "*stack m"], weight: Float[Tensor, "m d"]
) -> Float[Tensor, "*stack"]:
    r"""At least $\lambda_{\max}(\sum_k \beta_{ik}w_kw_k^T)$ for every token i: the smallest of
    $\max_k \sum_j \beta_{ij}|WW^T|_{jk}$, $(\beta_i^T(WW^T)^{\circ 2}\beta_i)^{1/2}$ and
    $\max_k\beta_{ik}\|W\|^2$.
    """
    gram = weight @ weight.mT
    frobenius = ((beta @ gram.square()) * beta).sum(-1).clamp(min=TINY).sqrt()
    cheap = torch.minimum((beta @ gram.abs()).amax(-1), frobenius)
    return torch.minimum(cheap, beta.amax(-1) * spectral(weight).square())


def _cheapest(
    splits: list[Split], weight: Float[Tensor, "m d"], reach: Float[Tensor, "k some"]
) -> Split:
    """For each token the split that costs least at its reach."""
    if splits[0][1] is None:
        return splits[0]
    forms = torch.stack([form for form, _ in splits])
    corners = torch.stack([edges for _, edges in splits if edges is not None])
    cost = corners * reach + _curvatures(forms, weight) * reach.square() / 2
    least = cost.nan_to_num(nan=torch.inf).argmin(0, keepdim=True)
    beta = forms.gather(0, least[..., None].expand(1, *forms.shape[1:]))[0]
    return beta, corners.gather(0, least)[0]


def _corners(
    pulled: Float[Tensor, "c k n m"], weight: Float[Tensor, "m d"]
) -> Float[Tensor, "c k n"]:
    r"""At least $\sum_k c_k|\langle w_k, d\rangle|$ over $|d| \le 1$: with the right signs this is
    $\langle\sum_k \pm c_kw_k, d\rangle$, of length at most $(c^T|WW^T|c)^{1/2}$ and
    $\|c\|\|W\|$.
    """
    signs = ((pulled @ (weight @ weight.mT).abs()) * pulled).sum(-1).clamp(min=TINY).sqrt()
    whole = torch.linalg.vector_norm(pulled, dim=-1) * spectral(weight)
    return torch.minimum(signs, whole) * (1 + SLACK)


def _refined(
    curved: Float[Tensor, "c k n"], beta: Float[Tensor, "c k n m"], weight: Float[Tensor, "m d"]
) -> Float[Tensor, "c k"]:
    """The largest curvature of all tokens: the few for which the cheap bound is largest get the
    eigenvalue itself.
    """
    refined = min(REFINED, beta.shape[-2])
    top = curved.topk(min(refined + 1, beta.shape[-2]), dim=-1)
    chosen = beta.gather(
        -2,
        top.indices[..., :refined, None].expand(*top.indices.shape[:-1], refined, beta.shape[-1]),
    )
    exact = torch.linalg.eigvalsh((weight.mT * chosen[..., None, :]) @ weight)[..., -1].amax(-1)
    rest = top.values[..., refined] if top.values.shape[-1] > refined else torch.zeros_like(exact)
    return torch.maximum(exact + SLACK * top.values[..., 0], rest)
