r"""Sinkhorn attention on a ball: both marginals of the coupling are the measure, and its potentials
contract.

$M_h = \|A_h\|R^2/\varepsilon$ is the largest score. Biases of queries and keys add terms of x or of
y alone, which the potentials absorb.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnscope.attention.sinkhorn import Sinkhorn
from attnscope.bounds.head_norms import Parts
from attnscope.bounds.places import OnBall
from attnscope.bounds.registry import theorem

ANY = "any number of tokens, potentials that solve their equations"


@theorem(
    "Sinkhorn-M1",
    variant=Sinkhorn,
    where=OnBall,
    source="Birkhoff's contraction, after castin25",
    p=None,
    assumes=ANY,
    convex=True,
)
def sinkhorn_m1(attention: Sinkhorn, ball: OnBall) -> Parts:
    r"""$M$ in space, $e^{4M}(1 + 5M + Me^{2M})$ in the measure, $M = \|A\|R^2/\varepsilon$."""
    m = _largest_score(attention, ball)
    return Parts(m, (4 * m).exp() * (1 + 5 * m + m * (2 * m).exp()))


@theorem(
    "Sinkhorn-M1'",
    variant=Sinkhorn,
    where=OnBall,
    source="Sinkhorn-M1 for p = 2",
    p=2,
    assumes=ANY,
    convex=True,
)
def sinkhorn_m1_prime(attention: Sinkhorn, ball: OnBall) -> Float[Tensor, " h"]:
    r"""$1 + 3M + Me^{2M}$, $M = \|A\|R^2/\varepsilon$."""
    m = _largest_score(attention, ball)
    return 1 + 3 * m + m * (2 * m).exp()


def _largest_score(attention: Sinkhorn, ball: OnBall) -> Float[Tensor, "*radii h"]:
    return ball.slopes(attention).a * ball.radius**2 / attention.eps
