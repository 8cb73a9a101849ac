"""Every part of the bound beyond second order is needed: without it an example passes the bound."""

from __future__ import annotations

import math

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


WITHOUT = {
    "three": ("kappa", "psi", "z"),
    "two": ("psi", "z"),
    "second": ("second",),
    "slip": ("scale",),
    "first": ("reach", "psi", "z"),
}
"""What each example cannot do without."""


@pytest.mark.parametrize("part", list(PARTS))
def test_a_part_that_is_left_out_is_missed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reached(part) <= 1
    true = along._Scores.alone

    def without(self: along._Scores, *values: torch.Tensor) -> torch.Tensor:
        for name in WITHOUT[part]:
            setattr(self, name, 0 * getattr(self, name))
        return true(self, *values)

    monkeypatch.setattr(along._Scores, "alone", without)
    assert reached(part) > 1


def test_rests_of_the_exponential_are_below_their_parabolas() -> None:
    for size in (1e-9, 1e-4, 0.009, 0.011, 0.5, 3.0, 20.0):
        psi, kappa = along.growth(torch.tensor(size, dtype=torch.float64))
        for t in (size, -size, size / 3, -size / 3):
            series = [t**k / math.factorial(k) for k in range(2, 120)]
            two, three = math.fsum(series), abs(math.fsum(series[1:]))
            assert two <= float(psi) * t**2 / 2
            assert three <= float(kappa) * t**2
        assert float(kappa) * size**2 <= 1.2 * math.fsum(
            size**k / math.factorial(k) for k in range(3, 120)
        )


@pytest.mark.parametrize("at_once", [along.AT_ONCE, 0])
def test_a_value_whose_own_score_rests_is_paid_for(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    r"""Two scores move by a and -a, and the value of the third token by b: it is read as $b/(1 +
    2\cosh a)$. The first two tokens hardly move, since keys are a thousand times as large, so that
    the rest is missed where every value is only weighed with its own token's score.
    """
    monkeypatch.setattr(along, "AT_ONCE", at_once)
    unit = torch.eye(3, dtype=torch.float64)
    query, key, value = (unit[None, one : one + 1] for one in range(3))
    heads = Heads(query, 1e3 * key, value, value.mT, scale=1.0)
    x = unit[0].expand(3, 3)
    jacobian = torch.zeros(2, 3, 3, dtype=torch.float64)
    jacobian[0, 0, 1], jacobian[0, 1, 1], jacobian[1, 2, 2] = 1e-3, -1e-3, 1
    eps, still = 0.3, torch.zeros(3, dtype=torch.float64)
    found = followed(Softmax(heads), x, jacobian, eps, still)
    a = b = eps / math.sqrt(2)
    lost = b * abs(1 / (1 + 2 * math.cosh(a)) - 1 / 3)
    assert float(found.tokens.min()) >= lost
    every = unit[2].expand(1, 3, 3)  # against the sum of all tokens
    assert float(found.third(every)) >= 3 * lost
