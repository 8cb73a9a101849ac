"""The search for worst inputs: it climbs, stays in the ball, reaches what the theorems promise and
never exceeds what they forbid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope import L2, Attention, Heads, Linear, Particles, Sigmoid, Softmax, attacks
from attnscope.attacks._ascent import inside
from attnscope.attacks._choice import fewer
from attnscope.attacks._gain import masses, slopes, top_pairs
from attnscope.attacks._reduce import reduced
from attnscope.attacks._starts import counts, neighbours
from attnscope.bounds import constructions, on_ball

Draw = Callable[..., Tensor]


def local_constant(attention: Attention, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """By a dense decomposition of the Jacobian that forward differentiation gives."""
    mu = Particles(x, weights)
    dense = torch.func.jacfwd(lambda x: attention.dense(x, mu.at(x)))(x)
    root = mu.weights.sqrt()
    dense = dense * root[:, None, None, None] / root[None, None, :, None]
    return torch.linalg.matrix_norm(dense.reshape(x.numel(), x.numel()), 2)


def single(a: Tensor, causal: bool = False) -> Softmax:
    return Softmax(Heads.from_matrices(a, torch.eye(len(a), dtype=a.dtype)), causal=causal)


def some_heads(randn: Draw, d: int = 3) -> Heads:
    return Heads(
        randn(2, 2, d),
        randn(2, 2, d),
        randn(2, 2, d),
        randn(2, d, 2),
        randn(2, 2),
        randn(2, 2),
        randn(2, 2),
        randn(d),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", [Softmax, L2, Sigmoid])
def test_the_gradient_is_that_of_the_largest_singular_value(
    variant: type[Attention], causal: bool, randn: Draw
) -> None:
    attention = variant(some_heads(randn), causal=causal)
    x, log_weights = randn(2, 4, 3), torch.log_softmax(randn(2, 4), dim=-1)
    pair = top_pairs(attention, Particles(x, masses(log_weights)), randn(2, 4, 3), 12)
    tokens, mass = slopes(attention, x, log_weights, pair)
    assert mass is not None
    way, tilt, h = randn(2, 4, 3), randn(2, 4), 1e-5
    for b in range(2):

        def at(t: float, b: int = b) -> float:
            return float(
                local_constant(
                    attention,
                    x[b] + t * way[b],
                    torch.softmax(log_weights[b] + t * tilt[b], dim=-1),
                )
            )

        assert float(pair.value[b]) == pytest.approx(at(0), rel=1e-10)
        slope = float((tokens[b] * way[b]).sum() + (mass[b] * tilt[b]).sum())
        assert slope == pytest.approx((at(h) - at(-h)) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("radius", [1.0, 1.75, 2.5])
def test_random_starts_alone_reach_the_best_two_diracs_and_nothing_exceeds_the_bound(
    radius: float,
) -> None:
    attention = single(torch.diag(torch.tensor([-1.0, 0.5], dtype=torch.float64)))
    family = max(
        constructions.unbalanced(attention, radius, t).bound.value
        for t in torch.logspace(-2, 3, 200).tolist()
    )
    found = attacks.worst_case(attention, 2, radius, weighted=True, starts=16, steps=60)
    bound = found.bound
    assert bound is not None
    assert bound.name == "M1'"
    ends = dict(zip(found.names, found.history[-1].tolist(), strict=True))
    assert max(value for name, value in ends.items() if name.startswith("random")) >= 0.97 * family
    assert family <= found.value <= bound.value
    assert found.ratio == pytest.approx(found.value / bound.value)
    rare = float(found.weights.min())
    assert rare < math.exp(-(radius**2))  # few and unbalanced Diracs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_found_is_true_of_the_point_itself(
    causal: bool, weighted: bool, randn: Draw
) -> None:
    attention = Softmax(some_heads(randn))
    found = attacks.worst_case(attention, 4, 1.2, weighted, causal=causal, starts=8, steps=25)
    masked = Softmax(attention.heads, causal=causal)
    assert found.value == pytest.approx(
        float(local_constant(masked, found.tokens, found.weights)), rel=1e-9
    )
    assert float(torch.linalg.vector_norm(found.tokens, dim=-1).max()) <= 1.2
    assert float(found.weights.sum()) == pytest.approx(1)
    assert weighted or torch.equal(found.weights, torch.full((4,), 0.25, dtype=torch.float64))
    assert (found.history.diff(dim=0) >= 0).all()
    assert found.history.shape[1] == len(found.names) == 8
    assert found.value >= float(found.history.max()) * (1 - 1e-9)
    bounds = {bound.name: bound.value for bound in on_ball(masked, 4, 1.2)}
    allowed = {"K3"} if weighted and causal else {"M1", "M1'"} if weighted else set(bounds)
    assert found.bound is not None
    assert found.bound.name in allowed
    assert all(found.value <= bounds[name] for name in allowed)


def test_the_constructions_are_among_the_starts(randn: Draw) -> None:
    a = randn(3, 3)
    built = {"U2": constructions.opposite, "U2'": constructions.oblique}
    found = attacks.worst_case(single(a), 6, 1.5, starts=8, steps=1)
    began = dict(zip(found.names, found.history[0].tolist(), strict=True))
    for name, construction in built.items():
        assert began[name] >= construction(single(a), 6, 1.5).bound.value
    assert "U2''" in began
    masked = attacks.worst_case(single(a), 6, 1.5, causal=True, starts=8, steps=1)
    began = dict(zip(masked.names, masked.history[0].tolist(), strict=True))
    assert began["K2"] >= constructions.rare_first(single(a, causal=True), 6, 1.5).bound.value
    assert began["K2"] == pytest.approx(
        float(
            local_constant(single(a, causal=True), constructions.opposite(single(a), 6, 1.5).mu.x)
        ),
        rel=1e-6,
    )


def plateau(n: int) -> float:
    r"""The best two clusters in d = 1, A = -1, R = 1 over every number of rare tokens, from the
    Jacobian $P_{ij}(1 - (x_j - m_i)x_i) - \delta_{ij}\mathrm{Var}_i$ of all n tokens.
    """
    best = 0.0
    for rare in range(1, n):
        x = torch.ones(n, dtype=torch.float64)
        x[:rare] = -1
        p = torch.softmax(-torch.outer(x, x), dim=1)
        mean = p @ x
        spread = p @ x**2 - mean**2
        dense = p * (1 - (x[None, :] - mean[:, None]) * x[:, None]) - torch.diag(spread)
        best = max(best, float(torch.linalg.matrix_norm(dense, 2)))
    return best


@pytest.mark.parametrize("n", [5, 32, 50])
def test_the_search_has_the_right_number_of_rare_tokens(n: int) -> None:
    """One rare token among 32 gives 2.81, two give 3.06; the mean-field plateau is at 3.07."""
    found = attacks.worst_case(
        single(-torch.eye(1, dtype=torch.float64)), n, 1.0, starts=8, steps=3
    )
    assert found.value >= plateau(n) * (1 - 1e-9)


@pytest.mark.parametrize("rotary", [False, True])
def test_numbers_of_rare_tokens_are_tried_under_a_mask_too(rotary: bool, randn: Draw) -> None:
    eye = torch.eye(2, dtype=torch.float64)[None]
    turns = torch.ones(1, dtype=torch.float64) if rotary else None
    heads = Heads(-eye, eye, randn(1, 2, 2), scale=1.0, rotary=turns)
    found = attacks.worst_case(Softmax(heads, causal=True), 12, 1.0, starts=8, steps=1)
    assert any(name.endswith(" rare") for name in found.names)
    assert found.value == pytest.approx(
        float(local_constant(Softmax(heads, causal=True), found.tokens)), rel=1e-9
    )


def test_numbers_of_tokens_are_tried_from_either_end() -> None:
    for n in (2, 3, 10, 97, 1000):
        grid = counts(n)
        assert grid[0] == 1
        assert grid[-1] == n - 1
        assert all(n - k in grid for k in grid)
        assert len(grid) <= 4 + 2 * math.log(n) / math.log(1.4)
        steps = [(a, b) for a, b in itertools.pairwise(grid) if b <= n / 2]
        assert all(b <= max(1.6 * a, a + 1) for a, b in steps)
    assert neighbours(4, [1, 4, 8, 9]) == [2, 3, 5, 6, 7]
    assert neighbours(9, [1, 4, 8, 9]) == []


@pytest.mark.parametrize("causal", [False, True])
def test_more_tokens_are_searched_from_fewer(causal: bool, randn: Draw) -> None:
    """Copies of all tokens, or more tokens behind a mask: the constant is no smaller, so that the
    search of 32 begins where a search of 8 ended.
    """
    attention = single(randn(2, 2), causal=causal)
    assert fewer(attention, 32) == 8
    assert fewer(attention, 33) == (8 if causal else 3)
    assert fewer(attention, 31) == (7 if causal else 1)
    found = attacks.worst_case(attention, 32, 1.0, starts=8, steps=16)
    began = dict(zip(found.names, found.history[0].tolist(), strict=True))
    short = attacks.worst_case(attention, 8, 1.0, starts=4, steps=1)
    assert began["the best of 8 tokens"] >= 0.9 * short.value
    x = dict(zip(found.names, found.history[-1].tolist(), strict=True))
    assert x["the best of 8 tokens"] >= began["the best of 8 tokens"]


def test_attention_that_reads_all_tokens_alike_has_the_constant_of_its_values(randn: Draw) -> None:
    v = randn(3, 3)
    attention = Softmax(Heads.from_matrices(torch.zeros(3, 3, dtype=v.dtype), v))
    for weighted in (False, True):
        found = attacks.worst_case(attention, 5, 2.0, weighted=weighted, starts=4, steps=5)
        assert found.value == pytest.approx(float(torch.linalg.matrix_norm(v, 2)), rel=1e-9)
    alone = attacks.worst_case(single(randn(3, 3)), 1, 2.0, starts=2, steps=3)
    assert alone.value == pytest.approx(1.0)


def test_one_head_of_a_wide_model_is_searched_on_what_it_reads(randn: Draw) -> None:
    heads = Heads(
        randn(1, 2, 9), randn(1, 2, 9), randn(1, 2, 9), randn(1, 9, 2), query_bias=randn(1, 2)
    )
    small, basis = reduced(Softmax(heads, causal=True))
    assert basis is not None
    assert small.heads.dim == 6
    z = randn(4, 6)
    whole, part = (
        torch.func.jacrev(lambda x, att=att: att.dense(x, Particles(x)))(x)
        for att, x in ((Softmax(heads, causal=True), z @ basis.mT), (small, z))
    )
    values = torch.linalg.svdvals(whole.reshape(36, 36))
    torch.testing.assert_close(values[:24], torch.linalg.svdvals(part.reshape(24, 24)))
    assert float(values[24:].max()) < 1e-12
    found = attacks.worst_case(Softmax(heads), 4, 1.0, starts=6, steps=20)
    assert found.tokens.shape == (4, 9)
    assert found.value == pytest.approx(
        float(local_constant(Softmax(heads), found.tokens)), rel=1e-9
    )


def test_a_variant_without_theorems_is_searched_too(randn: Draw) -> None:
    found = attacks.worst_case(
        Linear(Heads.from_matrices(randn(2, 2), randn(2, 2))), 3, 1.0, starts=4, steps=10
    )
    assert found.bound is None
    assert found.ratio is None
    assert "no upper bound" in str(found)


def test_a_search_repeats_itself_and_can_be_stopped(randn: Draw) -> None:
    attention = single(randn(2, 2))
    first, second, other = (
        attacks.worst_case(attention, 3, 1.0, starts=6, steps=8, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first.tokens, second.tokens)
    assert not torch.equal(first.history, other.history)
    seen: list[float] = []

    def twice(fraction: float, value: float) -> bool:
        seen.append(fraction)
        return len(seen) < 2

    stopped = attacks.worst_case(attention, 3, 1.0, starts=6, steps=8, seed=1, progress=twice)
    assert seen == [1 / 8, 2 / 8]
    assert torch.equal(stopped.history, first.history[:3])


def test_the_papers_inputs_come_from_one_head(randn: Draw) -> None:
    heads = some_heads(randn)
    mu = attacks.adversarial(Softmax(heads), 1, 5, 2.0)
    assert float(mu.radius()) == pytest.approx(2.0)
    a = heads.a[1]
    u = mu.x[1] / torch.linalg.vector_norm(mu.x[1])
    torch.testing.assert_close(a @ u, (u @ a @ u) * u)
    plain = single(randn(3, 3))
    expected = constructions.opposite(plain, 5, 2.0).mu.x
    torch.testing.assert_close(attacks.adversarial(plain, 0, 5, 2.0).x, expected)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(
        attacks.adversarial(single(turn), 0, 5, 2.0).x,
        constructions.oblique(single(turn), 5, 2.0).mu.x,
    )


def test_inside_is_the_nearest_point_of_the_ball(randn: Draw) -> None:
    x = 3 * randn(50, 4)
    kept = torch.linalg.vector_norm(x, dim=-1) <= 2
    near = inside(x, 2.0)
    assert torch.equal(near[kept], x[kept])
    assert (torch.linalg.vector_norm(near, dim=-1) <= 2).all()
    torch.testing.assert_close(
        torch.nn.functional.cosine_similarity(near, x), torch.ones(50, dtype=x.dtype)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, "radius must be a finite number above 0"),
        ({"radius": -1.0}, "radius must be a finite number above 0"),
        ({"radius": math.inf}, "radius must be a finite number above 0"),
        ({"n": 0}, "n must be a whole number of at least 1"),
        ({"n": 1, "weighted": True}, "n must be a whole number of at least 2 when masses are free"),
        ({"n": 2.0}, "n must be a whole number"),
        ({"starts": 0}, "starts must be a whole number"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"n": 5000}, "Use fewer tokens"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_search_that_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    attention = single(torch.eye(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=message):
        attacks.worst_case(**{"attention": attention, "n": 3, "radius": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_papers_inputs_that_do_not_exist_are_refused() -> None:
    attention = single(torch.eye(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="needs an attention"):
        attacks.worst_case("softmax", 3, 1.0)  # type: ignore[arg-type]
    for head, n, radius, message in (
        (1, 3, 1.0, "head must be"),
        (0, 1, 1.0, "at least 2"),
        (0, 3, 0.0, "radius"),
    ):
        with pytest.raises(ValueError, match=message):
            attacks.adversarial(attention, head, n, radius)
