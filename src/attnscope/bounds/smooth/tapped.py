r"""Bounds at a point for any attention seen through a tap: token-wise maps into the scores,
softmax, a linear map out.

With $q_i = \varphi_i(x_i)$, $k_j = \psi_j(x_j)$, $v_j = \chi_j(x_j)$, $z_{ij} = s\langle q_i,
k_j\rangle$, a soft-cap $c$ and a sink, $o_i = \sum_jP_{ij}v_j$ moves by
$$ \delta o_i = \sum_jP_{ij}D\chi_je_j + \sum_jP_{ij}(v_j - o_i)g_{ij}s\langle q_i,
D\psi_je_j\rangle + C_iD\varphi_ie_i, $$
$g_{ij} = c'(z_{ij})$, $C_i = s\sum_jP_{ij}g_{ij}(v_j - o_i)k_j^T$.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.bounds.registry import theorem
from attnscope.bounds.smooth.moves import Moves, norms_of
from attnscope.norms import SLACK, largest_eigenvalue, perron_norm, spectral, thin

SQUARES = 1e-13
"""Allowance for rounding in squared lengths, relative to what they are made of."""

ERRORS = 64
"""How many times the error of derivatives, seen on a random product, is allowed for."""


@final
@dataclass(frozen=True, eq=False)
class Tapped:
    """One layer at its tokens, in float64: the coupling, what attention was given, and how that
    moves with each token.
    """

    coupling: Float[Tensor, "h n n"]
    slope: Float[Tensor, "h n n"]
    """Of the soft-cap, $g$; 1 without one."""
    scale: float
    query: Float[Tensor, "h n k"]
    key: Float[Tensor, "h n k"]
    value: Float[Tensor, "h n v"]
    query_moves: Moves
    key_moves: Moves
    value_moves: Moves
    output: Float[Tensor, "h d v"]

    @cached_property
    def allowance(self) -> float:
        """For rounding: the coupling errs relatively by what the scores err absolutely."""
        sizes = (self.query.detach(), self.key.detach())
        longest = [torch.linalg.vector_norm(part, dim=-1).max() for part in sizes]
        scores = abs(self.scale) * (longest[0] + longest[1]) ** 2
        moves = (self.query_moves, self.key_moves, self.value_moves)
        products = ERRORS * max(each.error for each in moves)
        return SLACK + float(64 * torch.finfo(self.query.dtype).eps * scores) + products

    @cached_property
    def mean(self) -> Float[Tensor, "h n v"]:
        return self.coupling @ self.value

    @cached_property
    def kappa(self) -> Float[Tensor, "h n n"]:
        r"""$\kappa_{ij} = |s|g_{ij}|D\psi_j^Tq_i|$, never too small."""
        found = []
        for head, q in enumerate(self.query):
            inner, rows = self.key_moves.of(head)
            gram = inner @ rows @ inner.mT
            square = (q[:, :, None] * q[:, None]).flatten(1) @ gram.flatten(1).mT
            size = q.square().sum(-1)[:, None] * gram.diagonal(dim1=-2, dim2=-1).sum(-1)[None]
            found.append((square.clamp(min=0) + SQUARES * size).sqrt())
        return abs(self.scale) * self.slope * torch.stack(found)

    @cached_property
    def query_path(self) -> Float[Tensor, "h n v r"]:
        r"""$C_iB_i$, where $D\varphi_i = B_iM$."""
        weighted = self.coupling * self.slope
        found = []
        for head, (p, v, k) in enumerate(zip(weighted, self.value, self.key, strict=True)):
            centre = v.mean(-2, keepdim=True)  # only differences count: less cancels
            c = p @ ((v - centre)[:, :, None] * k[:, None]).flatten(1)
            c = c.unflatten(-1, (v.shape[-1], k.shape[-1]))
            c = c - (self.mean[head] - centre)[:, :, None] * (p @ k)[:, None]
            found.append(c @ self.query_moves.of(head)[0])
        return self.scale * torch.stack(found)

    def query_norms(self, left: Float[Tensor, "h w v"]) -> Float[Tensor, "h n"]:
        r"""$\|L_hC_iD\varphi_i\|$."""
        return torch.stack(
            [
                norms_of(matrix @ path, self.query_moves.of(head)[1])
                for head, (matrix, path) in enumerate(zip(left, self.query_path, strict=True))
            ]
        )

    @cached_property
    def spread(self) -> Float[Tensor, "h n v v"]:
        r"""$\mathrm{Cov}_i = \sum_jP_{ij}(v_j - o_i)(v_j - o_i)^T$ over the real tokens."""
        found = []
        for p, v, o in zip(self.coupling, self.value, self.mean, strict=True):
            rows = [
                ((v - centre).mT * weights) @ (v - centre)
                for weights, centre in zip(p, o, strict=True)
            ]
            found.append(torch.stack(rows))
        return torch.stack(found)


def _columns(at: Tapped, written: Float[Tensor, "h w v"]) -> Float[Tensor, " h"]:
    """The bound of each head whose values are written by a matrix first."""
    p = at.coupling
    values = (at.value_moves.norms(written).square() * p.sum(1)).amax(-1).sqrt()
    spread = torch.stack(
        [largest_eigenvalue(w @ each @ w.mT) for w, each in zip(written, at.spread, strict=True)]
    )
    keys = (p * spread[..., None] * at.kappa.square()).sum(1).amax(-1).sqrt()
    return (values + keys + at.query_norms(written).amax(-1)) * (1 + SLACK)


@theorem("T1''", where=Tapped, source="column sums of the coupling, any attention seen by a tap")
def t1_tapped(_: object, at: Tapped) -> Float[Tensor, ""]:
    r"""$\min(\|W_O\|(\sum_h\ell_h^2)^{1/2}, \sum_h\ell_h(W_h))$, $\ell_h = \max_j\|D\chi_j\|
    (\sum_iP_{ij})^{1/2} + \max_j(\sum_iP_{ij}\|\mathrm{Cov}_i\|\kappa_{ij}^2)^{1/2} +
    \max_i\|C_iD\varphi_i\|$.
    """
    h, d, v = at.output.shape
    plain = torch.eye(v, dtype=at.output.dtype, device=at.output.device).expand(h, v, v)
    together = spectral(at.output.transpose(0, 1).reshape(d, h * v))
    written = thin(at.output)  # same norms as W_h, fewer rows
    return torch.minimum(
        together * _columns(at, plain).square().sum().sqrt(), _columns(at, written).sum()
    ) * (1 + at.allowance)


@theorem("TB", where=Tapped, source="norms of the blocks, any attention seen by a tap")
def tb_tapped(_: object, at: Tapped) -> Float[Tensor, ""]:
    r"""$\|N\|$, $N_{ij} = \sum_hP^h_{ij}(\|W_hD\chi_j\| + |W_h(v_j - o_i)|\kappa^h_{ij}) +
    \delta_{ij}\sum_h\|W_hC^h_iD\varphi^h_i\|$.
    """
    written = thin(at.output)
    value, mean = at.value @ written.mT, at.mean @ written.mT
    moves = at.value_moves.norms(written)
    blocks = torch.zeros_like(at.coupling[0])
    for p, kappa, v, o, move in zip(at.coupling, at.kappa, value, mean, moves, strict=True):
        # The distance itself, not its expanded square, which would cancel.
        away = torch.cdist(o, v, compute_mode="donot_use_mm_for_euclid_dist") * (1 + SLACK)
        blocks = blocks + p * (move + away * kappa)
    blocks = blocks + torch.diag(at.query_norms(written).sum(0))
    return perron_norm(blocks) * (1 + at.allowance)
