"""No upper bound is below the truth: on random inputs, and on inputs that gradient ascent found."""

from __future__ import annotations

import math

import pytest
import torch
from bound_cases import Recipe, ascend, jacobian, local_constant, recipes, single
from hypothesis import given, settings
from torch import Tensor

from attnscope import L2, Attention, Heads, Particles, Sigmoid, Softmax
from attnscope.bounds import BlockNorms, on_ball, smoothness
from attnscope.bounds.at import At
from attnscope.bounds.smooth._mixtures import Mixtures, mixture_norms
from attnscope.bounds.smooth._query_path import QueryPath
from attnscope.bounds.smooth.blocks import (
    exact_blocks,
    outputs,
    query_block,
    triangle_blocks,
    values,
    weighted,
)
from attnscope.norms import (
    PERRON_STEPS,
    largest_eigenvalue,
    positive_norm,
    schatten16,
    spectral_of_product,
)


def assert_holds(attention: Attention, mu: Particles) -> None:
    truth = float(local_constant(attention, mu))
    for bound in smoothness(attention, mu):
        assert bound.value >= truth, f"{bound} is below {truth:.12g}"
        assert (bound.side, bound.kind) == ("upper", "proved")


@settings(max_examples=200)
@given(recipes())
def test_every_bound_holds_at_random_inputs(recipe: Recipe) -> None:
    case = recipe.build()
    assert_holds(case.attention, case.mu)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "heads", "rotary", "bias", "l2", "tied", "sigmoid"])
@pytest.mark.parametrize("radius", [0.7, 1.5])
def test_every_bound_holds_where_ascent_leads(
    kind: str, causal: bool, radius: float, randn
) -> None:
    attention = attention_of(kind, causal, randn)
    for n in (2, 4):
        mu = Particles(0.6 * radius * randn(n, attention.heads.dim))
        mu = mu.at(
            mu.x * (radius / torch.linalg.vector_norm(mu.x, dim=-1, keepdim=True)).clamp(max=1)
        )
        found = ascend(lambda x, mu=mu: local_constant(attention, mu.at(x)), mu.x, radius, steps=25)
        assert local_constant(attention, mu.at(found)) > local_constant(attention, mu)
        assert_holds(attention, Particles(found))


