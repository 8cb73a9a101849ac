r"""Bounds from the d x d blocks of the Jacobian: $\|J\| \le \|N\|$ for every matrix with $N_{ij}
\ge \|J_{ij}\|$.

$J_{ij} = \sum_h P^h_{ij}W_h(V_h + (v_j - o_i)\kappa_{ij}^T) + \delta_{ij}D_i$, $D_i =
\sum_hW_h\sum_jP^h_{ij}(v_j - o_i)(\partial_1 s_{ij})^T$. Here: exact block norms (B1) for small
problems and the triangle inequality over heads (B1-T) for any. `BlockNorms` is the sharp one for
large problems.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.bounds.at import At, Blocks
from attnscope.bounds.head_norms import LayerNorms
from attnscope.bounds.registry import theorem
from attnscope.norms import SLACK, perron_norm, spectral, thin

ROW_ENTRIES = 2**22
"""Entries of the arrays held for a part of the rows."""


@theorem(
    "B1",
    variant=(Softmax, L2),
    where=Blocks,
    source="norms of the blocks of the Jacobian",
    positional=True,
    when=lambda attention, blocks: blocks.effort == "exact" and served(attention),
)
def b1(attention: Attention, blocks: Blocks) -> Float[Tensor, ""]:
    r"""$\|N\|$, $N_{ij} = \sqrt{w_i/w_j}\,\|J_{ij}\|$, $J_{ij} = \sum_hP^h_{ij}W_h(V_h + (v_j -
    o_i)\kappa_{ij}^T) + \delta_{ij}D_i$.
    """
    return perron_norm(exact_blocks(blocks.at))


@theorem(
    "B1-T",
    variant=(Softmax, L2),
    where=Blocks,
    source="block norms, triangle inequality over heads",
    positional=True,
    when=lambda attention, blocks: blocks.effort == "triangle" and served(attention),
)
def b1_triangle(attention: Attention, blocks: Blocks) -> Float[Tensor, ""]:
    r"""$\|N\|$, $N_{ij} = \sum_hP^h_{ij}(\|W_hV_h\| + |W_h(v_j - o_i)||\kappa^h_{ij}|) +
    \delta_{ij}\sum_h\|D^h_i\|_F$, entries weighted as in B1.
    """
    return perron_norm(triangle_blocks(blocks.at))


def served(attention: Attention) -> bool:
    """Distances of rotated queries and keys are not worked out."""
    return not (attention.distance and attention.heads.positional)


def exact_blocks(at: At) -> Float[Tensor, "n n"]:
    r"""$N_{ij} = w_i^{1/2}w_j^{-1/2}\|J_{ij}\|$, every block built and decomposed."""
    heads, n = at.heads, at.n
    output = outputs(at.heads)
    value = values(at)
    moved = output @ heads.value  # (h, d, d)
    rows = max(1, ROW_ENTRIES // (n * heads.dim**2 * heads.count))
    found = []
    for start in range(0, n, rows):
        part = slice(start, min(start + rows, n))
        p = at.coupling[:, part]
        deviation = value[:, None] - (p @ value)[:, :, None]
        written = torch.einsum("hij,hijv,hdv->hijd", p, deviation, output)
        block = torch.einsum("hij,hde->ijde", p, moved)
        kappa = at.kappa(part).expand(-1, -1, n, -1)
        block = block + torch.einsum("hijd,hije->ijde", written, kappa)
        for row in range(part.start, part.stop):
            block[row - start, row] += query_block(at, value, output, row)
        found.append(spectral(block))
    return weighted(at, torch.cat(found))


def triangle_blocks(at: At) -> Float[Tensor, "n n"]:
    r"""$N_{ij} = \sum_hP^h_{ij}(\|W_hV_h\| + |W_h(v_j - o_i)||\kappa^h_{ij}|) +
    \delta_{ij}\sum_h\|D^h_i\|_F$.
    """
    p, value = at.coupling, values(at)
    factor = thin(outputs(at.heads))
    seen = value @ factor.mT
    distance = torch.cdist(p @ seen, seen, compute_mode="donot_use_mm_for_euclid_dist")
    written = LayerNorms.of(at.heads).written[:, None, None]
    blocks = (p * (written + distance * at.key_slopes)).sum(0) * (1 + SLACK)
    right = thin(at.heads.query.mT).mT  # |M Q| = |M right| for every M
    own = []
    for row in range(at.n):
        deviation = seen - p[:, row, None] @ seen
        turned = (
            right.mT
            if at.heads.rotary is None
            else at.heads.turn(right.mT, at.numbers[row].expand(right.shape[-1]))
        )
        query = (p[:, row, :, None] * deviation).mT @ at.k @ turned.mT
        own.append(at.scale * torch.linalg.matrix_norm(query).sum() * (1 + SLACK))
    return weighted(at, blocks + torch.stack(own).diag())


def query_block(
    at: At, value: Float[Tensor, "h n v"], output: Float[Tensor, "h d v"], row: int
) -> Float[Tensor, "d d"]:
    r"""$D_i = \sum_hW_h\sum_jP_{ij}(v_j - o_i)k_j^T\,$ scale $\mathrm{Rot}_iQ_h$."""
    p = at.coupling[:, row]
    deviation = p[..., None] * (value - (p[:, None] @ value))
    return (output @ (deviation.mT @ at.k) @ at.query_turned(row)).sum(0)


def values(at: At) -> Float[Tensor, "h n v"]:
    """What the heads read off the tokens; only differences matter, so the mean is taken out."""
    return torch.einsum("nd,hvd->hnv", at.x - at.x.mean(0), at.heads.value)


def outputs(heads: Heads) -> Float[Tensor, "h d v"]:
    """The output matrices, identities when the heads are summed."""
    if heads.output is not None:
        return heads.output
    return torch.eye(heads.dim, dtype=heads.query.dtype, device=heads.query.device).expand(
        heads.count, -1, -1
    )


def weighted(at: At, blocks: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    root = at.weights.sqrt()
    return blocks * root[:, None] / root
