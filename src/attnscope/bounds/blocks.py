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

from attnscope.attention import Heads
from attnscope.bounds._layer import LayerNorms
from attnscope.bounds._point import Reading
from attnscope.norms import SLACK, spectral

ROW_ENTRIES = 2**22
"""Entries of the arrays held for a part of the rows."""


def exact_blocks(reading: Reading) -> Float[Tensor, "n n"]:
    r"""$N_{ij} = w_i^{1/2}w_j^{-1/2}\|J_{ij}\|$, every block built and decomposed."""
    heads, n = reading.heads, reading.n
    output = outputs(reading.heads)
    value = values(reading)
    moved = output @ heads.value  # (h, d, d)
    rows = max(1, ROW_ENTRIES // (n * heads.dim**2 * heads.count))
    found = []
    for start in range(0, n, rows):
        part = slice(start, min(start + rows, n))
        p = reading.coupling[:, part]
        deviation = value[:, None] - (p @ value)[:, :, None]
        written = torch.einsum("hij,hijv,hdv->hijd", p, deviation, output)
        block = torch.einsum("hij,hde->ijde", p, moved)
        kappa = reading.kappa(part).expand(-1, -1, n, -1)
        block = block + torch.einsum("hijd,hije->ijde", written, kappa)
        for row in range(part.start, part.stop):
            block[row - start, row] += query_block(reading, value, output, row)
        found.append(spectral(block))
    return weighted(reading, torch.cat(found))


def triangle_blocks(reading: Reading) -> Float[Tensor, "n n"]:
    r"""$N_{ij} = \sum_hP^h_{ij}(\|W_hV_h\| + |W_h(v_j - o_i)||\kappa^h_{ij}|) +
    \delta_{ij}\sum_h\|D^h_i\|_F$.
    """
    p, value = reading.coupling, values(reading)
    factor = torch.linalg.qr(outputs(reading.heads), mode="r").R
    seen = value @ factor.mT
    distance = torch.cdist(p @ seen, seen, compute_mode="donot_use_mm_for_euclid_dist")
    written = LayerNorms.of(reading.heads, 1).written[:, None, None]
    blocks = (p * (written + distance * reading.kappa_norms())).sum(0) * (1 + SLACK)
    right = torch.linalg.qr(reading.heads.query.mT, mode="r").R.mT  # |M Q| = |M right| for every M
    for row in range(reading.n):
        deviation = seen - p[:, row, None] @ seen
        turned = (
            right.mT
            if reading.heads.rotary is None
            else reading.heads.turn(right.mT, reading.numbers[row].expand(right.shape[-1]))
        )
        query = (p[:, row, :, None] * deviation).mT @ reading.k @ turned.mT
        blocks[row, row] += (
            reading.scale * float(torch.linalg.matrix_norm(query).sum()) * (1 + SLACK)
        )
    return weighted(reading, blocks)


def query_block(
    reading: Reading, value: Float[Tensor, "h n v"], output: Float[Tensor, "h d v"], row: int
) -> Float[Tensor, "d d"]:
    r"""$D_i = \sum_hW_h\sum_jP_{ij}(v_j - o_i)k_j^T\,$ scale $\mathrm{Rot}_iQ_h$."""
    p = reading.coupling[:, row]
    deviation = p[..., None] * (value - (p[:, None] @ value))
    return (output @ (deviation.mT @ reading.k) @ reading.query_turned(row)).sum(0)


def values(reading: Reading) -> Float[Tensor, "h n v"]:
    """What the heads read off the tokens; only differences matter, so the mean is taken out."""
    return torch.einsum("nd,hvd->hnv", reading.x - reading.x.mean(0), reading.heads.value)


def outputs(heads: Heads) -> Float[Tensor, "h d v"]:
    """The output matrices, identities when the heads are summed."""
    if heads.output is not None:
        return heads.output
    return torch.eye(heads.dim, dtype=heads.query.dtype, device=heads.query.device).expand(
        heads.count, -1, -1
    )


def weighted(reading: Reading, blocks: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    root = reading.weights.sqrt()
    return blocks * root[:, None] / root
