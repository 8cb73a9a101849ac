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

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds.near.place import Kept
from attnscope.certification.chain import Link, within_reach
from attnscope.layers import OverBall, affine, same
from attnscope.norms import SLACK, TINY, largest_root, positive_norm

NEWTON = 4
"""Multipliers tried; each gives a bound, the smallest counts."""


@final
class Joint:
    """Images and radii: budgets and radii of all layers at once, then margins a few at a time.

    Layers that have budgets come first, from the image on; those after them count by their radius
    and the whole of their remainder. `fits` says whether the chain is of this kind: with a budget
    for its first layer, and a remainder for every one.
    """

    def __init__(
        self,
        links: list[Link],
        values: list[Tensor],
        eps: Float[Tensor, " k"],
        known: Mapping[int, Kept] | None = None,
    ) -> None:
        self.links, self.eps, self.radii = links, eps, [eps]
        self.found: list[OverBall] = []
        self.budgets: list[Tensor] = []
        self.lost = torch.zeros_like(eps, dtype=torch.bool)
        self.fits, each = True, _alone(values[0], eps)
        for number, (link, x) in enumerate(zip(links, values, strict=False)):
            self.radii[-1], lost = within_reach(self.radii[-1])
            self.lost = self.lost | lost
            before = self.found[-1] if self.found else None
            found = link.over(
                x, self.radii[-1], each, before, None if known is None else known.get(number)
            )
            self.found.append(found)
            self.fits = found.remainder is not None and (number > 0 or found.budget is not None)
            if not self.fits:
                return
            self.radii.append(found.radius)
            if each is not None or number == 0:  # a layer without tokens ends the budgets for good
                each = self._follow(found)

    def _follow(self, found: OverBall) -> Float[Tensor, "k n"] | None:
        """Carry the budgets through a layer; the radii of the tokens behind it, None when there are
        no tokens.
        """
        if found.budget is None:
            return None
        if not self.budgets:
            self.budgets.append(same(found.budget))
        self.budgets.append(found.budget @ self.budgets[-1] * (1 + SLACK))
        reach = torch.minimum(self.radii[-1], positive_norm(self.budgets[-1]) * self.eps)
        self.radii[-1] = reach * (1 + SLACK)
        rows = torch.linalg.vector_norm(self.budgets[-1], dim=-1) * self.eps[:, None]
        return torch.minimum(rows, self.radii[-1][:, None]) * (1 + SLACK)

    def layerwise(
        self, gradients: list[Float[Tensor, "c b ..."]], image: Int[Tensor, " k"]
    ) -> Float[Tensor, "c k"]:
        """How far margins of these images of a batch can fall, by the radius after the last layer
        that is not affine.
        """
        last = len(self.found)
        while last > 0 and self.found[last - 1].remainder is affine:
            last -= 1
        return self._sound(
            torch.linalg.vector_norm(gradients[last][:, image].flatten(2), dim=-1)
            * self.radii[last]
        )

    def falls(
        self, gradients: list[Float[Tensor, "c k ..."]]
    ) -> tuple[Float[Tensor, "c k"], Float[Tensor, "c k"]]:
        """How far margins can fall, from their gradients at the image and after every layer: by
        cuts within, and from the image on.
        """
        cut_up, eps = self.found[0].cut, self.eps
        slopes = gradients[0] if cut_up is None else cut_up(gradients[0])
        gamma = torch.linalg.vector_norm(slopes, dim=-1)
        along = gamma / torch.linalg.vector_norm(gamma, dim=-1, keepdim=True).clamp(min=TINY)
        spent = torch.zeros_like(gamma[..., 0])
        whole = torch.zeros(*gamma.shape, gamma.shape[-1], dtype=gamma.dtype, device=gamma.device)
        tail, cut = torch.zeros_like(spent), torch.full_like(spent, torch.inf)
        curved = [n for n, found in enumerate(self.found) if found.remainder is not affine]
        for number in reversed(curved):
            radius = self.radii[number]
            rest = self.links[number].remainder(self.found[number], gradients[number + 1])
            if rest.form is None or number >= len(self.budgets):
                plain = rest.within(radius)
                spent = spent + plain
            else:
                budget, bent = self.budgets[number], rest.bent(radius)
                lifted = budget.mT @ rest.form @ budget
                here = (along * (lifted @ along[..., None])[..., 0]).sum(-1) * eps.square() / 2
                whole = whole + torch.where((here < bent)[..., None, None], lifted, 0.0)
                spent = spent + torch.where(here < bent, 0.0, bent)
                if rest.corners is not None:
                    gamma = gamma + (rest.corners[..., None, :] @ budget)[..., 0, :]
                plain = bent + rest.kinks(radius)
                if rest.whole is not None:
                    plain = torch.minimum(plain, rest.whole)
            tail = tail + plain
            if number > curved[0]:
                size = torch.linalg.vector_norm(gradients[number].flatten(2), dim=-1)
                cut = torch.minimum(cut, size * radius + tail)
        plain = torch.linalg.vector_norm(slopes.flatten(2), dim=-1) * eps + tail
        return self._sound(cut), self._sound(
            torch.minimum(plain, spent + largest_rise(gamma, whole, eps))
        )

    def _sound(self, fall: Float[Tensor, "c k"]) -> Float[Tensor, "c k"]:
        return (fall * (1 + SLACK)).masked_fill(self.lost, torch.inf)


def _alone(x: Float[Tensor, "k ..."], eps: Float[Tensor, " k"]) -> Float[Tensor, "k n"] | None:
    """At the input a single token may take all of the radius; None when the input is no tokens."""
    return eps[:, None].expand(x.shape[:2]) if x.ndim == 3 else None


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
