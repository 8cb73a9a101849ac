r"""Figure "plane": two heads that write one coordinate each, the second empty: limits satisfy
$(Sq)_1 = 0$, rank 2 allowed [castin25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Heads
from attnscope.attention.softmax import Softmax
from attnscope.experiments._covariances import Flows, draw_in_cone, from_disc
from attnscope.experiments.line import row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(angle: float = 0.6, rings: int = 3, end: float = 1e6) -> Flows:
    q = torch.cat([row(angle), torch.zeros(1, 1, 2, dtype=torch.float64)])
    eye = torch.eye(2, dtype=torch.float64)
    heads = Heads(q, -q, eye[:, None, :], eye[:, :, None])
    return from_disc({"two heads, one empty": Softmax(heads)}, end, rings)


def draw(flows: Flows) -> Figure:
    return draw_in_cone(flows, "The limits lie on a plane")
