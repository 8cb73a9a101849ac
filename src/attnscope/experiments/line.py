r"""Figure "line": with Q one unit row q and K = -q, V = I, covariances end on the ray of $p p^T$, p
orthogonal to q [castin25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Heads
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.experiments._covariances import Flows, draw_in_cone, from_disc

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def row(angle: float) -> torch.Tensor:
    """The unit row q at this angle, as the query of one head."""
    return torch.tensor(
        [[[torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))]]], dtype=torch.float64
    )


def run(angle: float = 0.6, rings: int = 3, end: float = 1e6) -> Flows:
    q, eye = row(angle), torch.eye(2, dtype=torch.float64)[None]
    attentions = {
        "softmax": Softmax(Heads(q, -q, eye, scale=2**-0.5)),
        "L2": L2(Heads(q / 2**0.5, -q, eye, scale=1.0)),
    }
    return from_disc(attentions, end, rings)


def draw(flows: Flows) -> Figure:
    return draw_in_cone(flows, "$K = -Q$ of rank one, $V = I$: the limits lie on a line")
