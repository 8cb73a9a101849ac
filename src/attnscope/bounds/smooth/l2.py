"""L2 attention on a ball, queries and keys of any kind."""

from __future__ import annotations

from attnscope.attention.l2 import L2
from attnscope.bounds.head_norms import Parts, bias_gap
from attnscope.bounds.places import OnBall
from attnscope.bounds.registry import theorem
from attnscope.norms import spectral


@theorem(
    "L2-M1",
    variant=L2,
    where=OnBall,
    source="after castin25",
    causal=False,
    p=None,
    assumes="any number of tokens",
    convex=True,
)
def l2_m1(attention: L2, ball: OnBall) -> Parts:
    r"""$2s\|K^TQ\|R^2$ in space, $e^{s\rho^2}(1 + 4s\|K\|R\rho)$ in the measure, $\rho = (\|Q\| +
    \|K\|)R + |b_Q - b_K|$, $s$ the scale.
    """
    return _velocity(attention, ball)


@theorem(
    "L2-K3",
    variant=L2,
    where=OnBall,
    source="L2-M1 with Hardy's inequality",
    causal=True,
    p=None,
    when=lambda attention, ball: ball.p > 1,
    assumes="any number of tokens",
    convex=True,
)
def l2_k3(attention: L2, ball: OnBall) -> Parts:
    r"""L2-M1, the constant in the measure that a token reads times $\frac{p}{p-1}$."""
    return _velocity(attention, ball, hidden=1 / (1 - 1 / ball.p))


def _velocity(attention: L2, ball: OnBall, hidden: float = 1.0) -> Parts:
    heads, s = attention.heads, attention.heads.scale
    key, query = spectral(heads.key), spectral(heads.query)
    rho = (query + key) * ball.radius + bias_gap(heads)
    return Parts(
        2 * ball.slopes(attention).a * ball.radius**2,
        (s * rho**2).exp() * (1 + 4 * s * key * ball.radius * rho),
        hidden,
    )
