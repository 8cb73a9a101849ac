"""How far the output moves: no attack exceeds a bound, bounds are exact where they must be, stacks
equal loops, bad input is refused.
"""

from __future__ import annotations

import pytest
import torch
from sensitivity_cases import Case, Layer, climb, largest_move, random_case
from torch import Tensor

from attnscope import L2, Exponential, Heads, Linear, Particles, Sigmoid, Sinkhorn, Softmax, bounds

VARIANTS = (Softmax, L2, Sigmoid)
ROUNDING = 1e-9
"""Movements below this share of the size of the tokens are rounding of the attack itself."""


def exceeded(case: Case, found: bounds.Sensitivity, moved: Tensor) -> dict[str, float]:
    """How far an attack got beyond each candidate, above rounding; empty when every bound holds."""
    size = ROUNDING * (1 + case.x.abs().amax((-2, -1)))
    excess = {name: float((moved - value - size).max()) for name, value in found.candidates.items()}
    return {name: value for name, value in excess.items() if value > 0}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block", range(4))
def test_no_attack_on_a_random_layer_exceeds_any_bound(variant: type[Layer], block: int) -> None:
    """13 layers x 3 variants x 4 blocks = 156 layers of every shape, 4 inputs and radii each."""
    for seed in range(13 * block, 13 * (block + 1)):
        case = random_case(seed, variant, stack=4)
        found = bounds.sensitivity(case.attention, case.x, case.eps, case.residual)
        moved, _ = largest_move(case, restarts=2, steps=12)
        assert exceeded(case, found, moved) == {}, f"seed {seed}"
        assert torch.equal(found.value, torch.stack(list(found.candidates.values())).amin(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_joint_attack_on_input_weights_and_move_exceeds_the_bound(variant: type[Layer]) -> None:
    """Ascent on moved / bound over tokens, all weights, the move and its radius at once: the bound
    itself is differentiated.
    """
    for seed in (11, 25):
        case = random_case(seed, variant, stack=3)
        heads = case.attention.heads
        parts = {name: getattr(heads, name).clone() for name in ("query", "key", "value", "output")}
        start = largest_move(case, restarts=1, steps=10)[1]
        free = [
            one.requires_grad_() for one in (case.x.clone(), case.eps.log(), start, *parts.values())
        ]
        optimiser = torch.optim.Adam(free, lr=0.1, maximize=True)
        for _ in range(8):
            x, log_eps, d = free[:3]
            attention = type(case.attention)(
                Heads(*free[3:], scale=heads.scale), causal=case.attention.causal
            )
            eps = log_eps.exp()
            d = d * (eps / torch.linalg.matrix_norm(d))[:, None, None]
            moved = torch.linalg.matrix_norm(
                case.residual * d
                + attention.dense(x + d, Particles(x.detach()).at(x + d))
                - attention.dense(x, Particles(x.detach()).at(x))
            )
            bound = bounds.sensitivity(attention, x, eps, case.residual).value
            assert (moved <= bound + ROUNDING).all()
            optimiser.zero_grad()
            ((moved + 1e-12).log() - bound.log()).sum().backward()
            assert all(torch.isfinite(one.grad).all() for one in free if one.grad is not None)
            optimiser.step()


def test_a_planted_unsound_bound_is_caught() -> None:
    """p exp(min(rho, 20)) instead of min(1, p exp(rho)): two tokens with a large common offset flip
    their attention inside the ball.

    The cut version claims that the output moves by at most 101 eps.
    """
    a, x = (
        torch.diag(torch.tensor([0.6, 0.0], dtype=torch.float64)),
        torch.tensor([[101.0, 0.0], [100.0, 500.0]], dtype=torch.float64),
    )
    case = Case(
        Softmax(Heads.from_matrices(a, torch.eye(2, dtype=torch.float64))),
        x[None],
        torch.tensor([0.8], dtype=torch.float64),
        0.0,
    )
    start = torch.tensor([[[-1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    moved, _ = climb(
        lambda d: torch.linalg.matrix_norm(case(case.x + d) - case(case.x)),
        start,
        case.eps,
        steps=60,
    )
    found = bounds.sensitivity(case.attention, case.x, case.eps)
    assert exceeded(case, found, moved) == {}
    planted = bounds.Sensitivity({"L3 with the exponent cut": 101 * case.eps})
    assert list(exceeded(case, planted, moved)) == ["L3 with the exponent cut"]
    assert float(moved) > 5 * 101 * 0.8


@pytest.mark.parametrize("residual", [-1.0, 0.0, 2.0])
def test_without_scores_the_bound_is_exact(residual: float, randn) -> None:  # type: ignore[no-untyped-def]
    """A = 0: attention is the mean, F(X) = rX + C mean(X), and every bound with xi in it equals the
    norm of that linear map.
    """
    c, x = randn(3, 3), randn(4, 3)
    attention = Softmax(Heads.from_matrices(torch.zeros(3, 3, dtype=torch.float64), c))
    found = bounds.sensitivity(attention, x, 0.7, residual)
    exact = 0.7 * max(
        abs(residual), float(torch.linalg.matrix_norm(residual * torch.eye(3) + c, 2))
    )
    for name in (
        "L1c",
        "L1c box",
        "L1c entrywise",
        "T3",
        "L3",
        "L3cap",
        "L3cap graded",
        "T3 graded",
        "T4",
    ):
        assert float(found.candidates[name]) == pytest.approx(exact, rel=1e-6)
        assert float(found.candidates[name]) >= exact


def test_for_small_moves_the_bound_is_the_norm_of_the_jacobian() -> None:
    for seed in range(12):
        case = random_case(seed, VARIANTS[seed % 3], stack=1)
        jacobian = torch.func.jacrev(lambda x, case=case: case(x))(case.x)
        size = case.x.numel()
        exact = float(torch.linalg.matrix_norm(jacobian.reshape(size, size), 2))
        eps = 1e-7 / (1 + float(case.x.abs().max())) ** 2
        assert float(
            bounds.sensitivity(case.attention, case.x, eps, case.residual).value
        ) == pytest.approx(eps * exact, rel=1e-2, abs=1e-16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stack_of_inputs_and_radii_equals_a_loop(
    variant: type[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(10, variant, stack=3)
    assert case.x.shape[-2] > 2
    radii = torch.tensor([[0.1], [1.0]], dtype=torch.float64)
    together = bounds.sensitivity(case.attention, case.x, radii, case.residual)
    gradient = torch.randn(
        2, *case.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    remainders = bounds.remainder(case.attention, case.x, radii, gradient)
    assert together.value.shape == (2, 3)
    assert remainders.shape == (2, 2, 3)
    assert len(together.name) == 6
    for row, eps in enumerate((0.1, 1.0)):
        for column in range(3):
            alone = bounds.sensitivity(case.attention, case.x[column], eps, case.residual)
            assert alone.name in alone.candidates
            for name, value in alone.candidates.items():
                torch.testing.assert_close(
                    together.candidates[name][row, column], value, rtol=1e-9, atol=1e-12
                )
            single = bounds.remainder(case.attention, case.x[column], eps, gradient[:, column])
            torch.testing.assert_close(remainders[:, row, column], single, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr("attnscope.bounds.near.queries.ENTRIES", 1)
    monkeypatch.setattr("attnscope.bounds.near._box.ENTRIES", 1)
    monkeypatch.setattr("attnscope.bounds.near._taylor.ENTRIES", 1)
    torch.testing.assert_close(
        bounds.sensitivity(case.attention, case.x, radii, case.residual).value,
        together.value,
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_inputs_get_valid_bounds_without_large_matrices(
    variant: type[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What replaces the exact norms above a size is never smaller than they are."""
    for seed in range(12):
        case = random_case(seed, variant, stack=2)
        exact = bounds.sensitivity(case.attention, case.x, case.eps, case.residual)
        with monkeypatch.context() as patch:
            patch.setattr("attnscope.bounds.near._direct.SMALL", 0)
            patch.setattr("attnscope.bounds.near._score_norms.SMALL", 0)
            patch.setattr("attnscope.bounds.near._box.GROUPS", 2)
            cheap = bounds.sensitivity(case.attention, case.x, case.eps, case.residual)
        for name, value in exact.candidates.items():
            assert (cheap.candidates[name] >= value * (1 - 1e-9)).all(), f"{name}, seed {seed}"


def test_what_it_is_and_what_it_was_built_on(randn) -> None:  # type: ignore[no-untyped-def]
    found = bounds.sensitivity(
        Softmax(Heads.from_matrices(randn(2, 2), randn(2, 2))), randn(3, 2), 0.1, 1.0
    )
    assert (found.side, found.kind, found.slack) == ("upper", "proved", 1e-10)
    assert set(found.candidates) == {
        "G0",
        "L1",
        "L1c",
        "L1c box",
        "L1c entrywise",
        "L3",
        "L3cap",
        "L3cap graded",
        "T3",
        "T3 graded",
        "T4",
    }
    assert (
        float(found.value)
        == min(map(float, found.candidates.values()))
        == float(found.candidates[str(found.name)])
    )


def test_float32_layers_are_judged_in_float64(randn) -> None:  # type: ignore[no-untyped-def]
    a, c, x = randn(2, 2).float(), randn(2, 2).float(), randn(3, 2).float()
    single = bounds.sensitivity(Softmax(Heads.from_matrices(a, c)), x, 0.1)
    double = bounds.sensitivity(
        Softmax(Heads.from_matrices(a.double(), c.double())), x.double(), 0.1
    )
    assert single.value.dtype == torch.float64
    assert torch.equal(single.value, double.value)


@pytest.mark.parametrize("variant", [Sinkhorn, Exponential, Linear])
def test_variants_without_a_bound_are_refused(
    variant: type[Sinkhorn | Exponential | Linear], randn
) -> None:  # type: ignore[no-untyped-def]
    attention = variant(Heads.from_matrices(randn(2, 2), randn(2, 2)))
    for call in (
        lambda: bounds.sensitivity(attention, randn(3, 2), 0.1),
        lambda: bounds.remainder(attention, randn(3, 2), 0.1, randn(1, 3, 2)),
    ):
        with pytest.raises(bounds.NoBound, match=f"{attention.name}.*Use .*softmax"):
            call()


def test_rotary_heads_are_refused(randn) -> None:  # type: ignore[no-untyped-def]
    heads = Heads(randn(1, 2, 2), randn(1, 2, 2), randn(1, 2, 2), randn(1, 2, 2), rotary=randn(1))
    with pytest.raises(bounds.NoBound, match="rotary"):
        bounds.sensitivity(Softmax(heads), randn(3, 2), 0.1)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused_with_a_sentence(randn) -> None:  # type: ignore[no-untyped-def]
    heads = Heads.from_matrices(randn(2, 2), randn(2, 2))
    attention, x = Softmax(heads), randn(4, 3, 2)
    for eps in (0.0, -1.0, float("nan"), float("inf"), torch.tensor([0.1, -0.1, 0.1, 0.1])):
        with pytest.raises(ValueError, match="eps must be finite and above 0"):
            bounds.sensitivity(attention, x, eps)
    with pytest.raises(TypeError, match="eps must be a number"):
        bounds.sensitivity(attention, x, "0.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broadcast against the stack axes"):
        bounds.sensitivity(attention, x, torch.ones(3))
    with pytest.raises(ValueError, match="the dimension of the heads"):
        bounds.sensitivity(attention, randn(3, 5), 0.1)
    with pytest.raises(ValueError, match="NaN"):
        bounds.sensitivity(attention, x * torch.nan, 0.1)
    with pytest.raises(ValueError, match="residual"):
        bounds.sensitivity(attention, x, 0.1, residual=float("inf"))
    with pytest.raises(TypeError, match="must be an Attention"):
        bounds.sensitivity(heads, x, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="directions first"):
        bounds.remainder(attention, x, 0.1, randn(4, 3, 2))
    short = Heads(randn(1, 2, 2), randn(1, 2, 2), randn(1, 2, 2), position_bias=randn(1, 2, 2))
    with pytest.raises(ValueError, match="at most 2 tokens"):
        bounds.sensitivity(Softmax(short), x, 0.1)
