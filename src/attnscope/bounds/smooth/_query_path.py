r"""Norms of the query path of every token, $D_i = \sum_hW_hC^h_iQ_h$ times the scale, without
building it.

With $C = \mathrm{diag}(C_h)$, $E_i = C\,QQ^T C^T$ and $W = [W_h]^T[W_h]$ (both of the size of all
heads together), $\|D_i\|^2$ is the largest eigenvalue of $W^{1/2}E_iW^{1/2}$: at most $t$ if
$tW^{-1} - E_i$ has a Cholesky factor, one small factorisation per token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
STEPS = 8
"""Of Lanczos towards an eigenvalue that is then proved to be nearly as large as there are."""
REFINED = 96
"""Rows whose norm is proved by factorisation."""
TRIALS = (1.01, 1.06, 1.3, 2.0)
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
            some = products[chosen]
            guess = self.estimate(lambda x: (some @ x[..., None])[..., 0], len(some))
            found[chosen] = self.sharper(some, found[chosen], guess)
        return found

    def estimate(
        self, product: Callable[[Tensor], Tensor], count: int, steps: int = STEPS
    ) -> Float[Tensor, " r"]:
        r"""The largest Ritz values of so many $EW$, given the products of each $E$ with one vector:
        $EW$ is symmetric in $\langle x, Wy\rangle$, and Lanczos takes three terms.
        """
        x = self.gram.diagonal().expand(count, -1)
        before, diagonal, beside = torch.zeros_like(x), list[Tensor](), list[Tensor]()
        for _ in range(steps):
            seen = x @ self.gram
            size = (x * seen).sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny).sqrt()
            x, moved = x / size, product(seen / size)
            along = (moved * seen / size).sum(-1, keepdim=True)
            diagonal.append(along)
            beside.append(size)
            x, before = moved - along * x - size * before, x
        made = torch.diag_embed(torch.cat(diagonal, -1))
        made += torch.diag_embed(torch.cat(beside[1:], -1), -1)  # lower triangles are read
        return torch.linalg.eigvalsh(made.nan_to_num(0, 0, 0))[:, -1]

    def sharper(
        self,
        products: Float[Tensor, "r m m"],
        found: Float[Tensor, " r"],
        guess: Float[Tensor, " r"],
        trials: tuple[float, ...] = TRIALS,
    ) -> Float[Tensor, " r"]:
        r"""The smaller of `found` and a $t$ near `guess` for which the factorisation exists; of the
        products, lower triangles are read.
        """
        for row, product in enumerate(products):
            for factor in trials:
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
        self.query_flat = self.query_gram.transpose(1, 2).flatten(0, 1).flatten(1)
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
            moved = _moved(at, value, k, part)
            products = self._products(moved)
            found = self._traces(products)
            sharp = chosen[part]
            if sharp.any():
                some = moved[sharp]
                guess = self.written.estimate(partial(self._product, some), len(some))
                found[sharp] = self.written.sharper(products[sharp], found[sharp], guess)
            squares.append(found)
        return (torch.cat(squares) + 1e-13 * size**2).sqrt() * (1 + SLACK) + 1e-12 * size

    def _product(
        self, moved: Float[Tensor, "r h v k"], x: Float[Tensor, "r m"]
    ) -> Float[Tensor, "r m"]:
        """$E_ix$ from the small factors of $E_i$."""
        read = moved.mT @ x.view(*moved.shape[:3], 1)
        mixed = read.flatten(1) @ self.query_flat
        return (moved @ mixed.view_as(read)).flatten(1)

    def _products(self, moved: Float[Tensor, "r h v k"]) -> Float[Tensor, "r m m"]:
        """The $E_i$, their lower block triangles: nothing reads the others."""
        rows, h, v, k = moved.shape
        found = moved.new_empty(rows, h, v, h, v)
        by_head = moved.transpose(0, 1).reshape(h, rows * v, k)
        for g in range(h):
            left = torch.bmm(by_head[g:], self.query_gram[g:, g]).view(h - g, rows, v, k)
            found[:, g:, :, g] = (left @ moved[:, g].mT).transpose(0, 1)
        return found.view(rows, h * v, h * v)

    def _traces(self, products: Float[Tensor, "r m m"]) -> Float[Tensor, " r"]:
        r"""$\mathrm{tr}(WE_i)$ from lower block triangles."""
        h = len(self.query_gram)
        v = products.shape[-1] // h
        total = products.new_zeros(len(products))
        for g in range(h):
            here, below = slice(g * v, (g + 1) * v), slice((g + 1) * v, None)
            for rows, times in ((here, 1), (below, 2)):
                weights = times * self.written.gram[rows, here]
                total += (products[:, rows, here] * weights).sum((1, 2))
        return total.clamp(min=0)


def _moved(at: At, value: Tensor, k: Tensor, part: slice) -> Float[Tensor, "r h v k"]:
    r"""$C^h_i = \sum_jP^h_{ij}(v_j - o_i)k_j^T$ of these rows."""
    p = at.coupling[:, part]
    summed = [
        head @ (v[:, :, None] * key[:, None]).flatten(1)
        for head, v, key in zip(p, value, k, strict=True)
    ]
    return torch.stack(summed, dim=1).unflatten(-1, (value.shape[-1], k.shape[-1])) - torch.einsum(
        "hrv,hrk->rhvk", p @ value, p @ k
    )
