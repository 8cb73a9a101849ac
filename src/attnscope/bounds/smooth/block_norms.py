r"""B1-S: norms of all blocks of the Jacobian of a softmax layer from small factors, never an n x n
array of d x d blocks.

A block is $J_{ij} = M(p_{ij}) + X_{ij}Y_i^T + \delta_{ij}D_i$: value path, key path of rank at most
H, query path, with $p_{ij} = (P^h_{ij})_h$, $X_{ij} = [W_ha^h_{ij}]_h$, $a^h_{ij} = P^h_{ij}(v_j -
o_i)$, $Y_i = [\kappa^h_i]_h$. Then $\|J_{ij}\| \le \min(g + k, (g^2 + 2\chi + k^2)^{1/2})$ off the
diagonal, $g \ge \|M(p)\|$, $k \ge \|XY^T\|$, $\chi \ge \|M(p)YX^T\|$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.softmax import Softmax
from attnscope.bounds._bound import Bound
from attnscope.bounds.asking import bounds_at
from attnscope.bounds.at import At, Blocks
from attnscope.bounds.registry import theorem
from attnscope.bounds.smooth._key_path import KeyGrams, mixed_norms, moved_keys
from attnscope.bounds.smooth._mixtures import Mixtures
from attnscope.bounds.smooth._query_path import QueryPath
from attnscope.bounds.smooth.blocks import ROW_ENTRIES, outputs, values, weighted
from attnscope.measures import Particles
from attnscope.norms import PERRON_STEPS, SLACK, perron_vector, positive_norm
from attnscope.validation import described

MOST_HEADS = 16
"""The quartic form of head mixtures takes H^4 numbers."""


@final
class BlockNorms:
    """The constants of a softmax layer behind B1-S: build once, use on every input.

    `examples` are inputs of the layer whose attention vectors choose the head mixtures with exactly
    known norms. Any choice, or none, gives a valid bound; inputs like the ones to come give a
    better one.
    """

    def __init__(self, attention: Softmax, examples: Sequence[Particles] = ()) -> None:
        if not isinstance(attention, Softmax):
            raise TypeError(f"BlockNorms needs a Softmax attention, got {described(attention)}.")
        if not serves(attention):
            raise ValueError(
                f"BlockNorms serves up to {MOST_HEADS} heads without rotary embedding, got"
                f" {attention.heads.count}"
                f" heads{' with rotary embedding' if attention.heads.rotary is not None else ''}."
                " smoothness(attention, mu) has B1-T for these."
            )
        self.attention = attention.to(torch.float64)
        heads = self.attention.heads
        self.output = outputs(heads)
        self.mixtures = Mixtures.of(self.output, heads.value)
        seen = [At.of(self.attention, mu).coupling.flatten(1).mT for mu in examples]
        if seen:
            self.mixtures = self.mixtures.around(torch.cat(seen), self.output, heads.value)
        self.write_gram = torch.einsum("hda,gdb->hgab", self.output, self.output)
        self.query = QueryPath(heads, self.output)

    def __call__(self, mu: Particles) -> Bound:
        """B1-S at mu."""
        place = Blocks(At.of(self.attention, mu.to(torch.float64)), "factors", self)
        (bound,) = bounds_at(self.attention, [place])
        return bound

    def check_fits(self, attention: object) -> None:
        """Refuse an attention with rotary embedding, or whose matrices are not the ones that these
        constants were made of.
        """
        mine = self.attention.heads
        fits = isinstance(attention, Softmax) and (
            serves(attention)
            and attention.heads.scale == mine.scale
            and torch.equal(attention.heads.query, mine.query)
            and torch.equal(attention.heads.value, mine.value)
            and torch.equal(outputs(attention.heads), self.output)
        )
        if not fits:
            raise ValueError(
                "blocks was built for other heads than these. Build it with BlockNorms(attention,"
                " examples)."
            )

    def blocks(self, at: At) -> Float[Tensor, "n n"]:
        r"""Upper bounds on all $\|J_{ij}\|$."""
        value = values(at)
        blocks = _Paths(self, at, value).blocks()
        whole = weighted(at, blocks)
        right = perron_vector(whole, PERRON_STEPS)
        return blocks + self.query.norms(at, value, (whole @ right) * right).diag()


@theorem(
    "B1-S",
    variant=Softmax,
    where=Blocks,
    source="block norms from small factors",
    positional=True,
    when=lambda attention, blocks: blocks.effort == "factors" and serves(attention),
    differentiable=False,
)
def b1_small(attention: Softmax, blocks: Blocks) -> Float[Tensor, ""]:
    r"""$\|N\|$, $N_{ij} = \min(g + k, (g^2 + 2\chi + k^2)^{1/2}) + \delta_{ij}q_i$, weighted as in
    B1: norms of value, key, cross and query paths.
    """
    layer = blocks.layer
    assert isinstance(layer, BlockNorms)
    with torch.no_grad():
        return positive_norm(weighted(blocks.at, layer.blocks(blocks.at)), PERRON_STEPS)


def serves(attention: Attention) -> TypeGuard[Softmax]:
    """Whether B1-S is stated for this attention."""
    return (
        isinstance(attention, Softmax)
        and attention.heads.count <= MOST_HEADS
        and attention.heads.rotary is None
    )


class _Paths:
    """Value and key path of every block, a part of the rows at a time."""

    def __init__(self, layer: BlockNorms, at: At, value: Float[Tensor, "h n v"]) -> None:
        self.layer, self.at = layer, at
        self.grams = KeyGrams(at.coupling, value, at.coupling @ value, layer.write_gram)

    def blocks(self) -> Float[Tensor, "n n"]:
        n, heads = self.at.n, self.at.heads
        rows = max(1, ROW_ENTRIES // (heads.count**2 * max(n, heads.dim)))
        return torch.cat(
            [self._rows(slice(start, min(start + rows, n))) for start in range(0, n, rows)]
        )

    def _rows(self, part: slice) -> Float[Tensor, "r n"]:
        p = self.at.coupling[:, part].permute(1, 2, 0)
        kappa = self.at.kappa(part)[:, :, 0].permute(1, 2, 0)
        gram = self.grams.of(part)
        value = self.layer.mixtures.bound(p)
        key = self._key(gram, kappa)
        cross = mixed_norms(p, gram, moved_keys(self.layer.output, self.at.heads.value, kappa))
        return torch.minimum(value + key, (value**2 + 2 * cross + key**2).sqrt()) * (1 + SLACK)

    def _key(
        self, gram: Float[Tensor, "r n h h"], kappa: Float[Tensor, "r d h"]
    ) -> Float[Tensor, "r n"]:
        r"""$\|X_{ij}Y_i^T\|_{S8} = (\mathrm{tr}\,(RG_XR^T)^4)^{1/8}$, $Y_i = UR$."""
        r = torch.linalg.qr(kappa, mode="r").R.mT
        rows, n, heads, _ = gram.shape
        once = (gram.reshape(rows, n * heads, heads) @ r).unflatten(1, (n, heads)).mT
        small = (once.reshape(rows, -1, heads) @ r).unflatten(1, (n, r.shape[-1]))
        return torch.linalg.matrix_norm(small @ small) ** 0.25
