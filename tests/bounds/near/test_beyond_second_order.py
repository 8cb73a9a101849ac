"""Every part of the bound beyond second order is needed: without it an example passes the bound."""

from __future__ import annotations

import pytest
import torch
from tests.bounds.near.tangent_cases import D, N, left

from attnscope import Heads, Softmax
from attnscope.bounds.near import along
from attnscope.bounds.near.along import NearTangent, followed

# Which coordinate queries, keys and values read, where tokens differ, where they move to first
# order and beside it: in each example a single part of the bound is what is left.
PARTS = {
    "three": (1, 0, 0, 0, 1, None),
    "two": (1, 0, 1, 0, 1, None),
    "second": (2, 0, 1, 0, 1, 2),
    "slip": (1, 2, 0, 0, 1, 2),
    "first": (1, 0, 2, 0, 1, 2),
}


def example(part: str) -> tuple[NearTangent, int | None]:
    query, key, value, apart, moved, beside = PARTS[part]
    unit = torch.eye(D, dtype=torch.float64)
    read = (unit[None, one : one + 1] for one in (query, key, value))
    heads = Heads(*read, unit[None, :, :1], scale=1.0)
    x = torch.tensor([-1.0, 0.2, 1.1], dtype=torch.float64)[:, None] * unit[apart]
    jacobian = torch.einsum("pn,d->pnd", torch.eye(N, dtype=torch.float64), unit[moved])
    rest = torch.full((N,), 0.0 if beside is None else 0.01, dtype=torch.float64)
    return NearTangent(Softmax(heads), x, jacobian, 0.03, rest), beside


def reached(part: str) -> float:
    """What is left beyond second order over its bound, token by token."""
    place, beside = example(part)
    bound = followed(place.attention, place.x, place.jacobian, place.eps, place.rest).tokens
    return float((torch.linalg.vector_norm(left(place, beside), dim=-1) / bound).max())


@pytest.mark.parametrize("part", list(PARTS))
def test_a_part_that_is_left_out_is_missed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reached(part) <= 1
    true = along._Scores.beyond

    def without(self: along._Scores, *values: torch.Tensor) -> torch.Tensor:
        setattr(self, part, 0 * getattr(self, part))
        return true(self, *values)

    monkeypatch.setattr(along._Scores, "beyond", without)
    assert reached(part) > 1
