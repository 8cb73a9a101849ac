"""Figure "to zero": with K = -Q and positive values every covariance shrinks to 0, for four
attentions [castin25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.sinkhorn import Sinkhorn
from attnscope.attention.softmax import Softmax
from attnscope.experiments._covariances import Flows, draw_in_cone, from_disc, normal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attentions(seed: int) -> dict[str, Attention]:
    """Q random, K = -Q, V = R R^T; the two heads of the multi-head attention read one row of Q
    each.
    """
    generator = torch.Generator().manual_seed(seed)
    q, r = normal(generator, 1, 2, 2), normal(generator, 2, 2)
    v = (r @ r.mT + 0.1 * torch.eye(2, dtype=torch.float64))[None]
    rows = q[0][:, None, :]
    return {
        "softmax": Softmax(Heads(q, -q, v)),
        "L2": L2(Heads(q / 2**0.5, -q, v, scale=1.0)),
        "two heads": Softmax(Heads(rows, -rows, v.expand(2, 2, 2))),
        "Sinkhorn": Sinkhorn(Heads(q, -q, v, scale=1.0)),
    }


def run(seed: int = 0, rings: int = 3, end: float = 1e4) -> Flows:
    return from_disc(attentions(seed), end, rings)


def draw(flows: Flows) -> Figure:
    return draw_in_cone(flows, "$K = -Q$, $V > 0$: every covariance goes to zero")
