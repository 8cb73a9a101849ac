"""Balls and the whole space: the worst input that ascent finds, by a dense Jacobian."""

from __future__ import annotations

from collections.abc import Iterator

from bound_cases import local_constant
from torch import Tensor

from attnscope import Attention
from attnscope.bounds import Anywhere, LayerNorms, OnBall, Theorem
from theorem_cases import Case
from theorem_cases.attentions import every, lopsided, scaled, worst

WHERE = (OnBall, Anywhere)


def cases(theorem: Theorem) -> Iterator[Case]:
    for attention in every(theorem):
        for n, radius, rare in ((4, 0.7, False), (2, 1.5, False), (3, 1.0, True)):
            crowd = float(1 / lopsided(n).min()) if rare else n

            def place(s: Tensor | float, n=n, radius=radius, crowd=crowd):  # type: ignore[no-untyped-def]
                at = OnBall(n, s * radius, float(crowd))
                return at if theorem.where is OnBall else Anywhere(n, float(crowd))

            if not theorem.holds(attention, place(1.0)):
                continue

            def slope(s: Tensor, attention: Attention = attention, place=place) -> Tensor:  # type: ignore[no-untyped-def]
                moved = scaled(attention, s)
                return LayerNorms.of(moved.heads).combine(theorem(moved, place(s)))

            bound = LayerNorms.of(attention.heads).combine(theorem(attention, place(1.0)))
            free = theorem.where is Anywhere
            mu = worst(attention, n, None if free else radius, rare)
            yield Case(
                f"{theorem.name} on {n} tokens, radius {radius}, {attention}",
                float(bound),
                float(local_constant(attention, mu)),
                slope,
            )
