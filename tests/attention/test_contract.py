"""What every attention variant keeps, whichever file it comes from: the laws of a map between probability measures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import VARIANTS, Problem, Variant, accepts_mask, central_difference, cloud, heads, near, normal, problems

import attnscope.attention
from attnscope import Attention, Gaussian, Heads, NoClosedForm, Particles
from attnscope.attention import _base, _normalised

every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
MASKED = {name: variant for name, variant in VARIANTS.items() if accepts_mask(variant)}
every_masked_variant = pytest.mark.parametrize("variant", MASKED.values(), ids=MASKED.keys())


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiny problems take the path of large ones: two or three rows of the coupling at a time."""
    for name in dir(attnscope.attention):
        module = getattr(attnscope.attention, name)
        if hasattr(module, "CHUNK_BYTES"):
            monkeypatch.setattr(module, "CHUNK_BYTES", 300)
    monkeypatch.setattr(_normalised, "FUSED_BYTES", 400)
    assert _base.CHUNK_BYTES == _normalised.CHUNK_BYTES == 300


def split(mu: Particles, which: int, share: float) -> Particles:
    """The same measure, one particle written as two at the same place."""
    x = torch.cat([mu.x, mu.x[which : which + 1]])
    weights = torch.cat([mu.weights, mu.weights[which : which + 1] * (1 - share)])
    weights[which] *= share
    positions = None if mu.positions is None else torch.cat([mu.positions, mu.positions[which : which + 1]])
    return Particles(x, weights, positions)


def reordered(mu: Particles, order: list[int]) -> Particles:
    return Particles(mu.x[order], mu.weights[order], None if mu.positions is None else mu.positions[order])


@every_variant
@given(problem=problems(), which=st.integers(0, 5), share=st.floats(0, 1))
def test_splitting_a_particle_changes_nothing(variant: Variant, problem: Problem, which: int, share: float) -> None:
    attention = variant(problem.heads)
    near(attention(problem.x, split(problem.mu, which % problem.mu.n, share)), attention(problem.x, problem.mu))


@every_variant
@given(problem=problems(), data=st.data())
def test_reordering_changes_nothing(variant: Variant, problem: Problem, data: st.DataObject) -> None:
    attention = variant(problem.heads)
    order = data.draw(st.permutations(range(problem.mu.n)))
    near(attention(problem.x, reordered(problem.mu, order)), attention(problem.x, problem.mu))


@every_variant
def test_a_particle_without_mass_changes_nothing(variant: Variant) -> None:
    attention, mu, x = variant(heads(0)), cloud(1), normal(3, 2, seed=2)
    ghost = Particles(torch.cat([mu.x, normal(1, 2, seed=9)]), torch.cat([mu.weights, torch.zeros(1, dtype=torch.float64)]))
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
def test_the_closed_form_is_the_field_of_gauss_hermite_particles(variant: Variant, rank: int, biases: bool) -> None:
    attention = variant(heads(6, dim=3, biases=biases, size=0.4))
    factor = normal(3, rank, seed=7, size=0.5)
    gaussian = Gaussian(normal(3, seed=8), factor @ factor.mT)
    x = normal(4, 3, seed=9)
    if variant.on_gaussian is Attention.on_gaussian:
        with pytest.raises(NoClosedForm, match=rf"{variant.name} .* {variant.no_closed_form}. Use particles instead"):
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


@every_masked_variant
def test_a_mask_or_a_position_bias_has_no_closed_form(variant: Variant) -> None:
    gaussian = Gaussian(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    with pytest.raises(NoClosedForm, match="place of a token"):
        variant(heads(0), causal=True).affine(gaussian)


@every_variant
def test_the_query_derivative_is_that_of_central_differences(variant: Variant) -> None:
    attention, mu, x, u = variant(heads(0)), cloud(1), normal(3, 2, seed=2), normal(3, 2, seed=3)

    def field(x: torch.Tensor) -> torch.Tensor:
        return attention.dense(x, mu)

    near(torch.func.jvp(field, (x,), (u,))[1], central_difference(field, x, u), 1e-6)


@every_variant
@pytest.mark.parametrize("causal", [False, True])
def test_the_derivative_of_self_attention_is_that_of_central_differences(variant: Variant, causal: bool) -> None:
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


@every_masked_variant
@pytest.mark.parametrize("placed", ["in order", "unordered", "tied"])
def test_many_chunks_of_a_masked_attention_equal_one(variant: Variant, placed: str, small_chunks: None) -> None:
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
    return Heads(plain.query, plain.key, plain.value, plain.output, rotary=torch.tensor([0.7, 0.2], dtype=torch.float64))


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
        seen = variant(parts)(mu.x[i : i + 1], Particles(mu.x[: i + 1], mu.weights[: i + 1] / mass))[0]
        if not variant.normalised:
            constant = torch.zeros(2, dtype=torch.float64) if parts.output_bias is None else parts.output_bias
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
    places = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n)), dtype=torch.float64)
    mu = Particles(problem.mu.x, problem.mu.weights, places)
    at = torch.ones_like(problem.x[..., 0])
    order = data.draw(st.permutations(range(n + 1)))
    near(attention(problem.x, reordered(split(mu, which % n, share), order), positions=at), attention(problem.x, mu, positions=at))


@every_masked_variant
def test_queries_may_stand_anywhere(variant: Variant) -> None:
    attention, mu, x = variant(heads(0), causal=True), cloud(1), normal(3, 2, seed=2)
    at = torch.tensor([0.3, 1.0, 0.65], dtype=torch.float64)
    field = attention(x, mu, positions=at)
    for query, seen in enumerate([1, 5, 3]):
        for token in range(mu.n):
            other = mu.at(mu.x + torch.eye(mu.n, dtype=torch.float64)[token, :, None])
            unmoved = torch.allclose(attention(x, other, positions=at)[query], field[query], rtol=0, atol=1e-12)
            assert unmoved == (token >= seen)


@every_masked_variant
def test_a_stack_of_masked_attentions_equals_a_loop(variant: Variant) -> None:
    attention = variant(heads(3), causal=True)
    mu = cloud(4, 5, stack=(3,), positions=torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    assert mu.positions is not None
    each = [attention(mu.x[i], Particles(mu.x[i], mu.weights[i], mu.positions[i])) for i in range(3)]
    near(attention(mu.x, mu), torch.stack(each))


@every_variant
def test_a_variant_describes_itself(variant: Variant) -> None:
    assert VARIANTS[variant.name] is variant
    assert variant.__module__.rsplit(".", 1)[-1] == variant.name
    assert isinstance(variant.normalised, bool)
    assert variant.lipschitz
    assert variant.reference
