"""Bounds say what they are; doors say what they want; every name has its theorem."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from bound_cases import local_constant, single

from attnscope import (
    L2,
    Exponential,
    Gaussian,
    Heads,
    Linear,
    Particles,
    Sigmoid,
    Softmax,
)
from attnscope.bounds import (
    BlockNorms,
    Bound,
    Bounds,
    constructions,
    large_radius_limit,
    layer_norm_radius,
    on_ball,
    rms_norm_radius,
    smoothness,
)

THEOREMS = Path(__file__).parents[2] / "docs" / "theorems.md"


def test_a_bound_reads_as_a_sentence() -> None:
    bound = Bound(
        1.5, "upper", "proved", "U1", "castin24, Thm 3.3", "tokens in the ball of radius 1"
    )
    assert str(bound) == "U1: <= 1.5 (proved; castin24, Thm 3.3; tokens in the ball of radius 1)"
    assert str(Bound(2, "lower", "estimate", "x", "y", "z")).startswith("x: >= 2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": math.nan}, "value"),
        ({"value": -1.0}, "value"),
        ({"side": "above"}, "side"),
        ({"kind": "certain"}, "kind"),
        ({"name": ""}, "name"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_bound_refuses_what_it_cannot_mean(change: dict[str, object], message: str) -> None:
    fields = {
        "value": 1.0,
        "side": "upper",
        "kind": "proved",
        "name": "n",
        "source": "s",
        "assumes": "a",
    } | change
    with pytest.raises(ValueError, match=message):
        Bound(**fields)  # type: ignore[arg-type]


def test_the_tightest_is_the_smallest_proved_upper_bound() -> None:
    def bound(value: float, side: str, kind: str) -> Bound:
        return Bound(value, side, kind, f"{side} {value}", "s", "a")  # type: ignore[arg-type]

    several = Bounds(
        [
            bound(3.0, "upper", "proved"),
            bound(2.0, "upper", "proved"),
            bound(1.0, "upper", "probable"),
            bound(0.5, "lower", "proved"),
        ]
    )
    assert several.tightest.value == 2.0
    with pytest.raises(ValueError, match="no proved upper bound"):
        _ = Bounds([bound(1.0, "upper", "estimate")]).tightest
    with pytest.raises(KeyError, match="upper 3"):
        several.named("U9")


def test_every_name_has_a_heading_among_the_theorems(randn) -> None:
    headings = set(
        re.findall(r"^### (.+)", THEOREMS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    query = randn(1, 2, 2)
    wide = Heads(randn(2, 2, 40), randn(2, 2, 40), randn(2, 2, 40), randn(2, 40, 2))
    rotary = Heads(
        randn(2, 2, 40), randn(2, 2, 40), randn(2, 2, 40), randn(2, 40, 2), rotary=randn(1)
    )
    mu, far = Particles(randn(3, 2)), Particles(randn(80, 40))
    produced = [
        *smoothness(single(randn(2, 2)), mu),
        *smoothness(single(randn(2, 2), causal=True), mu),
        *smoothness(L2(Heads(query, query, query.clone())), mu),
        *smoothness(Sigmoid(Heads.from_matrices(randn(2, 2), randn(2, 2))), mu),
        *smoothness(Softmax(wide), far),
        *smoothness(Softmax(rotary), far),
        constructions.opposite(single(-torch.eye(2, dtype=torch.float64)), 3, 1.0).bound,
        constructions.oblique(single(randn(2, 2)), 3, 1.0).bound,
        constructions.two_clusters(single(randn(2, 2)), 3, randn(2), randn(2)).bound,
        constructions.unbalanced(single(-torch.eye(2, dtype=torch.float64)), 1.0).bound,
        constructions.rare_first(
            single(-torch.eye(2, dtype=torch.float64), causal=True), 3, 1.0
        ).bound,
    ]
    names = {bound.name for bound in produced}
    assert {
        "U1",
        "U1'",
        "U1''",
        "M1",
        "M1'",
        "K3",
        "B1",
        "B1-S",
        "B1-T",
        "L2-global",
        "L2-local",
        "S1",
        "U2",
        "K2",
        "M2",
    } <= names
    assert names <= headings


@pytest.mark.parametrize("variant", [Exponential, Linear])
def test_variants_without_a_theorem_are_refused_by_name(variant, randn) -> None:
    attention = variant(Heads.from_matrices(randn(2, 2), randn(2, 2)))
    with pytest.raises(ValueError, match=f"{attention.name} attention. There are theorems for l2"):
        smoothness(attention, Particles(randn(3, 2)))
    with pytest.raises(ValueError, match=attention.name):
        on_ball(attention, 3, 1.0)


@pytest.mark.usefixtures("unchecked")
def test_doors_refuse_what_does_not_fit(randn) -> None:
    attention = single(randn(2, 2))
    with pytest.raises(ValueError, match="one measure"):
        smoothness(attention, Particles(randn(4, 3, 2)))
    with pytest.raises(TypeError, match="Particles"):
        smoothness(attention, Gaussian(randn(2), torch.eye(2, dtype=torch.float64)))
    with pytest.raises(TypeError, match="attention"):
        smoothness(attention.heads, Particles(randn(3, 2)))
    with pytest.raises(ValueError, match="dimension of the heads"):
        smoothness(attention, Particles(randn(3, 5)))
    with pytest.raises(ValueError, match="n must be"):
        on_ball(attention, 0, 1.0)
    with pytest.raises(ValueError, match="radius"):
        on_ball(attention, 2, -1.0)
    with pytest.raises(ValueError, match="rotary"):
        smoothness(
            L2(Heads(randn(1, 2, 2), randn(1, 2, 2), randn(1, 2, 2), rotary=randn(1))),
            Particles(randn(3, 2)),
        )
    with pytest.raises(ValueError, match="heads with rotary"):
        BlockNorms(Softmax(Heads(randn(1, 2, 2), randn(1, 2, 2), randn(1, 2, 2), rotary=randn(1))))
    with pytest.raises(TypeError, match="Softmax"):
        BlockNorms(L2(attention.heads))


def test_overflow_is_an_infinite_bound_and_not_an_error(randn) -> None:
    bounds = smoothness(single(100 * randn(2, 2)), Particles(10 * randn(3, 2)))
    assert bounds.named("M1").value == math.inf
    assert bounds.tightest.value < math.inf


@pytest.mark.parametrize("causal", [False, True])
def test_the_local_constant_tends_to_the_large_radius_limit(causal: bool, randn) -> None:
    attention = single(randn(3, 3), randn(3, 3), causal=causal)
    mu = Particles(randn(6, 3), torch.softmax(randn(6), 0))
    limit = large_radius_limit(attention, mu)
    scale = math.sqrt(60 / limit.gap)
    assert float(local_constant(attention, mu.at(scale * mu.x))) == pytest.approx(
        limit.value, rel=1e-6
    )
    assert "limit" in str(limit)


@pytest.mark.parametrize("extra", ["rotary", "biases"])
def test_the_large_radius_limit_with_rotary_heads_and_biases(extra: str, randn) -> None:
    given = (
        {"rotary": randn(1)}
        if extra == "rotary"
        else {"query_bias": randn(1, 2), "key_bias": randn(1, 2), "value_bias": randn(1, 3)}
    )
    for _ in range(3):
        attention = Softmax(Heads(randn(1, 2, 3), randn(1, 2, 3), randn(1, 3, 3), **given))
        mu = Particles(randn(5, 3))
        limit = large_radius_limit(attention, mu)
        scale = math.sqrt(1000 / limit.gap)
        assert float(local_constant(attention, mu.at(scale * mu.x))) == pytest.approx(
            limit.value, rel=1e-6
        )


def test_the_large_radius_limit_divides_by_the_weight_of_the_token_that_is_read() -> None:
    """Two tokens on an axis each: most of the mass reads a token of mass 0.5, the rest reads one of
    mass 0.01.
    """
    x = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
    mu = Particles(x, torch.tensor([0.5, 0.2, 0.01, 0.29], dtype=torch.float64))
    attention = single(torch.eye(2, dtype=torch.float64))
    limit = large_radius_limit(attention, mu)
    assert limit.value == pytest.approx(math.sqrt(0.3 / 0.01))
    assert float(local_constant(attention, mu.at(5 * x))) == pytest.approx(limit.value, rel=1e-6)
    assert limit.most_read == 2


@pytest.mark.parametrize("causal", [False, True])
def test_tokens_without_mass_are_not_read_in_the_large_radius_limit(causal: bool, randn) -> None:
    attention, x = single(torch.eye(2, dtype=torch.float64), causal=causal), randn(4, 2).abs()
    alone = large_radius_limit(attention, Particles(x))
    beside = torch.cat([x[:1], 10 * x.sum(0, keepdim=True), x[1:]])
    found = large_radius_limit(
        attention,
        Particles(beside, torch.tensor([0.25, 0.0, 0.25, 0.25, 0.25], dtype=torch.float64)),
    )
    assert (found.value, found.gap) == (alone.value, alone.gap)
    assert torch.equal(beside[found.most_read], x[alone.most_read])


def test_the_large_radius_limit_needs_one_head_and_no_tie(randn) -> None:
    with pytest.raises(ValueError, match="one head"):
        large_radius_limit(
            Softmax(Heads.from_matrices(randn(2, 2, 2), randn(2, 2, 2))), Particles(randn(3, 2))
        )
    with pytest.raises(ValueError, match="no unique best key"):
        large_radius_limit(single(randn(2, 2)), Particles(randn(1, 2).expand(3, 2).contiguous()))


def test_norm_layers_keep_their_tokens_in_the_ball(randn) -> None:
    gain, bias, x = randn(8), randn(8), 10 * randn(200, 8)
    x[0] = gain.abs().argmax() == torch.arange(8)
    normed = torch.nn.functional.layer_norm(x, (8,), gain, bias)
    assert float(torch.linalg.vector_norm(normed, dim=-1).max()) <= layer_norm_radius(gain, bias)
    rms = gain * x / x.square().mean(-1, keepdim=True).sqrt()
    assert float(torch.linalg.vector_norm(rms, dim=-1).max()) == pytest.approx(
        rms_norm_radius(gain)
    )
    assert layer_norm_radius(gain) == rms_norm_radius(gain)
