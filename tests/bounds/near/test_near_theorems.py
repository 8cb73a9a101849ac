"""Theorems over an eps-ball share what they work out, and a new variant needs one file."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope import L2, Heads, Linear, Sigmoid, Softmax, bounds
from attnscope.bounds import registry
from attnscope.bounds.near.place import Budget, Near, NearCurvature, NearTokens, at_input

ROOT = Path(__file__).parents[3]


def test_chapters_of_this_room_have_lines_that_a_person_can_read() -> None:
    text = (ROOT / "docs/theorems.md").read_text()
    for heading in ("How far the output can move", "How far the margins of a network can fall"):
        chapter = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        assert [line for line in chapter.splitlines() if len(line) > 100] == []


def test_what_theorems_share_is_worked_out_once(monkeypatch: pytest.MonkeyPatch, randn) -> None:  # type: ignore[no-untyped-def]
    calls: list[float] = []

    @at_input
    def counted(near: Near) -> float:
        calls.append(1.0)
        return float(near.x.sum())

    near = Near(Softmax(Heads.from_matrices(randn(2, 2), randn(2, 2))), randn(1, 3, 2), randn(1))
    assert {counted(near), counted(near.within(0.5)), counted(near.seen_as(NearTokens))} == {
        float(near.x.sum())
    }
    assert calls == [1.0]


def test_a_variant_gets_every_door_by_stating_its_theorems(
    monkeypatch: pytest.MonkeyPatch, randn
) -> None:  # type: ignore[no-untyped-def]
    """Linear attention with A = 0 is the mean of the values: a linear map of norm max(|r|, |r + C|)
    that mixes all tokens alike.
    """
    monkeypatch.setattr(registry, "_PROVED", list(bounds.theorems()))
    stated = {"variant": Linear, "source": "a test", "masses": "equal"}

    @bounds.theorem("mean", where=Near, **stated)
    def moved(attention: Linear, near: Near) -> torch.Tensor:
        r"""$\varepsilon(|r| + \|C\|)$."""
        norm = torch.linalg.matrix_norm(attention.heads.values[0], 2)
        return near.eps * (abs(near.residual) + norm)

    @bounds.theorem("mean, by tokens", where=NearTokens, **stated)
    def budget(attention: Linear, near: NearTokens) -> Budget:
        r"""$|r|I + \|C\|/n$."""
        n = near.x.shape[-2]
        norm = torch.linalg.matrix_norm(attention.heads.values[0], 2)
        blocks = abs(near.residual) * torch.eye(n, dtype=near.x.dtype) + norm / n
        whole = torch.full_like(near.eps, abs(near.residual)) + norm
        return Budget(lambda: whole, blocks[None])

    @bounds.theorem("mean, curvature", where=NearCurvature, **stated)
    def flat(attention: Linear, near: NearCurvature):  # type: ignore[no-untyped-def]
        """Zero: the map is linear."""
        return lambda g: g.new_zeros(*g.shape[:2], g.shape[2], g.shape[2])

    attention = Linear(Heads.from_matrices(torch.zeros(2, 2, dtype=torch.float64), randn(2, 2)))
    size = float(torch.linalg.matrix_norm(attention.heads.values[0], 2))
    x = randn(1, 3, 2)
    found = bounds.sensitivity(attention, x, 0.5, 1.0)
    assert list(found.candidates) == ["mean"]
    assert float(found.value) == pytest.approx(0.5 * (1 + size))
    assert float(bounds.remainder(attention, x, 0.5, randn(2, 1, 3, 2)).max()) < 1e-300
    tokens = bounds.tokens_over_ball(attention, x, torch.tensor([0.5], dtype=torch.float64), 1.0)
    assert float(tokens.radius) == pytest.approx(0.5 * (1 + size))
    assert float(tokens.budget[0, 0, 1]) == pytest.approx(size / 3)


@pytest.mark.parametrize("variant", [Softmax, L2, Sigmoid])
@pytest.mark.parametrize("dim", [2, 70])
def test_extremes_give_true_bounds_or_infinity_and_never_nan(variant: type, dim: int) -> None:
    """Sizes of eps, tokens, scores and values from 1e-320 to 1e300: nothing is not a number, and
    what the residual alone moves is never above a bound.
    """
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    query, key, value, x = normal(1, 2, dim), normal(1, 2, dim), normal(1, dim, dim), normal(3, dim)
    direction = normal(1, 3, dim)
    sizes = (1.0, 1e-200, 1e150) if dim == 2 else (1.0, 1e150)
    radii = (1e-320, 1.0, 1e100, 1e300) if dim == 2 else (1e-320, 1e100, 1e300)
    places = list(itertools.product(sizes, radii))
    at = torch.stack([tokens * x for tokens, _ in places])
    eps = torch.tensor([radius for _, radius in places], dtype=torch.float64)
    along = direction[:, None].expand(1, *at.shape)
    for scores in sizes:
        attention = variant(Heads(scores * query, key, 1e-200 * value))
        found = bounds.sensitivity(attention, at, eps, 1.0)
        every = torch.stack(list(found.candidates.values()))
        assert not every.isnan().any()
        assert not bounds.remainder(attention, at, eps, along).isnan().any()
        over = bounds.tokens_over_ball(attention, at, eps, 1.0)
        assert not over.radius.isnan().any()
        assert not over.budget.isnan().any()
        assert not over.form(along).isnan().any()
        assert (every >= eps * (1 - 1e-12)).all()  # which the residual moves, up to rounding


def test_a_small_value_matrix_of_any_dimension_is_never_taken_for_zero(randn) -> None:  # type: ignore[no-untyped-def]
    """Without scores the output is the mean of the values, 1e-170 times a fixed matrix."""
    for dim in (3, 80):
        c, zero = randn(dim, dim), torch.zeros(dim, dim, dtype=torch.float64)
        attention = Softmax(Heads.from_matrices(zero, 1e-170 * c))
        found = bounds.sensitivity(attention, randn(8, dim), 1.0)
        exact = 1e-170 * torch.linalg.matrix_norm(c, 2)
        assert [name for name, value in found.candidates.items() if value < exact] == []


@pytest.mark.usefixtures("unchecked")
def test_eps_may_be_any_kind_of_number(randn) -> None:  # type: ignore[no-untyped-def]
    attention, x = Softmax(Heads.from_matrices(randn(2, 2), randn(2, 2))), randn(3, 2)
    exact = bounds.sensitivity(attention, x, 0.5, 1.0).value
    for eps in (np.float64(0.5), np.float32(0.5), torch.tensor(0.5), np.float16(0.5)):
        assert torch.equal(bounds.sensitivity(attention, x, eps, np.float32(1.0)).value, exact)
    whole = bounds.sensitivity(attention, x, 2).value
    for eps in (np.int32(2), torch.tensor(2)):
        assert torch.equal(bounds.sensitivity(attention, x, eps).value, whole)
    for eps in (True, np.bool_(True), torch.tensor(True), torch.tensor(1j), 1j, None):
        with pytest.raises(TypeError, match="eps must be a number"):
            bounds.sensitivity(attention, x, eps)  # type: ignore[arg-type]
    for eps in (10**400, np.float32("inf"), np.float64("nan")):
        with pytest.raises(ValueError, match="eps must be finite and above 0"):
            bounds.sensitivity(attention, x, eps)
