r"""Norms of head mixtures $M(p) = \sum_h p_hM_h$, $M_h = W_hV_h$, from small tensors that belong to
the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.bounds.smooth._query_path import Written
from attnscope.norms import SLACK, spectral, spectral_of_product

ROUNDING = 1e-12
"""Relative rounding of the quartic form, far above its error in float64."""
MIXTURES = 24
"""Head mixtures whose norm is known exactly."""
ROUNDS = 8
TRIED = 2
SHARP, SHARP_STEPS = (1 + 1e-5, 1 + 1e-3), 24
"""The factors on an estimated square that are tried, and the steps towards it: all mixtures take
them together, and one that converges too slowly is decomposed.
"""


@final
@dataclass(frozen=True, eq=False)
class Mixtures:
    r"""`single` are $\|M_h\|$, `schatten` $\|M_h\|_{S4}$, `gram` $\langle M_h, M_g\rangle$,
    `quartic` the form $\|M(r)\|_{S4}^4$.

    `centres` are mixtures whose `norms` are known exactly.
    """

    single: Float[Tensor, " h"]
    schatten: Float[Tensor, " h"]
    gram: Float[Tensor, "h h"]
    quartic: Float[Tensor, "q q"]
    pairs: Int[Tensor, "2 q"]
    centres: Float[Tensor, "m h"]
    norms: Float[Tensor, " m"]

    @classmethod
    def of(cls, output: Float[Tensor, "h d v"], value: Float[Tensor, "h v d"]) -> Mixtures:
        w = torch.einsum("hda,gdb->hgab", output, output)
        v = torch.einsum("had,gbd->hgab", value, value)
        quartic = _quartic(w, v)
        pairs = torch.triu_indices(w.shape[0], w.shape[0], device=w.device)
        twice = torch.where(pairs[0] == pairs[1], 1.0, 2.0).to(w)
        symmetric = (quartic + quartic.transpose(0, 1)) / 2
        symmetric = (symmetric + symmetric.transpose(2, 3)) / 2
        index = torch.arange(w.shape[0], device=w.device)
        return cls(
            single=spectral_of_product(output, value),
            schatten=quartic[index, index, index, index].clamp(min=0) ** 0.25,
            gram=torch.einsum("hgab,ghba->hg", w, v),
            quartic=symmetric[pairs[0], pairs[1]][:, pairs[0], pairs[1]] * twice[:, None] * twice,
            pairs=pairs,
            centres=w.new_zeros(0, w.shape[0]),
            norms=w.new_zeros(0),
        )

    def around(
        self, p: Float[Tensor, "b h"], output: Float[Tensor, "h d v"], value: Float[Tensor, "h v d"]
    ) -> Mixtures:
        """The same with centres chosen among the mixtures p."""
        centres = centres_of(p, self.gram, MIXTURES)
        norms = torch.minimum(mixture_norms(centres, output, value), centres.abs() @ self.single)
        return replace(self, centres=centres, norms=norms)

    def bound(self, p: Float[Tensor, "*at h"]) -> Float[Tensor, "*at"]:
        r"""At least $\|M(p)\|$: near the best centre c, $|\lambda|\|M(c)\| + \|M(p - \lambda
        c)\|_{S4}$; else $\sum_h|p_h|\|M_h\|$.
        """
        best = torch.minimum(p.abs() @ self.single, self.spread(p))
        if self.centres.shape[0] == 0:
            return best * (1 + SLACK)
        dual = self.centres @ self.gram
        along = (p @ dual.mT) / (dual * self.centres).sum(-1)
        total = ((p @ self.gram) * p).sum(-1)
        rest = (total[..., None] - along**2 * (dual * self.centres).sum(-1)).clamp(min=0).sqrt()
        guess = along.abs() * self.norms + 0.35 * rest
        for choice in guess.topk(min(TRIED, guess.shape[-1]), largest=False).indices.unbind(-1):
            factor = along.gather(-1, choice[..., None])
            residual = p - factor * self.centres[choice]
            near = factor[..., 0].abs() * self.norms[choice]
            best = torch.minimum(
                best, near + torch.minimum(self.spread(residual), residual.abs() @ self.single)
            )
        return best * (1 + SLACK)

    def spread(self, r: Float[Tensor, "*at h"]) -> Float[Tensor, "*at"]:
        r"""$\|M(r)\|_{S4}$ for mixtures of any sign, rounding added."""
        pairs = r[..., self.pairs[0]] * r[..., self.pairs[1]]
        value = ((pairs @ self.quartic) * pairs).sum(-1)
        return (value.clamp(min=0) + ROUNDING * (r.abs() @ self.schatten) ** 4) ** 0.25


def centres_of(
    p: Float[Tensor, "b h"], gram: Float[Tensor, "h h"], count: int
) -> Float[Tensor, "m h"]:
    """Spherical k-means of attention vectors in the metric of the layer, heavy vectors first.
    Deterministic.
    """
    values, vectors = torch.linalg.eigh(gram)
    root = vectors * values.clamp(min=0).sqrt()
    points = p @ root
    weight = points.square().sum(-1)
    keep = weight.topk(min(weight.shape[0], 4096)).indices
    p, weight = p[keep], weight[keep]
    p = p[weight > 0]
    if p.shape[0] == 0:
        return p
    weight = weight[weight > 0]
    unit = (p @ root) / weight.sqrt()[:, None]
    chosen = [0]
    closeness = unit @ unit[0]
    for _ in range(1, min(count, unit.shape[0])):
        chosen.append(int((weight * (1 - closeness.square()).clamp(min=0)).argmax()))
        closeness = torch.maximum(closeness, unit @ unit[chosen[-1]])
    directions, centres = unit[chosen], p[chosen]
    for _ in range(ROUNDS):
        owner = (unit @ directions.mT).argmax(-1)
        sums = torch.zeros_like(centres).index_add_(0, owner, p)
        filled = sums.sum(-1) > 0
        centres = torch.where(
            filled[:, None],
            sums / sums.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny),
            centres,
        )
        directions = centres @ root
        directions = directions / torch.linalg.vector_norm(directions, dim=-1, keepdim=True).clamp(
            min=torch.finfo(p.dtype).tiny
        )
    return centres[((centres @ gram) * centres).sum(-1) > 0]


def mixture_norms(
    centres: Float[Tensor, "m h"], output: Float[Tensor, "h d v"], value: Float[Tensor, "h v d"]
) -> Float[Tensor, " m"]:
    r"""At least $\|M(c)\|$, and hardly more: $\|M(c)\|^2$ is the largest eigenvalue of
    $(VV^T)^{1/2}D\,W^TW\,D(VV^T)^{1/2}$ with $D = \mathrm{diag}(c)$, and what is not proved there
    comes from $M(c)$ itself.
    """
    read, flat = Written(value.mT), output.permute(1, 0, 2).flatten(1)
    gram, weights = flat.mT @ flat, centres.repeat_interleave(output.shape[2], dim=1)
    guess = read.estimate(lambda x: weights * ((weights * x) @ gram), len(centres), SHARP_STEPS)
    norms = []
    for weight, about in zip(weights, guess, strict=True):
        product = weight[:, None] * gram * weight
        square = read.sharper(product[None], about.new_full((1,), torch.inf), about[None], SHARP)
        if not square.isfinite().all():
            square = spectral((flat * weight) @ value.flatten(0, 1)).square()[None]
        norms.append(square[0].sqrt() * (1 + SLACK))
    return torch.stack(norms) if norms else centres.new_zeros(0)


def _quartic(w: Float[Tensor, "h h v v"], v: Float[Tensor, "h h v v"]) -> Float[Tensor, "h h h h"]:
    r"""$T_{abcd} = \mathrm{tr}(W_{ab}V_{bc}W_{cd}V_{da})$."""
    heads = w.shape[0]
    found = w.new_empty(heads, heads, heads, heads)
    for a in range(heads):
        left = torch.einsum("bxy,bcyz->cbxz", w[a], v)  # W_ab V_bc
        right = torch.einsum("cdxy,dyz->cdzx", w, v[:, a])  # (W_cd V_da)^T
        found[a] = torch.einsum("cbxz,cdxz->bcd", left, right)
    return found
