"""Figure "explosion": positive scores, V = I. Softmax and multi-head blow up in finite time, L2 and
Sinkhorn only grow [castin25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.sinkhorn import Sinkhorn
from attnscope.attention.softmax import Softmax
from attnscope.experiments._covariances import Flows, draw_in_disc, from_disc, normal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attentions(seed: int) -> dict[str, Attention]:
    """Q = K random, V = I; the two heads have their own Q = K and write one coordinate each."""
    generator = torch.Generator().manual_seed(seed)
    q, pair, eye = (
        normal(generator, 1, 2, 2),
        normal(generator, 2, 2, 2),
        torch.eye(2, dtype=torch.float64),
    )
    return {
        "softmax": Softmax(Heads(q, q, eye[None])),
        "two heads": Softmax(Heads(pair, pair, eye[:, None, :], eye[:, :, None])),
        "L2": L2(Heads(q / 2**0.5, q, eye[None], scale=1.0)),
        "Sinkhorn": Sinkhorn(Heads(q, q, eye[None], scale=1.0)),
    }


def run(seed: int = 0, rings: int = 3, end: float = 8.0) -> Flows:
    return from_disc(attentions(seed), end, rings)


def draw(flows: Flows) -> Figure:
    return draw_in_disc(
        flows, "$A_s > 0$, $V = I$: blow-up for softmax, growth for L2 and Sinkhorn"
    )
