"""The checks of shapes that stand in front of every function while tests run: they do find a wrong
shape, at the first calls of a test and now and then after them.
"""

from __future__ import annotations

from collections.abc import Callable

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import attnscope
import shape_checks
from attnscope.bounds.head_norms import LayerNorms
from attnscope.norms import largest_root


def watched(power: int = 1) -> Callable[[Tensor], Tensor]:
    def square(x: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
        return x.sum(0) ** power if len(x) < 5 else x

    return shape_checks.sparing(square, shape_checks.checked)


@pytest.mark.parametrize("size", [(2, 3), (5, 5)])
def test_a_wrong_shape_goes_in_or_comes_out(size: tuple[int, int]) -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        watched()(torch.zeros(size))


def test_functions_of_one_code_share_their_checks_and_nothing_else() -> None:
    x = torch.full((2, 2), 3.0)
    one, two = watched(1), watched(2)
    assert (one(x).tolist(), two(x).tolist(), one(x).tolist()) == ([6, 6], [36, 36], [6, 6])
    with pytest.raises(jaxtyping.TypeCheckError):
        two(x[:, :1])


def test_the_first_calls_and_ever_fewer_later_ones_are_checked() -> None:
    found = []
    for call in range(1, 70):
        try:
            watched()(torch.zeros(2, 3))
        except jaxtyping.TypeCheckError:
            found.append(call)
    assert found == [*range(1, shape_checks.FIRST + 1), 16, 32, 64]


def test_functions_methods_and_dataclasses_of_the_package_are_watched() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        largest_root(torch.zeros(2, 3))
    heads = attnscope.Heads.from_matrices(torch.eye(2), torch.eye(2))
    with pytest.raises(jaxtyping.TypeCheckError):
        attnscope.Softmax(heads).bias_slope(torch.zeros(2))
    with pytest.raises(jaxtyping.TypeCheckError):
        LayerNorms(torch.zeros(2), torch.zeros(3), torch.zeros(()))
