"""Figure "mixed": indefinite scores and other values: softmax sends some covariances to rank one
and others to infinity [castin25].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.experiments._covariances import Flows, draw_in_disc, from_disc
from attnscope.experiments.two_lines import attentions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(seed: int = 76, rings: int = 3, end: float = 60.0) -> Flows:
    """Seed 76 draws matrices under which L2 stays bounded; in general it may grow, exponentially at
    most.
    """
    return from_disc(attentions(seed), end, rings)


def draw(flows: Flows) -> Figure:
    return draw_in_disc(
        flows, "Indefinite scores: softmax may converge or blow up, L2 stays bounded"
    )
