r"""The telescoped certificate with token budgets: one quadratic programme in the lengths of the
patches of a perturbation.

With $v_i$ the length of patch i of the perturbation, token lengths after layer l are at most
$T_lv$, $T_l = N_l \cdots N_1$ the product of the budgets. So the linear part and the remainders of
all layers are bounded together,

$$ m - m' \le \max_{\|v\| \le \varepsilon} \langle\gamma, v\rangle + \tfrac12 v^TSv,
   \qquad S = \sum_l T_{l-1}^TM_lT_{l-1}, $$

$\gamma_i$ the length of patch i of the gradient (and corners): no perturbation both follows the
gradient and sits on the most curved token. A layer whose remainder is smaller in the Frobenius
radius, $\frac12\lambda_{\max}(M_l)e_{l-1}^2$, counts with that instead.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.certification.layers import Layer, within_reach
from attnscope.certification.tokens import OverBall, over_ball
from attnscope.nets import PatchEmbedding
from attnscope.norms import SLACK, TINY, largest_root, positive_norm

NEWTON = 4
"""Multipliers tried; each gives a bound, the smallest counts."""


@final
class Joint:
    """Images and radii: budgets and radii of all layers at once, then margins a few at a time."""

    def __init__(self, layers: list[Layer], values: list[Tensor], eps: Float[Tensor, " k"]) -> None:
        embedding = layers[0].bounds
        assert isinstance(embedding, PatchEmbedding)
        self.embedding, self.eps = embedding, eps
        stretch, tokens = embedding.norm() * (1 + SLACK), values[1].shape[-2]
        self.radii = [eps, stretch * eps]
        self.budgets = [
            stretch * torch.eye(tokens, dtype=eps.dtype, device=eps.device).expand(len(eps), -1, -1)
        ]
        self.parts: list[OverBall] = []
        self.lost = torch.zeros_like(eps, dtype=torch.bool)
        for layer, x in zip(layers[1:-1], values[1:], strict=False):
            budget = self.budgets[-1]
            self.radii[-1], lost = within_reach(self.radii[-1])
            self.lost = self.lost | lost
            each = torch.minimum(
                torch.linalg.vector_norm(budget, dim=-1) * eps[:, None], self.radii[-1][:, None]
            ) * (1 + SLACK)
            with layer.named():
                part = over_ball(layer.bounds, x, self.radii[-1], each)
            self.parts.append(part)
            self.budgets.append(part.budget @ budget * (1 + SLACK))
            self.radii.append(
                torch.minimum(part.radius, positive_norm(self.budgets[-1]) * eps) * (1 + SLACK)
            )

    def layerwise(self, gradient: Float[Tensor, "c k ..."]) -> Float[Tensor, "c k"]:
        """How far margins with these gradients before the head can fall, by the radius there."""
        return self._sound(torch.linalg.vector_norm(gradient.flatten(2), dim=-1) * self.radii[-1])

    def falls(
        self, gradients: list[Float[Tensor, "c k ..."]]
    ) -> tuple[Float[Tensor, "c k"], Float[Tensor, "c k"]]:
        """How far margins can fall, from their gradients at the image and after every layer: by
        cuts within, and from the image on.
        """
        slopes, eps = self.embedding.patches(gradients[0]), self.eps
        gamma = torch.linalg.vector_norm(slopes, dim=-1)
        along = gamma / torch.linalg.vector_norm(gamma, dim=-1, keepdim=True).clamp(min=TINY)
        spent = torch.zeros_like(gamma[..., 0])
        whole = torch.zeros(*gamma.shape, gamma.shape[-1], dtype=gamma.dtype, device=gamma.device)
        tail, cut = torch.zeros_like(spent), torch.full_like(spent, torch.inf)
        for number in reversed(range(len(self.parts))):
            part, budget, radius, gradient = (
                self.parts[number],
                self.budgets[number],
                self.radii[number + 1],
                gradients[number + 2],
            )
            if part.curved is None:
                continue
            corners, form = part.curved(gradient)
            plain, lifted = largest_root(form) * radius.square() / 2, budget.mT @ form @ budget
            here = (along * (lifted @ along[..., None])[..., 0]).sum(-1) * eps.square() / 2
            whole = whole + torch.where((here < plain)[..., None, None], lifted, 0.0)
            spent = spent + torch.where(here < plain, 0.0, plain)
            if corners is not None:
                gamma = gamma + (corners[..., None, :] @ budget)[..., 0, :]
                plain = plain + torch.linalg.vector_norm(corners, dim=-1) * radius
            tail = tail + plain
            if any(before.curved is not None for before in self.parts[:number]):
                cut = torch.minimum(
                    cut,
                    torch.linalg.vector_norm(gradients[number + 1].flatten(2), dim=-1) * radius
                    + tail,
                )
        plain = torch.linalg.vector_norm(slopes.flatten(2), dim=-1) * eps + tail
        return self._sound(cut), self._sound(
            torch.minimum(plain, spent + largest_rise(gamma, whole, eps))
        )

    def _sound(self, fall: Float[Tensor, "c k"]) -> Float[Tensor, "c k"]:
        return (fall * (1 + SLACK)).masked_fill(self.lost, torch.inf)


def largest_rise(
    gamma: Float[Tensor, "c k n"], form: Float[Tensor, "c k n n"], eps: Float[Tensor, " k"]
) -> Float[Tensor, "c k"]:
    r"""At least $\max_{\|v\| \le \varepsilon}\langle\gamma, v\rangle + \frac12v^TSv$, for
    non-negative $\gamma$ and S.

    For every $\mu$ with $\mu I - S$ positive definite it is at most $\frac12(\gamma^T(\mu I -
    S)^{-1}\gamma + \mu\varepsilon^2)$. Newton's method [more83] looks for the best $\mu$; a
    Cholesky factor proves that one is allowed.
    """
    length, top = torch.linalg.vector_norm(gamma, dim=-1), largest_root(form)
    best = length * eps + top * eps.square() / 2
    eye = torch.eye(form.shape[-1], dtype=form.dtype, device=form.device)
    mu = length / eps + top
    for _ in range(NEWTON):
        factor, failed = torch.linalg.cholesky_ex(mu[..., None, None] * eye - form)
        reached = torch.linalg.solve_triangular(factor, gamma[..., None], upper=False)
        solved = torch.linalg.solve_triangular(factor.mT, reached, upper=True)
        value = (reached.square().sum((-2, -1)) + mu * eps.square()) / 2
        allowed = (
            (failed == 0)
            & (factor.diagonal(dim1=-2, dim2=-1).amin(-1).square() > 1e-6 * mu)
            & value.isfinite()
        )
        best = torch.where(allowed & (value < best), value, best)
        size = torch.linalg.vector_norm(solved[..., 0], dim=-1)
        bent = torch.linalg.solve_triangular(factor, solved, upper=False).square().sum((-2, -1))
        step = (size - eps) / eps * size.square() / bent.clamp(min=TINY)
        mu = torch.where(allowed, mu + step, mu).clamp(min=TINY)
    return best
