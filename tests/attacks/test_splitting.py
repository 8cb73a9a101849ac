"""Mass splitting: the law is the dense Jacobian of the split input, and finite attacks at equal
budgets tend to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope import Attention, Gaussian, Heads, Particles, Softmax, attacks, variants, wasserstein

Draw = Callable[..., Tensor]


def local_constant(attention: Attention, mu: Particles) -> float:
    dense = torch.func.jacrev(lambda x: attention.dense(x, mu.at(x)))(mu.x)
    root = mu.weights.sqrt()
    dense = dense * root[:, None, None, None] / root[None, None, :, None]
    return float(torch.linalg.matrix_norm(dense.reshape(mu.x.numel(), mu.x.numel()), 2))


def problem(
    name: str, seed: int, causal: bool = False, heads: int = 2, n: int = 4, d: int = 3
) -> tuple[Attention, Particles, torch.Generator]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    parts = (normal(heads, 2, d), normal(heads, 2, d), normal(heads, 2, d), normal(heads, d, 2))
    biases = (normal(heads, 2), normal(heads, 2), normal(heads, 2), normal(d))
    weights = torch.rand(n, generator=g, dtype=torch.float64) + 0.05
    return (
        variants()[name](Heads(*parts, *biases), causal=causal),
        Particles((0.4 if name == "sinkhorn" else 1.0) * normal(n, d), weights / weights.sum()),
        g,
    )


def divided(mu: Particles, copies: int, generator: torch.Generator) -> Particles:
    """Every token in copies of random mass that share its position."""
    fractions = torch.rand(mu.n, copies, generator=generator, dtype=torch.float64) + 0.05
    masses = mu.weights[:, None] * fractions / fractions.sum(-1, keepdim=True)
    return Particles(
        mu.x.repeat_interleave(copies, 0),
        masses.flatten() / masses.sum(),
        mu.places().repeat_interleave(copies),
    )


@pytest.mark.parametrize(
    ("name", "causal"),
    [
        (name, causal)
        for name in variants()
        for causal in (False, True)
        if (name, causal) != ("sinkhorn", True)
    ],
)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), copies=st.integers(2, 3))
def test_the_law_is_the_jacobian_of_the_split_input(
    name: str, causal: bool, seed: int, copies: int
) -> None:
    attention, mu, generator = problem(name, seed, causal)
    law = attacks.split(attention, mu)
    assert law.move == pytest.approx(local_constant(attention, mu), rel=1e-9)
    assert law.constant == pytest.approx(
        local_constant(attention, divided(mu, copies, generator)), rel=1e-9
    )
    assert law.gain == pytest.approx(max(1.0, law.split / law.move))
    assert law.pays == (law.split > law.move)


def test_copies_apart_act_through_the_covariance_of_what_a_token_reads(randn: Draw) -> None:
    a, v = randn(3, 3), randn(3, 3)
    attention, mu = (
        Softmax(Heads.from_matrices(a, v)),
        Particles(randn(5, 3), torch.softmax(randn(5), -1)),
    )
    p = torch.softmax(mu.x @ a.mT @ mu.x.mT + mu.weights.log(), dim=-1)
    centred = mu.x - (p @ mu.x)[:, None]
    cov = torch.einsum("ij,ijd,ije->ide", p, centred, centred)
    law = attacks.split(attention, mu)
    norms = torch.linalg.matrix_norm(v @ cov @ a, 2)
    torch.testing.assert_close(law.apart, norms)
    assert law.token == int(norms.argmax())
    torch.testing.assert_close(
        torch.linalg.vector_norm(v @ cov[law.token] @ a @ law.direction), norms.max()
    )


def test_heads_that_read_token_numbers_obey_the_law_when_copies_share_a_number(randn: Draw) -> None:
    """Rotary embedding, position bias and a mask, written out for copies that stand at the same
    place.
    """
    n, d, k = 4, 3, 2
    heads = Heads(
        randn(2, k, d),
        randn(2, k, d),
        randn(2, d, d),
        None,
        randn(2, k),
        randn(2, k),
        rotary=randn(1),
        position_bias=randn(2, n, n),
    )
    number = torch.arange(n).repeat_interleave(2)

    def written(x: Tensor) -> Tensor:
        q, key = heads.queries(x, number), heads.keys(x, number)
        assert heads.position_bias is not None
        scores = heads.scale * q @ key.mT + heads.position_bias[:, number[:, None], number]
        scores = scores.masked_fill(number[None, :] > number[:, None], -math.inf)
        return heads.write(torch.softmax(scores, dim=-1) @ heads.read(x))

    x = randn(n, d)
    dense = torch.func.jacrev(written)(x.repeat_interleave(2, 0)).reshape(2 * n * d, 2 * n * d)
    law = attacks.split(Softmax(heads, causal=True), Particles(x))
    assert law.constant == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-9)
    with pytest.raises(ValueError, match="two halves of a token cannot share"):
        attacks.compare(Softmax(heads, causal=True), Particles(x), 0.1)


def test_copies_written_one_after_the_other_under_a_mask_do_not_obey_the_law(randn: Draw) -> None:
    attention = Softmax(
        Heads.from_matrices(
            torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        ),
        causal=True,
    )
    twice = Particles(randn(1, 1).repeat_interleave(2, 0))
    assert local_constant(attention, twice) == pytest.approx(math.sqrt((3 + math.sqrt(5)) / 4))


def paying() -> tuple[Attention, Particles]:
    """Two far tokens and one between them that prefers neither, scores minus the inner product:
    splitting it pays.
    """
    x = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    a = -torch.eye(2, dtype=torch.float64)
    return Softmax(Heads.from_matrices(a, torch.eye(2, dtype=torch.float64))), Particles(
        x, torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    )


def test_splitting_can_pay() -> None:
    attention, mu = paying()
    law = attacks.split(attention, mu)
    assert law.pays
    assert law.token == 2
    assert law.split == pytest.approx(9 * 0.5)  # the variance that token reads
    assert law.gain > 1.05
    found = attacks.compare(attention, mu, [1e-3])
    assert found.split[0].ratio > found.move[0].ratio


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["softmax", "l2", "sigmoid"])
def test_finite_attacks_at_equal_budgets_tend_to_the_law(name: str, causal: bool) -> None:
    attention, mu, _ = problem(name, 5, causal)
    budgets = [4e-3, 2e-3, 1e-3]
    found = attacks.compare(attention, mu, budgets)
    for attempts, limit in ((found.move, found.law.move), (found.split, found.law.split)):
        assert [attack.eps for attack in attempts] == budgets
        assert [attack.spent for attack in attempts] == pytest.approx(budgets, rel=1e-6)
        errors = [abs(attack.ratio / limit - 1) for attack in attempts]
        assert errors[-1] < 2e-2
        assert errors[2] < 0.7 * errors[1] or errors[2] < 1e-5
        assert errors[1] < 0.7 * errors[0] or errors[1] < 1e-5


def test_all_of_the_budget_is_spent_at_uniform_weights_too(randn: Draw) -> None:
    heads = Heads.from_matrices(randn(3, 3), randn(3, 3))
    found = attacks.compare(variants()["softmax"](heads), Particles(randn(5, 3)), 1e-3)
    assert found.move[0].spent == pytest.approx(1e-3, rel=1e-6)
    assert found.split[0].spent == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize("eps", [5e-324, 1e-12])
def test_a_budget_below_rounding_is_refused(randn: Draw, eps: float) -> None:
    heads = Heads.from_matrices(randn(3, 3), randn(3, 3))
    with pytest.raises(ValueError, match="lost in the rounding of these tokens: use at least"):
        attacks.compare(variants()["softmax"](heads), Particles(randn(5, 3)), eps)


def test_under_a_mask_tokens_are_compared_with_those_of_their_own_position() -> None:
    attention, mu, _ = problem("softmax", 5, causal=True)
    found = attacks.compare(attention, mu, 5.0)
    nu = mu.at(mu.x + 5.0 * found.law.motion)
    change = torch.linalg.vector_norm(attention.push(nu).x - attention.push(mu).x, dim=-1)
    assert found.move[0].spent == pytest.approx(5.0)
    assert found.move[0].moved == pytest.approx(float((mu.weights * change**2).sum().sqrt()))
    assert wasserstein(mu, nu) < 4.99  # without positions tokens may take the place of others


def test_the_finite_attack_on_a_line_is_what_it_says() -> None:
    """Linear attention in one dimension: outputs are the moment times the token, whatever the size
    of the attack.
    """
    x = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
    attention = variants()["linear"](
        Heads.from_matrices(torch.ones(1, 1, dtype=x.dtype), torch.ones(1, 1, dtype=x.dtype))
    )
    found = attacks.compare(attention, Particles(x), 0.3)
    moment = 2.5 + 0.09  # halves at +-0.3 sqrt(2) around one token add half of 0.18
    assert found.law.split == pytest.approx(2.5)
    before, after = (
        2.5 * x[:, 0],
        torch.tensor([2 + 0.3 * math.sqrt(2), 2 - 0.3 * math.sqrt(2), -1], dtype=x.dtype),
    )
    if found.law.token == 1:
        after = torch.tensor([-1 + 0.3 * math.sqrt(2), -1 - 0.3 * math.sqrt(2), 2], dtype=x.dtype)
    after = moment * after
    own, other = before[found.law.token], before[1 - found.law.token]
    expected = (after[:2] - own).square().sum() / 4 + (after[2] - other).square() / 2
    assert found.split[0].moved == pytest.approx(float(expected) ** 0.5, rel=1e-9)
    assert found.split[0].spent == pytest.approx(0.3)


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_split_is_refused(randn: Draw) -> None:
    attention, mu = paying()
    with pytest.raises(ValueError, match="at least 2 tokens"):
        attacks.split(attention, Particles(randn(1, 2)))
    with pytest.raises(ValueError, match="no empty axis"):
        attacks.split(attention, Particles(torch.zeros(0, 2, dtype=torch.float64)))
    with pytest.raises(ValueError, match="one measure"):
        attacks.split(attention, Particles(randn(2, 3, 2)))
    with pytest.raises(ValueError, match="drop the particles"):
        attacks.split(
            attention, Particles(randn(2, 2), torch.tensor([1.0, 0.0], dtype=torch.float64))
        )
    with pytest.raises(TypeError, match="needs a Particles"):
        attacks.split(attention, Gaussian(randn(2), torch.eye(2, dtype=torch.float64)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs an attention"):
        attacks.compare("softmax", mu, 0.1)  # type: ignore[arg-type]
    for eps in (0.0, -1.0, [], [0.1, math.nan]):
        with pytest.raises(ValueError, match="eps must be"):
            attacks.compare(attention, mu, eps)
