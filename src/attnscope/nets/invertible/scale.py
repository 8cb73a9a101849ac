r"""What an invertible layer asks of theorems: the smallest proved Lipschitz constant of its
attention on a ball or anywhere, as a differentiable function of the weights, in float64; and how
far it moves a token.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope import bounds
from attnscope.attention import Attention
from attnscope.bounds import Anywhere, OnBall, Reach
from attnscope.validation import described


def check_proved(attention: object, radius: float | None) -> None:
    """Refuse an attention for which no theorem gives a Lipschitz constant on the set in use."""
    if not isinstance(attention, Attention):
        raise TypeError(
            "an invertible layer needs an attention such as Softmax(heads), got"
            f" {described(attention)}."
        )
    start = f"no contraction is proved for {attention.name} attention"
    try:
        bounds.check_covered(attention)
    except ValueError as refusal:
        raise ValueError(f"{start}: {refusal}") from None
    anywhere = Anywhere(2, 2.0, bounds.tied_reads(attention.heads))
    if bounds.theorems(attention, anywhere):
        return
    if radius is None:
        untied = " unless Q = K and V = UQ" if attention.distance else ""
        raise ValueError(
            f"{start} on the whole space, where it is not Lipschitz{untied}. Pass the radius of a"
            " ball that holds the tokens."
        )
    if not bounds.theorems(attention, OnBall(2, radius, 2.0)):
        raise ValueError(f"{start} on a ball. Use another variant, or heads without positions.")


def lipschitz(
    attention: Attention,
    reads: Float[Tensor, "h v k"] | None,
    n: int,
    radius: Float[Tensor, ""] | None,
) -> Float[Tensor, ""]:
    r"""A proved constant of $X \mapsto f(X)$ for at most n tokens of equal weight in the ball,
    anywhere if `radius` is None.

    `reads` is U of tied L2 attention, $V = UQ$. Attention and radius are in float64.
    """
    places: list[object] = [Anywhere(n, float(n), reads)]
    if radius is not None:
        places.append(OnBall(n, radius, float(n)))
    found = bounds.lipschitz(attention, *places)
    if found is None or not found.isfinite():
        where = "" if radius is None else f" on the ball of radius {float(radius.detach()):.6g}"
        tie = ", or tie it: Q = K, V = UQ" if attention.distance else ""
        raise ValueError(
            f"no useful contraction is proved for {attention.name} attention here: its constant"
            f"{where} is infinite in float64. Use smaller weights or a smaller radius{tie}."
        )
    return found


def displacement(attention: Attention, radius: Float[Tensor, ""]) -> Float[Tensor, ""]:
    r"""How far one token of the ball is moved at most, $\sup|f(X)_i|$."""
    place = Reach(radius)
    return torch.stack([one(attention, place) for one in bounds.theorems(attention, place)]).amin()
