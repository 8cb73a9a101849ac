r"""Figure "two lines": indefinite scores, general values: covariances stay bounded and end with
rank one [castin25].

Under softmax a limit $p p^T$ lies on one of the two isotropic lines $p^T A p = 0$.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Attention, Heads
from attnscope.attention.l2 import L2
from attnscope.attention.softmax import Softmax
from attnscope.experiments._covariances import Flows, draw_in_cone, from_disc, normal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attentions(seed: int) -> dict[str, Attention]:
    """Q, K and V random."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (normal(generator, 1, 2, 2) for _ in range(3))
    return {"softmax": Softmax(Heads(q, k, v)), "L2": L2(Heads(q / 2**0.5, k, v, scale=1.0))}


def run(seed: int = 3, rings: int = 3, end: float = 1e3) -> Flows:
    """Seed 3 draws values under which all these limits attract; other seeds may blow up (figure
    "mixed").
    """
    return from_disc(attentions(seed), end, rings)


def draw(flows: Flows) -> Figure:
    return draw_in_cone(flows, "Indefinite scores: the limits have rank one, on two lines")
