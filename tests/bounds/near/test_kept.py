"""What is kept over radii answers as what is worked out anew, and for no other inputs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from attnscope import L2, Heads, Sigmoid, Softmax
from attnscope.attention import Attention
from attnscope.bounds import sensitivity, tokens_over_ball
from attnscope.bounds.near.place import Kept


def layer(variant: str) -> tuple[Attention, Tensor]:
    generator = torch.Generator().manual_seed(3)
    parts = (torch.randn(2, 3, 4, dtype=torch.float64, generator=generator) for _ in range(4))
    query, key, value, output = parts
    heads = Heads(query, key, value, output.mT)
    made = {"softmax": Softmax(heads), "l2": L2(heads), "sigmoid": Sigmoid(heads, tokens=5)}
    return made[variant], torch.randn(6, 5, 4, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("variant", ["softmax", "l2", "sigmoid"])
@pytest.mark.parametrize("narrow", [False, True])
def test_kept_answers_are_those_found_anew(variant: str, narrow: bool) -> None:
    attention, x = layer(variant)
    span = torch.eye(4, 2, dtype=torch.float64) if narrow else None
    known = Kept.of(x)
    generator = torch.Generator().manual_seed(0)
    for rows in ([0, 2], [2, 1, 5], [3, 4, 1, 0, 2, 5]):
        index = torch.tensor(rows)
        eps = 0.01 + 0.3 * torch.rand(len(rows), dtype=torch.float64, generator=generator)
        some = known.some(index)
        for residual in (1.0, 0.5):
            anew = sensitivity(attention, x[index], eps, residual, span)
            kept = sensitivity(attention, x[index], eps, residual, span, some)
            for name, value in anew.candidates.items():
                torch.testing.assert_close(kept.candidates[name], value, rtol=1e-12, atol=0)
            one = tokens_over_ball(attention, x[index], eps, residual, span)
            other = tokens_over_ball(attention, x[index], eps, residual, span, some)
            torch.testing.assert_close(other.radius, one.radius, rtol=1e-12, atol=0)
            torch.testing.assert_close(other.budget, one.budget, rtol=1e-12, atol=0)
    assert known.values


def test_what_is_kept_answers_for_no_other_inputs() -> None:
    attention, x = layer("softmax")
    known, eps = Kept.of(x), torch.full((2,), 0.1, dtype=torch.float64)
    with pytest.raises(ValueError, match="other inputs"):
        sensitivity(attention, x[1:3], eps, known=known.some(torch.tensor([1, 0])))
    with pytest.raises(ValueError, match="other inputs"):
        tokens_over_ball(
            attention, x[1:3] + 1e-15, eps, 1.0, known=known.some(torch.tensor([1, 2]))
        )


def test_what_is_kept_answers_for_no_other_attention_or_span() -> None:
    attention, x = layer("softmax")
    known, eps = Kept.of(x), torch.full((len(layer("softmax")[1]),), 0.1, dtype=torch.float64)
    sensitivity(attention, x, eps, known=known)
    sensitivity(layer("softmax")[0], x, eps, known=known)  # the same in another object
    louder = Softmax(dataclasses.replace(attention.heads, value=2 * attention.heads.value))
    for other, span in (
        (layer("l2")[0], None),
        (louder, None),
        (attention, torch.eye(4, 2, dtype=torch.float64)),
    ):
        with pytest.raises(ValueError, match="another attention, or another span"):
            sensitivity(other, x, eps, span=span, known=known)
