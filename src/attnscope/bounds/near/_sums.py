r"""Sums over the entries of a row of probabilities, without cancellation, in batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def others(f: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack n"]:
    r"""$\sum_{k \ne j} f_k$ for every j, no term subtracted."""
    before = F.pad(f.cumsum(-1)[..., :-1], (1, 0))
    after = F.pad(f.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return before + after


def fullest(
    gain: Float[Tensor, "*stack n"],
    order: Int[Tensor, "*stack n"],
    low: Float[Tensor, "*stack n"],
    high: Float[Tensor, "*stack n"],
) -> Float[Tensor, "*stack"]:
    r"""$\max\{\sum_j q_jc_j : l \le q \le u, \sum_j q_j = 1\}$: start at $l$, give the rest to the
    largest gains first (`order`).
    """
    room = (high - low).clamp(min=0).gather(-1, order)
    rest = (1 - low.sum(-1, keepdim=True)).clamp(min=0)
    extra = torch.minimum((rest - F.pad(room.cumsum(-1)[..., :-1], (1, 0))).clamp(min=0), room)
    return (low * gain).sum(-1) + (extra * gain.gather(-1, order)).sum(-1)


def falling(gain: Float[Tensor, "*stack n"]) -> Int[Tensor, "*stack n"]:
    return gain.detach().argsort(-1, descending=True)
