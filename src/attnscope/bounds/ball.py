r"""Bounds on a ball: how much attention can stretch n tokens of norm at most R, whatever they are.

Written with $t_h = R(\|A_h\|R + \beta_h)$, $\beta_h$ = scale $|K_h^T b_{Q,h}|$, the largest
$R\,|\partial_2 s|$, and $y_h = \|A_h\|R^2$. A head with value matrix I gets $\ell_h$;
`LayerNorms.combine` makes the bound of the layer.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.attention.l2 import L2
from attnscope.attention.sigmoid import Sigmoid
from attnscope.attention.softmax import Softmax
from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds._layer import LayerNorms
from attnscope.bounds._tied import tied_bounds
from attnscope.norms import SLACK, spectral
from attnscope.validation import check_positive, described

COVERED = (
    "Softmax and L2 attention have bounds on a ball and at a point, Sigmoid attention on a ball."
    " For other variants bracket the local constant itself with spectral_norm(jacobian(attention,"
    " mu), failure_probability=...)."
)


def on_ball(attention: Attention, n: int, radius: float) -> Bounds:
    r"""Every upper bound on $\sup \|D_X f\|$ over n tokens in the ball of this radius: the curves
    $L(n, R)$ of [castin24].

    Tokens weigh the same; `smoothness` also serves weighted ones.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1, got {described(n)}.")
    check_positive("radius", radius)
    check_covered(attention)
    return Bounds(ball_bounds(attention.to(torch.float64), n, float(n), radius))


def check_covered(attention: object) -> None:
    """Refuse attention that no theorem here speaks of."""
    if not isinstance(attention, Attention):
        raise TypeError(
            f"bounds need an attention such as Softmax(heads), got {described(attention)}."
        )
    if not isinstance(attention, Softmax | L2 | Sigmoid):
        raise ValueError(f"no bound is known here for {attention.name} attention. {COVERED}")
    if isinstance(attention, L2 | Sigmoid) and attention.heads.positional:
        raise ValueError(
            f"{attention.name} attention with rotary heads or a position bias has no bound here;"
            " softmax attention has."
        )


def ball_bounds(attention: Attention, n: int, crowd: float, radius: float) -> list[Bound]:
    r"""`crowd` is 1 / the smallest weight, n for equal ones: a column sum of the coupling in
    $L^2(\mu)$ is at most that.
    """
    if isinstance(attention, Sigmoid):
        return [_sigmoid(attention, radius)]
    if isinstance(attention, L2):
        return [_l2_mean_field(attention, radius)] * (not attention.causal) + tied_bounds(
            attention, n, crowd
        )
    return _softmax(attention, n, crowd, radius)


def _softmax(attention: Attention, n: int, crowd: float, radius: float) -> list[Bound]:
    heads, layer = attention.heads, LayerNorms.of(attention.heads, n)
    t = radius * (layer.a * radius + layer.key_shift)
    y = radius * (layer.a * radius + (layer.query_shift if heads.rotary is not None else 0.0))
    where = f"tokens in the ball of radius {radius:.6g}"
    rooted = f"{where}, no token lighter than 1/{crowd:.6g}"
    masked = ", causal mask (K1)" if attention.causal else ""
    found = [
        _proved(
            "U1",
            layer.combine((3 * (crowd + 4 * crowd * t**2 + y**2)).sqrt()),
            f"castin24, Thm 3.3{masked}",
            rooted,
        ),
        _proved(
            "U1'",
            layer.combine(crowd**0.5 * (1 + t) + y),
            f"U1 with Cauchy-Schwarz{masked}",
            rooted,
        ),
    ]
    if heads.positional:
        return found
    if attention.causal:
        k3 = layer.combine(2 * (1 + 2 * t) * (2 * t).exp() + y)
        return [
            *found,
            _proved(
                "K3",
                k3,
                "Hardy's inequality, p = 2, after castin24",
                f"{where}, any number of tokens",
            ),
        ]
    return [
        *found,
        _proved(
            "M1",
            layer.combine((1 + 2 * t + y) * (2 * t).exp()),
            "castin24, Thm 3.5",
            f"{where}, any number of tokens",
        ),
        _proved(
            "M1'",
            layer.combine((1 + t) * t.exp() + y),
            "M1 for p = 2",
            f"{where}, any number of tokens",
        ),
    ]


def _l2_mean_field(attention: L2, radius: float) -> Bound:
    r"""$|V|[2s\|K^TQ\|R^2 + E(1 + 4s\|K\|R\rho)]$, $\rho = (\|Q\| + \|K\|)R + |b_Q - b_K|$, $E =
    e^{s\rho^2}$.
    """
    heads, layer = attention.heads, LayerNorms.of(attention.heads, 1)
    key, query = spectral(heads.key), spectral(heads.query)
    gap = torch.zeros_like(heads.query[..., 0])
    gap = gap if heads.query_bias is None else gap + heads.query_bias
    gap = gap if heads.key_bias is None else gap - heads.key_bias
    rho = (query + key) * radius + torch.linalg.vector_norm(gap, dim=-1)
    s = heads.scale
    single = 2 * layer.a * radius**2 + (s * rho**2).exp() * (1 + 4 * s * key * radius * rho)
    return _proved(
        "L2-M1",
        layer.combine(single),
        "after castin25",
        f"tokens in the ball of radius {radius:.6g}, any number of tokens",
    )


def _sigmoid(attention: Sigmoid, radius: float) -> Bound:
    r"""$\mathrm{Lip}_x + \mathrm{Lip}_\mu$ with $|\partial_1 s| \le g_1$, $|\partial_2 s| \le g_2$,
    $u = \|C\|R + |Wb_V|$:

    $\sigma'_{max}\, u\, g_1 + \sigma_{max} \|C\| + \sigma'_{max}\, u\, g_2$, extremes over the
    scores that occur.
    """
    heads, layer = attention.heads, LayerNorms.of(attention.heads, 1)
    count = attention.tokens or 1
    shift = attention.bias - math.log(count)
    query, key = (
        _largest(matrix, bias, radius)
        for matrix, bias in ((heads.query, heads.query_bias), (heads.key, heads.key_bias))
    )
    reach = heads.scale * query * key
    read = (
        torch.zeros_like(reach)
        if heads.value_bias is None
        else _written_bias(heads.output, heads.value_bias)
    )
    size = layer.written * radius + read
    g1, g2 = layer.a * radius + layer.query_shift, layer.a * radius + layer.key_shift
    steepest = torch.sigmoid(shift + torch.full_like(reach, -shift).clamp(-reach, reach))
    slope = count * steepest * (1 - steepest)
    total = slope * size * (g1 + g2) + count * torch.sigmoid(shift + reach) * layer.written
    return _proved(
        "S1",
        float(total.sum()) * (1 + SLACK),
        "after castin25",
        f"tokens in the ball of radius {radius:.6g}",
    )


def _largest(
    matrix: Float[Tensor, "h k d"], bias: Float[Tensor, "h k"] | None, radius: float
) -> Float[Tensor, " h"]:
    size = spectral(matrix) * radius
    return size if bias is None else size + torch.linalg.vector_norm(bias, dim=-1)


def _written_bias(output: Tensor | None, bias: Float[Tensor, "h v"]) -> Float[Tensor, " h"]:
    return torch.linalg.vector_norm(
        bias if output is None else (output @ bias[..., None])[..., 0], dim=-1
    )


def _proved(name: str, value: float, source: str, assumes: str) -> Bound:
    return Bound(float(value), "upper", "proved", name, source, assumes)
