r"""The key path of a block, $X_{ij}Y_{ij}^T$ with $X_{ij} = [P^h_{ij}W_h(v_j - o_i)]_h$, from H x H
Gram matrices.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
class KeyGrams:
    r"""$X_{ij}^TX_{ij}$ of every block, from $W_h^TW_g$ (`write_gram`)."""

    def __init__(
        self,
        coupling: Float[Tensor, "h n n"],
        value: Float[Tensor, "h n v"],
        mean: Float[Tensor, "h n v"],
        write_gram: Float[Tensor, "h h v v"],
    ) -> None:
        self.coupling, self.mean = coupling, mean
        self.written = torch.einsum("hgab,gnb->hgna", write_gram, value)
        self.values_squared = torch.einsum("hna,hgna->hgn", value, self.written)
        self.means_squared = torch.einsum("hna,hgab,gnb->hgn", self.mean, write_gram, self.mean)
        self.rounding = 16 * len(coupling) * (value.shape[-1] + 8) * torch.finfo(value.dtype).eps

    def of(self, part: slice) -> Float[Tensor, "r n h h"]:
        """Those of some rows, their rounding added to the diagonal."""
        cross = torch.einsum("hra,hgna->hgrn", self.mean[:, part], self.written)
        gram = (
            self.values_squared[:, :, None]
            + self.means_squared[:, :, part, None]
            - cross
            - cross.transpose(0, 1)
        )
        size = (
            torch.einsum("hhn->hn", self.values_squared)[:, None]
            + torch.einsum("hhr->hr", self.means_squared[:, :, part])[..., None]
        )
        torch.einsum("hhrn->hrn", gram).add_(self.rounding * size)
        p = self.coupling[:, part].permute(1, 2, 0)
        return (gram.permute(2, 3, 0, 1) * (p[..., :, None] * p[..., None, :])).contiguous()


def product_norms(
    one: Float[Tensor, "r n h h"],
    other: Float[Tensor, "r j h h"],
    size: Float[Tensor, "r j"],
) -> Float[Tensor, "r n"]:
    r"""$(\mathrm{tr}(G_XG_Z)^4)^{1/8} \ge \|XZ^T\|$ from the Gram matrices of $X$ and $Z$; the
    entries of $G_Z$ err by 1e-13 of `size` at the most.
    """
    product = one @ other
    error = 1e-13 * torch.linalg.matrix_norm(one) * size
    trace = ((twice := product @ product) * twice.mT).sum((-2, -1)).clamp(min=0)
    return (trace + 8 * error * torch.linalg.matrix_norm(product) ** 3 + error**4) ** 0.125


def moved_keys(
    output: Float[Tensor, "g d v"], value: Float[Tensor, "g v d"], kappa: Float[Tensor, "r d h"]
) -> Float[Tensor, "r g h d"]:
    r"""$W_gV_g\kappa^h_i$."""
    seen = torch.einsum("gve,reh->rgvh", value, kappa)
    return torch.einsum("gdv,rgvh->rghd", output, seen)


def mixed_norms(
    p: Float[Tensor, "r n h"], gram: Float[Tensor, "r n h h"], moved: Float[Tensor, "r g h d"]
) -> Float[Tensor, "r n"]:
    r"""$\|M(p)Y_iX_{ij}^T\|_{S8}$ from $G_X$ and the Gram matrix of $M(p)Y_i$, $M(p) =
    \sum_gp_gW_gV_g$.
    """
    flat, h = moved.flatten(1, 2), p.shape[-1]
    pairs = torch.triu_indices(h, h, device=p.device)
    both = (
        (flat @ flat.mT).unflatten(1, (h, h)).unflatten(-1, (h, h)).transpose(2, 3)
    )  # r g g' h h'
    both = both + both.permute(0, 2, 1, 3, 4)
    halved = torch.where(pairs[0] == pairs[1], 0.5, 1.0).to(p)
    table = (both[:, pairs[0], pairs[1]] * halved[:, None, None]).flatten(2)
    mixed = ((p[..., pairs[0]] * p[..., pairs[1]]) @ table).unflatten(-1, (h, h))
    size = (p @ torch.linalg.matrix_norm(moved)[..., None])[..., 0] ** 2
    return product_norms(gram, mixed, size)
