r"""TB-S: block norms of any attention seen through a tap, with the blocks of all heads added before
norms are taken.

$$ J_{ij} = \sum_hP^h_{ij}W_hD\chi^h_j + X_{ij}Y_{ij}^T + \delta_{ij}D_i, \quad X_{ij} =
[P^h_{ij}W_h(v^h_j - o^h_i)]_h, \quad Y_{ij} = [g^h_{ij}s\,(D\psi^h_j)^Tq^h_i]_h, \quad D_i =
\sum_hW_hC^h_iD\varphi^h_i. $$
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.registry import theorem
from attnscope.bounds.smooth._key_path import KeyGrams, mixed_norms, moved_keys, product_norms
from attnscope.bounds.smooth._mixtures import Mixtures
from attnscope.bounds.smooth._query_path import Written, most_important
from attnscope.bounds.smooth.blocks import ROW_ENTRIES
from attnscope.bounds.smooth.tapped import Tapped
from attnscope.norms import PERRON_STEPS, SLACK, perron_vector, positive_norm, thin

MOST_HEADS = 16
"""The quartic form of head mixtures takes H^4 numbers."""


@theorem(
    "TB-S",
    where=Tapped,
    source="norms of the blocks of all heads together, any attention seen by a tap",
    differentiable=False,
)
def tb_sums(_: object, at: Tapped) -> Float[Tensor, ""]:
    r"""$\|N\|$, $N_{ij} = \min(g + k, (g^2 + 2\chi + k^2)^{1/2}) + \delta_{ij}q_i$, with $g \ge
    \|\sum_hP^h_{ij}W_hD\chi^h_j\|$, $k \ge \|X_{ij}Y_{ij}^T\|$, $\chi$ their cross term, $q_i \ge
    \|D_i\|$.
    """
    with torch.no_grad():
        blocks = _Sums(at).blocks()
        right = perron_vector(blocks, PERRON_STEPS)
        blocks = blocks + _query_norms(at, (blocks @ right) * right).diag()
        return positive_norm(blocks, PERRON_STEPS) * (1 + at.allowance)


def _query_norms(at: Tapped, importance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    r"""Upper bounds on $\|D_i\|$: the smaller of $\sum_h\|W_hC^h_iD\varphi^h_i\|$ and the norm of
    the sum, nearly exact for the rows that matter.
    """
    written, chosen, squares = Written(at.output), most_important(importance), []
    rows = max(1, ROW_ENTRIES // written.gram.numel())
    for some, sharp in zip(at.query_path.split(rows, dim=1), chosen.split(rows), strict=True):
        products = at.query_moves.products(some.transpose(0, 1))
        squares.append(written.squares(products, sharp))
    apart = at.query_norms(thin(at.output)).sum(0)
    return torch.minimum(torch.cat(squares).sqrt() * (1 + 1e-9), apart)


class _Sums:
    """Value and key path of every block, a part of the rows at a time."""

    def __init__(self, at: Tapped) -> None:
        self.at = at
        gram = torch.einsum("hda,gdb->hgab", at.output, at.output)
        # Only differences count. Rows may sum to less than one, so the means are shifted as well.
        centre = at.value.mean(1, keepdim=True)
        self.grams = KeyGrams(at.coupling, at.value - centre, at.mean - centre, gram)
        self.apart = at.value_moves.norms(thin(at.output)).expand(-1, at.coupling.shape[-1])
        self.value = at.value_moves.one
        self.mixtures = None
        if self.value is not None and len(at.output) <= MOST_HEADS:
            made = Mixtures.of(at.output, self.value)
            self.mixtures = made.around(at.coupling.flatten(1).mT, at.output, self.value)
        # Without soft-cap and positions a key moves the scores of all its queries alike.
        self.key = at.key_moves.one if bool((at.slope == 1).all()) else None

    def blocks(self) -> Float[Tensor, "n n"]:
        (h, n, _), d = self.at.coupling.shape, self.at.output.shape[1]
        wide = h * d * (n if self.key is None else 1)
        rows = max(1, 4 * ROW_ENTRIES // max(h**2 * max(n, d), wide))
        return torch.cat(
            [self._rows(slice(start, min(start + rows, n))) for start in range(0, n, rows)]
        )

    def _rows(self, part: slice) -> Float[Tensor, "r n"]:
        at, gram = self.at, self.grams.of(part)
        p = at.coupling[:, part].permute(1, 2, 0)
        value = torch.einsum("rnh,hn->rn", p, self.apart) * (1 + SLACK)
        if self.mixtures is not None:
            value = torch.minimum(value, self.mixtures.bound(p))
        slopes = self._slopes(part)
        key = product_norms(gram, slopes @ slopes.mT, slopes.square().sum((-2, -1)))
        cross = value * key
        if self.key is not None and self.value is not None:
            moved = moved_keys(at.output, self.value, slopes[:, 0].mT)
            cross = torch.minimum(cross, mixed_norms(p, gram, moved))
        return torch.minimum(value + key, (value**2 + 2 * cross + key**2).sqrt()) * (1 + SLACK)

    def _slopes(self, part: slice) -> Float[Tensor, "r j h d"]:
        r"""$Y_{ij}^T$ of these rows, one for all j where they are equal."""
        query = self.at.scale * self.at.query[:, part]
        if self.key is not None:
            return torch.einsum("hrk,hkd->rhd", query, self.key)[:, None]
        moves = self.at.key_moves
        inner = torch.einsum("hrk,hjks->hrjs", query, moves.inner.expand(len(query), -1, -1, -1))
        found = torch.einsum("hrjs,hsd->rjhd", inner, moves.rows)
        return found * self.at.slope[:, part].permute(1, 2, 0)[..., None]