def attention_of(kind: str, causal: bool, randn) -> Attention:
    h, k, d = (1, 2, 2) if kind == "softmax" else (2, 2, 2)
    query, key = randn(h, k, d), randn(h, k, d)
    if kind == "tied":
        return L2(Heads(query, query, randn(h, 2, k) @ query, randn(h, d, 2)), causal=causal)
    options = (
        {"query_bias": randn(h, k), "key_bias": randn(h, k), "value_bias": randn(h, 2)}
        if kind == "bias"
        else {}
    )
    if kind == "rotary":
        options = {"rotary": randn(k // 2), "key_bias": randn(h, k)}
    heads = Heads(query, key, randn(h, 2, d), randn(h, d, 2), **options)
    return {"l2": L2, "sigmoid": Sigmoid}.get(kind, Softmax)(heads, causal=causal)


def reference(a: Tensor, mu: Particles) -> Tensor:
    """U1'' of one head with V = I, from dense covariances."""
    logits = mu.x @ a.mT @ mu.x.mT + mu.weights.log()
    p = torch.softmax(logits, dim=-1)
    deviation = mu.x - (p @ mu.x)[:, None]
    cov = torch.einsum("ij,ijd,ije->ide", p, deviation, deviation)
    c = ((mu.weights[:, None] * p).sum(0) / mu.weights).max()
    spread = torch.linalg.matrix_norm(cov, 2).sqrt() * torch.linalg.vector_norm(mu.x @ a.mT, dim=-1)
    return c.sqrt() * (1 + spread.max()) + torch.linalg.matrix_norm(cov @ a, 2).max()


def test_the_point_bound_is_its_formula_and_survives_ascent_on_its_own_ratio(randn) -> None:
    a = randn(2, 2)
    attention, ratios = single(a), []
    for _ in range(3):
        weights = torch.softmax(randn(3), 0)
        mu = Particles(randn(3, 2), weights)
        x = ascend(
            lambda x, mu=mu: local_constant(attention, mu.at(x)) / reference(a, mu.at(x)),
            mu.x,
            None,
            steps=60,
        )
        found = mu.at(x)
        assert smoothness(attention, found).named("U1''").value == pytest.approx(
            float(reference(a, found)), rel=1e-8
        )
        assert_holds(attention, found)
        ratios.append(float(local_constant(attention, found) / reference(a, found)))
    assert max(ratios) > 0.8


def test_point_bound_is_attained_without_scores(randn) -> None:
    v = randn(3, 3)
    attention, mu = single(torch.zeros(3, 3, dtype=torch.float64), v), Particles(randn(4, 3))
    assert smoothness(attention, mu).named("U1''").value == pytest.approx(
        float(local_constant(attention, mu)), rel=1e-9
    )


def covariance_bound(attention: Softmax, x: Tensor) -> Tensor:
    r"""U1'' for two tokens with $\max_\delta\|\mathrm{Cov}_iA_\delta\|$ in place of $\|C_i\|$:
    false for rotary heads.
    """
    heads = attention.heads
    p = attention.coupling(x, Particles(x.detach()).at(x))[0]
    deviation = x - (p @ x)[:, None]
    cov = torch.einsum("ij,ijd,ije->ide", p, deviation, deviation)
    a = torch.stack(
        [
            heads.key[0].mT @ heads.turn(heads.query.mT, torch.full((2,), offset))[0].mT
            for offset in (-1, 0, 1)
        ]
    )
    kappa = torch.linalg.vector_norm(torch.einsum("ode,ie->iod", a, x), dim=-1).amax(-1)
    joint = (torch.linalg.matrix_norm(cov, 2).sqrt() * kappa).max()
    return p.sum(0).max().sqrt() * (1 + joint) + torch.linalg.matrix_norm(cov[:, None] @ a, 2).max()


@pytest.mark.parametrize("seed", [11, 12])
def test_ascent_catches_the_rotary_bound_with_a_covariance(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    eye = torch.eye(2, dtype=torch.float64)[None]
    heads = Heads(
        normal(1, 2, 2),
        normal(1, 2, 2),
        eye,
        rotary=3 * torch.rand(1, generator=g, dtype=torch.float64),
        scale=1.0,
    )
    attention, start = Softmax(heads), 3 * normal(1, 2) + 0.3 * normal(2, 2)
    mu = Particles(start)
    x = ascend(
        lambda x: local_constant(attention, mu.at(x)) / covariance_bound(attention, x),
        start,
        None,
        steps=80,
    )
    assert local_constant(attention, mu.at(x)) > 1.2 * covariance_bound(attention, x)
    assert_holds(attention, mu.at(x))


def test_the_unmasked_mean_field_bound_is_false_under_a_mask(randn) -> None:
    """Without scores causal attention is the Cesàro matrix, whose norm tends to 2; M1 would say
    1.
    """
    attention = single(torch.zeros(1, 1, dtype=torch.float64), causal=True)
    mu = Particles(randn(60, 1))
    unmasked = on_ball(single(torch.zeros(1, 1, dtype=torch.float64)), 60, 1.0)
    assert (
        unmasked.named("M1").value
        < local_constant(attention, mu)
        <= on_ball(attention, 60, 1.0).named("K3").value
    )
    assert {"M1", "M1'"}.isdisjoint(bound.name for bound in smoothness(attention, mu))


@given(recipes(variants=(Softmax,)))
def test_sharper_bounds_are_sharper(recipe: Recipe) -> None:
    case = recipe.build()
    bounds = {bound.name: bound.value for bound in smoothness(case.attention, case.mu)}
    assert bounds["U1''-columns"] <= bounds["U1''"] * (1 + 1e-9)
    assert bounds["U1''"] <= bounds["U1'"] * (1 + 1e-9)
    assert bounds["U1'"] <= bounds["U1"]
    if "M1" in bounds:
        assert bounds["M1'"] <= bounds["M1"]
        assert bounds["U1''"] <= bounds["M1'"] * (1 + 1e-9)


@given(recipes(variants=(Softmax, L2)))
def test_block_bounds_hold_block_by_block(recipe: Recipe) -> None:
    case = recipe.build()
    at = At.of(case.attention, case.mu)
    truth = torch.linalg.matrix_norm(jacobian(case.attention, case.mu), 2)
    assert torch.allclose(exact_blocks(at), truth, rtol=1e-8, atol=1e-9)
    assert (triangle_blocks(at) >= truth - 1e-12).all()
    if isinstance(case.attention, Softmax) and case.attention.heads.rotary is None:
        for examples in ([], [case.mu]):
            layer = BlockNorms(case.attention, examples)
            assert (weighted(at, layer.blocks(at)) >= truth - 1e-12).all()
            assert layer(case.mu).value >= float(local_constant(case.attention, case.mu))


def test_small_factors_lose_little_and_a_dictionary_helps(randn) -> None:
    heads = Heads(randn(4, 3, 12), randn(4, 3, 12), randn(4, 3, 12), randn(4, 12, 3))
    attention, mu = Softmax(heads), Particles(0.3 * randn(8, 12))
    exact = smoothness(attention, mu).named("B1").value
    plain, trained = BlockNorms(attention)(mu).value, BlockNorms(attention, [mu])(mu).value
    assert exact <= trained < plain < 1.6 * exact
    assert smoothness(attention, mu, blocks=BlockNorms(attention, [mu])).named(
        "B1-S"
    ).value == pytest.approx(trained)


@pytest.mark.parametrize(("heads", "v", "d"), [(3, 4, 8), (4, 4, 8), (2, 5, 40), (12, 8, 96)])
def test_norms_of_head_mixtures_are_proved_closely_and_never_below(
    heads: int, v: int, d: int, randn
) -> None:
    """More and fewer columns than d, and a mixture that is nearly zero."""
    output, value, centres = randn(heads, d, v), randn(heads, v, d), randn(7, heads).abs()
    truth = torch.linalg.matrix_norm(torch.einsum("mh,hdv,hve->mde", centres, output, value), 2)
    found = mixture_norms(centres, output, value)
    assert (found >= truth).all()
    assert (found <= truth * (1 + 1e-3)).all()
    value[0] = 0
    first = torch.eye(heads, dtype=torch.float64)[:1]
    made = Mixtures.of(output, value).around(first + 1e-9, output, value)
    assert (made.norms <= 1e-6 * truth.max()).all()


@pytest.mark.parametrize("output", [True, False])
def test_the_query_path_is_proved_closely_and_never_below(output: bool, randn) -> None:
    heads = Heads(
        randn(3, 4, 6),
        randn(3, 4, 6),
        randn(3, 5 if output else 6, 6),
        randn(3, 6, 5) if output else None,
    )
    at = At.of(Softmax(heads), Particles(0.5 * randn(40, 6)))
    value, written = values(at), outputs(heads)
    truth = torch.stack(
        [torch.linalg.matrix_norm(query_block(at, value, written, row), 2) for row in range(40)]
    )
    found = QueryPath(heads, written).norms(at, value, torch.ones(40, dtype=torch.float64))
    assert (found >= truth).all()
    assert (found <= 1.2 * truth).all()


def test_blocks_can_be_chosen(randn) -> None:
    attention, mu = single(randn(2, 2)), Particles(randn(3, 2))
    assert not any(bound.name.startswith("B1") for bound in smoothness(attention, mu, blocks=False))
    one = attention.heads
    twice = Softmax(
        Heads.from_matrices(
            one.query.expand(2, -1, -1).contiguous(), one.value.expand(2, -1, -1).contiguous()
        )
    )
    rescaled = Softmax(Heads(one.query, one.key, one.value, scale=2.0))
    for other in (single(randn(2, 2)), twice, rescaled):
        with pytest.raises(ValueError, match="built for other heads"):
            smoothness(attention, mu, blocks=BlockNorms(other))


def test_the_constants_of_plain_heads_do_not_serve_rotary_ones(randn) -> None:
    """The same matrices, but a key path that depends on the key token."""
    plain = Softmax(Heads(randn(2, 2, 4), randn(2, 2, 4), randn(2, 3, 4), randn(2, 4, 3)))
    heads, mu = plain.heads, Particles(randn(5, 4))
    rotary = Softmax(Heads(heads.query, heads.key, heads.value, heads.output, rotary=randn(1)))
    with pytest.raises(ValueError, match="built for other heads"):
        smoothness(rotary, mu, blocks=BlockNorms(plain))
    moved = Softmax(
        Heads(heads.query, randn(2, 2, 4), heads.value, heads.output, position_bias=randn(2, 5, 5)),
        causal=True,
    )
    assert smoothness(moved, mu, blocks=BlockNorms(plain)).named("B1-S").value >= float(
        local_constant(moved, mu)
    )


@given(recipes(variants=(Softmax,)))
def test_the_constant_of_a_causal_prefix_is_not_larger(recipe: Recipe) -> None:
    case = recipe.build()
    attention, mu = Softmax(case.attention.heads, causal=True), Particles(case.mu.x)
    if mu.n > 1:
        prefix = Particles(case.mu.x[:-1])
        assert local_constant(attention, prefix) <= local_constant(attention, mu) * (1 + 1e-12)
        assert smoothness(attention, prefix).named("B1").value <= smoothness(attention, mu).named(
            "B1"
        ).value * (1 + 1e-6)


def test_duplicates_count_as_one_weighted_token(randn) -> None:
    """Bounds in the mean field do not see how mass is cut into tokens."""
    attention, x = single(0.3 * randn(2, 2)), randn(3, 2)
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    joined, split = Particles(x, weights), Particles(x[[0, 0, 1, 2]])
    for name in ("M1", "M1'", "U1''"):
        assert smoothness(attention, joined).named(name).value == pytest.approx(
            smoothness(attention, split).named(name).value, rel=1e-9
        )
    assert smoothness(attention, joined).named("U1").value == pytest.approx(
        smoothness(attention, split).named("U1").value, rel=1e-9
    )


def test_known_values() -> None:
    """A = V = identity, radius 1: a = v = 1 in every formula."""
    one = on_ball(single(torch.eye(2, dtype=torch.float64)), 4, 1.0)
    assert one.named("U1").value == pytest.approx(math.sqrt(3 * (4 * 4 + 1 + 4)))
    assert one.named("U1'").value == pytest.approx(2 * 2 + 1)
    assert one.named("M1").value == pytest.approx(3 * math.exp(2) + 1)
    assert one.named("M1'").value == pytest.approx(2 * math.e + 1)
    assert one.tightest.name == "U1'"
    assert on_ball(single(torch.eye(2, dtype=torch.float64), causal=True), 4, 1.0).named(
        "K3"
    ).value == pytest.approx(6 * math.exp(2) + 1)


def test_heads_combine_by_the_smaller_of_two_ways(randn) -> None:
    eye = torch.eye(2, dtype=torch.float64)
    same = Softmax(Heads.from_matrices(torch.stack([eye, eye]), torch.stack([eye, eye])))
    assert on_ball(same, 4, 1.0).named("U1'").value == pytest.approx(2 * 5)
    apart = torch.eye(4, dtype=torch.float64).reshape(4, 2, 2).permute(1, 0, 2)
    query = randn(1, 2, 4).expand(2, -1, -1).contiguous()
    concatenated = Softmax(
        Heads(query, query, randn(1, 2, 4).expand(2, -1, -1).contiguous(), apart.contiguous())
    )
    alone = Softmax(concatenated.heads.select(0))
    assert on_ball(concatenated, 3, 1.0).named("U1").value == pytest.approx(
        math.sqrt(2) * on_ball(alone, 3, 1.0).named("U1").value
    )


def test_global_bound_of_tied_l2_attention_does_not_see_the_radius(randn) -> None:
    query = randn(1, 2, 3)
    attention = L2(Heads(query, query, randn(1, 2, 2) @ query, randn(1, 3, 2)))
    near, far = (on_ball(attention, 5, radius).named("L2-global").value for radius in (0.1, 100.0))
    assert near == far < math.inf
    free = L2(Heads(query, query, randn(1, 2, 3), randn(1, 3, 2)))
    assert all(bound.name != "L2-global" for bound in on_ball(free, 5, 1.0))


def test_particles_without_mass_do_not_stand_in_for_equal_weights(randn) -> None:
    query = randn(1, 2, 3)
    attention = L2(Heads(query, query, query.clone(), randn(1, 3, 2)))
    for weights, covered in (([0.4, 0.6, 0.0], False), ([0.5, 0.5, 0.0], True)):
        names = {
            bound.name
            for bound in smoothness(
                attention, Particles(randn(3, 3), torch.tensor(weights, dtype=torch.float64))
            )
        }
        assert ("L2-global" in names) is covered


def test_one_token_of_tied_l2_attention_is_linear(randn) -> None:
    query = randn(1, 3, 3)
    attention = L2(Heads(query, query, query.clone(), scale=1.0))
    truth = float(local_constant(attention, Particles(randn(1, 3))))
    assert truth <= on_ball(attention, 1, 1.0).named("L2-global").value == pytest.approx(truth)


def test_norms_are_never_too_small(randn) -> None:
    left, right = randn(5, 7, 3), randn(5, 3, 6)
    truth = torch.linalg.matrix_norm(left @ right, 2)
    assert torch.allclose(spectral_of_product(left, right), truth, rtol=1e-9)
    assert (schatten16(left @ right) >= truth).all()
    assert (schatten16(left @ right) <= 3 ** (1 / 16) * truth * (1 + 1e-9)).all()
    gram = left @ left.mT
    assert torch.allclose(largest_eigenvalue(gram), torch.linalg.matrix_norm(left, 2) ** 2)
    for matrix in (
        randn(6, 6).abs(),
        randn(6, 6).abs().tril(),
        torch.zeros(3, 3, dtype=torch.float64),
    ):
        assert positive_norm(matrix, PERRON_STEPS) >= torch.linalg.matrix_norm(matrix, 2)
    positive = randn(6, 6).abs()
    assert float(positive_norm(positive, PERRON_STEPS)) == pytest.approx(
        float(torch.linalg.matrix_norm(positive, 2)), rel=1e-6
    )


def test_float32_input_is_bounded_in_float64(randn) -> None:
    attention, mu = single(randn(3, 3)), Particles(randn(4, 3))
    low = smoothness(attention.to(torch.float32), mu.to(torch.float32))
    for bound, exact in zip(low, smoothness(attention, mu), strict=True):
        assert bound.value == pytest.approx(exact.value, rel=1e-4)
