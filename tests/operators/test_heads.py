"""All heads in one stack: each has the singular values of the head alone, in any precision, under
any mask, bias, weight and rotation, and after the stack was cut.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.operators.heads import head_values, of_heads

SHAPES = {"reduced": (17, 3), "input not smaller": (6, 3), "summed": (7, None)}


def heads_of(d: int, v: int | None, rotary: bool = False, biased: bool = False) -> asc.Heads:
    generator = torch.Generator().manual_seed(d)

    def r(*shape: int) -> Tensor:
        return 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    output, width = (None, d) if v is None else (r(3, d, v), v)
    return asc.Heads(
        r(3, 4, d),
        r(3, 4, d),
        r(3, width, d),
        output,
        query_bias=r(3, 4),
        value_bias=r(3, width),
        output_bias=r(d),
        rotary=r(2) if rotary else None,
        position_bias=r(3, 8, 8) if biased else None,
    )


def measure(d: int, weighted: bool = False) -> asc.Particles:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, d, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, 5, generator=generator, dtype=torch.float64) + 0.1
    return asc.Particles(x, weights / weights.sum(-1, keepdim=True) if weighted else None)


def alone(attention: asc.Attention, mu: asc.Particles, head: int) -> asc.LinearOperator:
    one = dataclasses.replace(attention, heads=attention.heads.select(head))
    return asc.jacobian(one, mu)


def check(attention: asc.Attention, mu: asc.Particles) -> None:
    op = of_heads(attention, mu)
    found = torch.linalg.svdvals(op.whitened().to_dense())
    assert found.shape[:2] == (3, 2)
    for head in range(3):
        true = torch.linalg.svdvals(alone(attention, mu, head).whitened().to_dense())
        count = found.shape[-1]
        torch.testing.assert_close(found[head], true[:, :count], rtol=0, atol=1e-12 * true.max())
        assert (true[:, count:] < 1e-12 * true.max()).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_are_those_of_each_head(shape: str, causal: bool) -> None:
    d, v = SHAPES[shape]
    check(asc.Softmax(heads_of(d, v), causal=causal), measure(d))


@pytest.mark.parametrize("part", ["rotary", "position bias", "weights", "l2"])
def test_what_depends_on_places_and_masses_stands_inside(part: str) -> None:
    heads = heads_of(17, 3, rotary=part == "rotary", biased=part == "position bias")
    variant = asc.L2 if part == "l2" else asc.Softmax
    check(variant(heads, causal=part == "position bias"), measure(17, weighted=part == "weights"))


def test_adjoint_and_sub_stacks() -> None:
    op = of_heads(asc.Softmax(heads_of(17, 3, biased=True), causal=True), measure(17, True)).flat()
    generator = torch.Generator().manual_seed(2)
    u, y = (
        torch.randn(6, size, generator=generator, dtype=torch.float64) for size in op.shape[::-1]
    )
    torch.testing.assert_close((op.mv(u) * y).sum(1), (u * op.rmv(y)).sum(1))
    assert op.restrict is not None
    index = torch.tensor([4, 1, 3])
    part = op.restrict(index)
    torch.testing.assert_close(part.mv(u[index]), op.mv(u)[index])
    torch.testing.assert_close(part.rmv(y[index]), op.rmv(y)[index])
    assert part.restrict is not None
    torch.testing.assert_close(part.restrict(index[2:] - 1).mv(u[3:4]), op.mv(u)[3:4])


def test_float32_finishes_in_float64_coordinates_of_its_own() -> None:
    attention, mu = asc.Softmax(heads_of(17, 3)), measure(17)
    rough = of_heads(attention.to(torch.float32), mu.to(torch.float32))
    found = asc.spectral_norm(rough, tol=1e-5, failure_probability=1e-3)
    single, points = attention.to(torch.float32).to(torch.float64), mu.to(torch.float32)
    for head in range(3):
        true = torch.linalg.svdvals(alone(single, points.to(torch.float64), head).to_dense())[:, 0]
        lower, upper = torch.as_tensor(found.lower)[head], torch.as_tensor(found.upper)[head]
        assert (lower <= true).all()
        assert (true <= upper).all()
        torch.testing.assert_close(lower, true, rtol=1e-6, atol=0)


def test_values_give_the_released_estimator_of_each_head() -> None:
    attention, mu = asc.Softmax(heads_of(17, 3), causal=True), measure(17)
    pulled = of_heads(attention, mu).rmv(head_values(attention, mu)).flatten(2).norm(dim=-1)
    for head in range(3):
        one = dataclasses.replace(attention, heads=attention.heads.select(head))
        direct = asc.jacobian(one, mu).rmv(one(mu.x, mu)).flatten(1).norm(dim=-1)
        torch.testing.assert_close(pulled[head], direct)


def test_a_variant_without_a_closed_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sigmoid.*heads\.select"):
        of_heads(asc.Sigmoid(heads_of(17, 3)), measure(17))
