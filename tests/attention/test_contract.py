"""What every attention variant keeps, whichever file it comes from: the laws of a map between
probability measures.
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
    central_difference,
    cloud,
    heads,
    near,
    normal,
    problems,
    reordered,
    split,
)

from attnscope import Attention, Gaussian, Heads, NoClosedForm, Particles

every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


@every_variant
@given(problem=problems(), which=st.integers(0, 5), share=st.floats(0, 1))
def test_splitting_a_particle_changes_nothing(
    variant: Variant, problem: Problem, which: int, share: float
) -> None:
    attention = variant(problem.heads)
    near(
        attention(problem.x, split(problem.mu, which % problem.mu.n, share)),
        attention(problem.x, problem.mu),
    )


@every_variant
@given(problem=problems(), data=st.data())
def test_reordering_changes_nothing(
    variant: Variant, problem: Problem, data: st.DataObject
) -> None:
    attention = variant(problem.heads)
    order = data.draw(st.permutations(range(problem.mu.n)))
    near(attention(problem.x, reordered(problem.mu, order)), attention(problem.x, problem.mu))


@every_variant
def test_a_particle_without_mass_changes_nothing(variant: Variant) -> None:
    attention, mu, x = variant(heads(0)), cloud(1), normal(3, 2, seed=2)
    ghost = Particles(
        torch.cat([mu.x, normal(1, 2, seed=9)]),
        torch.cat([mu.weights, torch.zeros(1, dtype=torch.float64)]),
    )
    near(attention(x, ghost), attention(x, mu))


@every_variant
def test_self_attention_pushes_the_measure(variant: Variant) -> None:
    attention, mu = variant(heads(0)), cloud(1)
    pushed = attention.push(mu)
    near(pushed.x, attention(mu.x, mu))
    assert torch.equal(pushed.weights, mu.weights)


@every_variant
@pytest.mark.parametrize("stack", [(3,), (2, 2)])
def test_a_stack_equals_a_loop(variant: Variant, stack: tuple[int, ...]) -> None:
    attention, mu, x = variant(heads(3)), cloud(4, 5, stack=stack), normal(*stack, 4, 2, seed=5)
    flat = zip(x.reshape(-1, 4, 2), mu.x.reshape(-1, 5, 2), mu.weights.reshape(-1, 5), strict=True)
    each = [attention(part, Particles(y, w)) for part, y, w in flat]
    near(attention(x, mu), torch.stack(each).reshape(*stack, 4, 2))


@every_variant
@given(problem=problems())
def test_rows_of_a_normalised_variant_sum_to_one(variant: Variant, problem: Problem) -> None:
    if not variant.normalised:
        pytest.skip("not normalised")
    coupling = variant(problem.heads).coupling(problem.x, problem.mu)
    assert (coupling >= 0).all()
    near(coupling.sum(-1), torch.ones_like(coupling[..., 0]))


@every_variant
def test_a_variant_that_says_it_is_not_normalised_is_not(variant: Variant) -> None:
    sums = variant(heads(0)).coupling(normal(4, 2, seed=1), cloud(2)).sum(-1)
    assert variant.normalised == bool(((sums - 1).abs() < 1e-6).all())


@every_variant
@pytest.mark.parametrize("causal", [False, True])
def test_float32_is_near_float64(variant: Variant, causal: bool) -> None:
    if causal and not accepts_mask(variant):
        pytest.skip("takes no mask")
    attention, mu = variant(heads(0), causal=causal), cloud(1, 20)
    single = attention.to(torch.float32)(mu.x.float(), mu.to(torch.float32))
    assert single.dtype == torch.float32
    near(single.double(), attention(mu.x, mu), 2e-5)


@every_variant
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("biases", [False, True])
def test_the_closed_form_is_the_field_of_gauss_hermite_particles(
    variant: Variant, rank: int, biases: bool
) -> None:
    attention = variant(heads(6, dim=3, biases=biases, size=0.4))
    factor = normal(3, rank, seed=7, size=0.5)
    gaussian = Gaussian(normal(3, seed=8), factor @ factor.mT)
    x = normal(4, 3, seed=9)
    if variant.on_gaussian is Attention.on_gaussian:
        with pytest.raises(
            NoClosedForm,
            match=rf"{variant.name} .* {variant.no_closed_form}. Use particles instead",
        ):
            attention.affine(gaussian)
        return
    near(attention.affine(gaussian)(x), attention(x, gaussian.quadrature(24)), 1e-8)


@every_variant
def test_the_closed_form_of_a_stack_is_the_stack_of_closed_forms(variant: Variant) -> None:
    attention, mean, factor = variant(heads(6)), normal(3, 2, seed=1), normal(3, 2, 2, seed=2)
    cov = factor @ factor.mT
    if variant.on_gaussian is Attention.on_gaussian:
        pytest.skip("no closed form")
    together = attention.affine(Gaussian(mean, cov))
    each = [attention.affine(Gaussian(mean[i], cov[i])) for i in range(3)]
    near(together.matrix, torch.stack([one.matrix for one in each]))
    near(together.offset, torch.stack([one.offset for one in each]))


@every_variant
def test_the_query_derivative_is_that_of_central_differences(variant: Variant) -> None:
    attention, mu, x, u = variant(heads(0)), cloud(1), normal(3, 2, seed=2), normal(3, 2, seed=3)

    def field(x: torch.Tensor) -> torch.Tensor:
        return attention.dense(x, mu)

    near(torch.func.jvp(field, (x,), (u,))[1], central_difference(field, x, u), 1e-6)


@every_variant
@pytest.mark.parametrize("causal", [False, True])
def test_the_derivative_of_self_attention_is_that_of_central_differences(
    variant: Variant, causal: bool
) -> None:
    if causal and not accepts_mask(variant):
        pytest.skip("takes no mask")
    attention, mu, u = variant(heads(0), causal=causal), cloud(1), normal(5, 2, seed=3)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return attention.dense(x, mu.at(x))

    near(torch.func.jvp(layer, (mu.x,), (u,))[1], central_difference(layer, mu.x, u), 1e-6)


@every_variant
def test_gradients_of_points_and_matrices_flow_through_a_call(variant: Variant) -> None:
    mu, v = cloud(1), normal(5, 2, seed=3)
    a, c, u = normal(2, 2, seed=4, size=0.5), normal(2, 2, seed=5), normal(2, 2, seed=6)

    def loss(points: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        moved = mu.at(points)
        return (variant(Heads.from_matrices(matrix, c))(points, moved) * v).sum()

    points, matrix = mu.x.clone().requires_grad_(), a.clone().requires_grad_()
    by_points, by_matrix = torch.autograd.grad(loss(points, matrix), (points, matrix))
    near((by_points * v).sum(), central_difference(lambda z: loss(z, a), mu.x, v), 1e-6)
    near((by_matrix * u).sum(), central_difference(lambda z: loss(mu.x, z), a, u), 1e-6)


@every_variant
def test_many_chunks_equal_one(variant: Variant, small_chunks: None) -> None:
    attention, mu, x = variant(heads(0)), cloud(1, 9), normal(11, 2, seed=2)
    near(attention(x, mu), attention.dense(x, mu))


@every_variant
def test_many_chunks_of_a_stack_equal_one(variant: Variant, small_chunks: None) -> None:
    attention, mu, x = variant(heads(0)), cloud(1, 9, stack=(2, 2)), normal(2, 2, 11, 2, seed=2)
    near(attention(x, mu), attention.dense(x, mu))


@every_variant
def test_a_variant_describes_itself(variant: Variant) -> None:
    assert VARIANTS[variant.name] is variant
    assert variant.__module__.rsplit(".", 1)[-1] == variant.name
    assert isinstance(variant.normalised, bool)
    assert variant.lipschitz
    assert variant.reference
