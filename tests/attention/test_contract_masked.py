"""What every attention variant that takes a mask keeps: a query reads what stands before it, itself
and ties included.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    VARIANTS,
    Problem,
    Variant,
    accepts_mask,
    cloud,
    heads,
    near,
    normal,
    problems,
    reordered,
    split,
)

from attnscope import Gaussian, Heads, NoClosedForm, Particles

MASKED = {name: variant for name, variant in VARIANTS.items() if accepts_mask(variant)}
every_masked_variant = pytest.mark.parametrize("variant", MASKED.values(), ids=MASKED.keys())


@every_masked_variant
def test_a_mask_or_a_position_bias_has_no_closed_form(variant: Variant) -> None:
    gaussian = Gaussian(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    with pytest.raises(NoClosedForm, match="place of a token"):
        variant(heads(0), causal=True).affine(gaussian)


@every_masked_variant
@pytest.mark.parametrize("placed", ["in order", "unordered", "tied"])
def test_many_chunks_of_a_masked_attention_equal_one(
    variant: Variant, placed: str, small_chunks: None
) -> None:
    positions = {
        "in order": None,
        "unordered": torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        "tied": torch.tensor([0.4, 0.2, 0.2, 0.9, 0.4, 0.4, 1.0, 0.2, 0.0], dtype=torch.float64),
    }[placed]
    attention, mu = variant(heads(0), causal=True), cloud(1, 9, positions=positions)
    near(attention(mu.x, mu), attention.dense(mu.x, mu))


@every_masked_variant
def test_many_chunks_of_rotary_heads_equal_one(variant: Variant, small_chunks: None) -> None:
    attention, mu = variant(rotary_heads(), causal=True), Particles(normal(9, 2, seed=1))
    near(attention(mu.x, mu), attention.dense(mu.x, mu))


def rotary_heads() -> Heads:
    plain = heads(0, head=4)
    return Heads(
        plain.query,
        plain.key,
        plain.value,
        plain.output,
        rotary=torch.tensor([0.7, 0.2], dtype=torch.float64),
    )


@every_masked_variant
@given(problem=problems(), cut=st.integers(1, 6))
def test_a_prefix_does_not_feel_later_tokens(variant: Variant, problem: Problem, cut: int) -> None:
    attention, mu = variant(problem.heads, causal=True), problem.mu
    cut = min(cut, mu.n)
    places = mu.places()
    later = torch.arange(mu.n) >= cut
    other = Particles(torch.where(later[:, None], 5 - 2 * mu.x, mu.x), mu.weights, places)
    near(attention(other.x, other)[:cut], attention(mu.x, mu)[:cut])


@every_masked_variant
def test_a_masked_prefix_is_unmasked_attention_to_what_came_before(variant: Variant) -> None:
    parts, mu = heads(0), cloud(1)
    masked = variant(parts, causal=True)(mu.x, mu)
    for i in range(mu.n):
        mass = mu.weights[: i + 1].sum()
        seen = variant(parts)(
            mu.x[i : i + 1], Particles(mu.x[: i + 1], mu.weights[: i + 1] / mass)
        )[0]
        if not variant.normalised:
            constant = (
                torch.zeros(2, dtype=torch.float64)
                if parts.output_bias is None
                else parts.output_bias
            )
            seen = mass * (seen - constant) + constant
        near(masked[i], seen)


@every_masked_variant
def test_token_order_means_positions_i_over_n(variant: Variant) -> None:
    attention, mu = variant(heads(0), causal=True), cloud(1)
    placed = Particles(mu.x, mu.weights, torch.arange(1, 6, dtype=torch.float64) / 5)
    assert torch.equal(attention(mu.x, mu), attention(placed.x, placed))


@every_masked_variant
def test_tokens_at_the_same_position_see_each_other(variant: Variant) -> None:
    mu = cloud(1)
    together = Particles(mu.x, mu.weights, torch.full((5,), 0.3, dtype=torch.float64))
    near(variant(heads(0), causal=True)(mu.x, together), variant(heads(0))(mu.x, mu))


@every_masked_variant
@given(problem=problems(), which=st.integers(0, 5), share=st.floats(0, 1), data=st.data())
def test_a_masked_attention_is_a_map_on_measures_too(
    variant: Variant, problem: Problem, which: int, share: float, data: st.DataObject
) -> None:
    attention, n = variant(problem.heads, causal=True), problem.mu.n
    places = torch.tensor(
        data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n)),
        dtype=torch.float64,
    )
    mu = Particles(problem.mu.x, problem.mu.weights, places)
    at = torch.ones_like(problem.x[..., 0])
    order = data.draw(st.permutations(range(n + 1)))
    near(
        attention(problem.x, reordered(split(mu, which % n, share), order), positions=at),
        attention(problem.x, mu, positions=at),
    )


@every_masked_variant
def test_queries_may_stand_anywhere(variant: Variant) -> None:
    attention, mu, x = variant(heads(0), causal=True), cloud(1), normal(3, 2, seed=2)
    at = torch.tensor([0.3, 1.0, 0.65], dtype=torch.float64)
    field = attention(x, mu, positions=at)
    for query, seen in enumerate([1, 5, 3]):
        for token in range(mu.n):
            other = mu.at(mu.x + torch.eye(mu.n, dtype=torch.float64)[token, :, None])
            unmoved = torch.allclose(
                attention(x, other, positions=at)[query], field[query], rtol=0, atol=1e-12
            )
            assert unmoved == (token >= seen)


@every_masked_variant
def test_a_stack_of_masked_attentions_equals_a_loop(variant: Variant) -> None:
    attention = variant(heads(3), causal=True)
    mu = cloud(
        4,
        5,
        stack=(3,),
        positions=torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    )
    assert mu.positions is not None
    each = [
        attention(mu.x[i], Particles(mu.x[i], mu.weights[i], mu.positions[i])) for i in range(3)
    ]
    near(attention(mu.x, mu), torch.stack(each))
