r"""Norms of the query path of every token, $D_i = \sum_hW_hC^h_iQ_h$ times the scale, without
building it.

With $C = \mathrm{diag}(C_h)$, $E_i = C\,QQ^T C^T$ and $W = [W_h]^T[W_h]$ (both of the size of all
heads together), $\|D_i\|^2$ is the largest eigenvalue of $W^{1/2}E_iW^{1/2}$: at most $t$ if
$tW^{-1} - E_i$ has a Cholesky factor, one small factorisation per token.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attention import Heads
from attnscope.bounds.at import At
from attnscope.norms import SLACK, spectral

ROW_ENTRIES = 2**22
RIDGE = 1e-8
"""Added to W, relative to its size: W only grows, and its inverse is accurate to 1e-6."""
MARGIN = 1e-4
"""Allowance for the rounding of the inverse and of the factorisation, far above both."""
POWER_STEPS = 8
REFINED = 96
"""Rows whose norm is proved by factorisation."""
TRIALS = (1.06, 1.3, 2.0)
"""Factors on the estimated eigenvalue that are tried; where none can be proved the Frobenius norm
stays.
"""


@final
class Written:
    r"""$W = [W_h]^T[W_h]$ of all heads, and norms of what they write."""

    def __init__(self, output: Float[Tensor, "h d v"]) -> None:
        flat = output.permute(1, 0, 2).flatten(1)
        gram = flat.mT @ flat
        ridge = RIDGE * float(spectral(flat)) ** 2 + torch.finfo(gram.dtype).tiny
        self.gram = gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.gram))

    def squares(
        self, products: Float[Tensor, "r m m"], chosen: Bool[Tensor, " r"]
    ) -> Float[Tensor, " r"]:
        r"""Upper bounds on the largest eigenvalue of $W^{1/2}EW^{1/2}$ for each $E$: its trace, and
        nearly exact where chosen.
        """
        found = (products * self.gram).sum((-2, -1)).clamp(min=0)
        if chosen.any():
            found[chosen] = self.sharper(products[chosen], found[chosen])
        return found

    def sharper(
        self, products: Float[Tensor, "r m m"], found: Float[Tensor, " r"]
    ) -> Float[Tensor, " r"]:
        r"""The smaller of `found` and a $t$ near $\|D_i\|^2$ for which the factorisation exists."""
        x = products.diagonal(dim1=-2, dim2=-1)
        for _ in range(POWER_STEPS):
            x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(
                min=torch.finfo(x.dtype).tiny
            )
            x = (products @ x[..., None])[..., 0] @ self.gram
        guess = torch.linalg.vector_norm(x, dim=-1)
        for row, product in enumerate(products):
            for factor in TRIALS:
                trial = factor * guess[row]
                if trial >= found[row]:
                    break
                if (
                    int(torch.linalg.cholesky_ex(torch.sub(trial * self.inverse, product)).info)
                    == 0
                ):
                    found[row] = torch.minimum(found[row], trial * (1 + MARGIN))
                    break
        return found


def most_important(importance: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """The rows whose norm is to be proved by factorisation."""
    chosen = torch.zeros_like(importance, dtype=torch.bool)
    chosen[importance.topk(min(REFINED, len(importance))).indices] = True
    return chosen


@final
class QueryPath:
    """The part of a layer that the query path needs."""

    def __init__(self, heads: Heads, output: Float[Tensor, "h d v"]) -> None:
        self.written = Written(output)
        self.query_gram = heads.scale**2 * torch.einsum("had,gbd->hgab", heads.query, heads.query)
        self.sizes = heads.scale * spectral(output) * spectral(heads.query)

    def norms(
        self, at: At, value: Float[Tensor, "h n v"], importance: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        r"""Upper bounds on $\|D_i\|$: nearly exact for the most important rows, Frobenius norms for
        the others.
        """
        k = at.k - at.k.mean(-2, keepdim=True)
        length = torch.linalg.vector_norm(value, dim=-1) * torch.linalg.vector_norm(k, dim=-1)
        size = torch.einsum("h,hij,hj->i", self.sizes, at.coupling, length)
        chosen, gram = most_important(importance), self.written.gram
        rows = max(1, ROW_ENTRIES // gram.numel())
        squares = []
        for start in range(0, at.n, rows):
            part = slice(start, start + rows)
            products = self._products(at, value, k, part)
            found = (products * self._by_heads(gram)).sum((1, 2, 3)).clamp(min=0)
            sharp = chosen[part]
            if sharp.any():
                found[sharp] = self.written.sharper(self._together(products[sharp]), found[sharp])
            squares.append(found)
        return (torch.cat(squares) + 1e-13 * size**2).sqrt() * (1 + SLACK) + 1e-12 * size

    def _products(self, at: At, value: Tensor, k: Tensor, part: slice) -> Float[Tensor, "r h m v"]:
        r"""$E_i$ for these rows, the columns of each head apart."""
        p = at.coupling[:, part]
        moved = [
            head @ (v[:, :, None] * key[:, None]).flatten(1)
            for head, v, key in zip(p, value, k, strict=True)
        ]
        c = torch.stack(moved, dim=1).unflatten(-1, (value.shape[-1], k.shape[-1])) - torch.einsum(
            "hrv,hrk->rhvk", p @ value, p @ k
        )
        return torch.einsum("rhvk,hgkl->rghvl", c, self.query_gram).flatten(2, 3) @ c.mT

    def _by_heads(self, matrix: Float[Tensor, "m m"]) -> Float[Tensor, "h m v"]:
        return matrix.unflatten(1, (*self.query_gram.shape[:1], -1)).transpose(0, 1)

    def _together(self, products: Float[Tensor, "r h m v"]) -> Float[Tensor, "r m m"]:
        return products.transpose(1, 2).flatten(2)
