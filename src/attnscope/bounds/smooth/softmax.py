r"""Softmax attention on a ball: how much it can stretch tokens of norm at most R.

$t_h = R(\|A_h\|R + \beta_h)$, $\beta_h$ = scale $|K_h^T b_{Q,h}|$, is the largest $R\,|\partial_2
s|$, and $y_h = \|A_h\|R^2$. $N$ is the crowd, one over the smallest weight.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from attnscope.attention.softmax import Softmax
from attnscope.bounds.head_norms import Parts
from attnscope.bounds.places import OnBall
from attnscope.bounds.registry import theorem

CROWDED = "no token lighter than 1/{place.crowd:.6g}"
ANY = "any number of tokens"


def counted(attention: Softmax, ball: OnBall) -> bool:
    """Whether no token is too light."""
    return math.isfinite(ball.crowd)


@theorem(
    "U1",
    variant=Softmax,
    where=OnBall,
    source="castin24, Thm 3.3",
    positional=True,
    when=counted,
    assumes=CROWDED,
)
def u1(attention: Softmax, ball: OnBall) -> Float[Tensor, " h"]:
    r"""$\sqrt3\,(N + 4Nt^2 + y^2)^{1/2}$."""
    t, y = ball.scores(attention)
    return (3 * (ball.crowd + 4 * ball.crowd * t**2 + y**2)).sqrt()


@theorem(
    "U1'",
    variant=Softmax,
    where=OnBall,
    source="U1 with Cauchy-Schwarz",
    positional=True,
    when=counted,
    assumes=CROWDED,
)
def u1_prime(attention: Softmax, ball: OnBall) -> Float[Tensor, " h"]:
    r"""$\sqrt N(1 + t) + y$."""
    t, y = ball.scores(attention)
    return ball.crowd**0.5 * (1 + t) + y


@theorem(
    "M1",
    variant=Softmax,
    where=OnBall,
    source="castin24, Thm 3.5",
    causal=False,
    p=None,
    assumes=ANY,
    convex=True,
)
def m1(attention: Softmax, ball: OnBall) -> Parts:
    r"""$y$ in space, $(1 + 2t)e^{2t}$ in the measure."""
    t, y = ball.scores(attention)
    return Parts(y, (1 + 2 * t) * (2 * t).exp())


@theorem(
    "M1'",
    variant=Softmax,
    where=OnBall,
    source="M1 for p = 2",
    causal=False,
    p=2,
    assumes=ANY,
    convex=True,
)
def m1_prime(attention: Softmax, ball: OnBall) -> Float[Tensor, " h"]:
    r"""$(1 + t)e^t + y$."""
    t, y = ball.scores(attention)
    return (1 + t) * t.exp() + y


@theorem(
    "K3",
    variant=Softmax,
    where=OnBall,
    source="Hardy's inequality, after castin24",
    causal=True,
    p=None,
    when=lambda attention, ball: ball.p > 1,
    assumes=ANY,
    convex=True,
)
def k3(attention: Softmax, ball: OnBall) -> Parts:
    r"""$y$ in space, $(1 + 2t)e^{2t}$ in the measure that a token reads, times $\frac{p}{p-1}$."""
    t, y = ball.scores(attention)
    return Parts(y, (1 + 2 * t) * (2 * t).exp(), hidden=1 / (1 - 1 / ball.p))
