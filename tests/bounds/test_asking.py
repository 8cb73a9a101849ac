"""Queries over theorems: minima over heads, other weights, and a theorem of one's own."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from bound_cases import local_constant

from attnscope import Heads, Linear, Particles, Softmax
from attnscope.bounds import OnBall, lipschitz, on_ball, registry, theorems


def mixed() -> Softmax:
    """A flat head, which M1' serves best, beside a steep one, which U1' serves best."""
    eye = torch.eye(2, dtype=torch.float64)
    return Softmax(Heads.from_matrices(torch.stack([0.01 * eye, 4 * eye]), torch.stack([eye, eye])))


def test_heads_apart_are_smaller_than_every_theorem_and_still_a_bound(randn) -> None:
    found = on_ball(mixed(), 9, 1.0)
    apart = found.named("Heads apart")
    assert apart == found.tightest
    flat, steep = (on_ball(Softmax(mixed().heads.select(h)), 9, 1.0).tightest for h in (0, 1))
    assert {flat.name, steep.name} == {"M1'", "U1'"}
    assert apart.value == pytest.approx(
        min(flat.value + steep.value, math.sqrt(2) * math.hypot(flat.value, steep.value))
    )
    x = torch.nn.functional.normalize(randn(9, 2), dim=-1)
    assert float(local_constant(mixed(), Particles(x))) <= apart.value
    place = OnBall(9, 1.0, 9.0)
    assert float(lipschitz(mixed(), place)) == pytest.approx(apart.value, rel=1e-12)


def test_one_steep_head_does_not_spoil_the_gradient_of_the_others() -> None:
    attention = mixed()
    query = (attention.heads.query * torch.tensor([[[1.0]], [[1e3]]])).requires_grad_()
    heads = Heads(query, attention.heads.key, attention.heads.value, scale=1.0)
    found = lipschitz(Softmax(heads), OnBall(9, 1.0, 9.0))
    (slope,) = torch.autograd.grad(found, query)
    assert slope.isfinite().all()
    assert (slope.abs().amax((1, 2)) > 0).all()


def test_weighted_tokens_keep_the_theorems_that_allow_them() -> None:
    names = {bound.name for bound in on_ball(mixed(), 9, 1.0, weighted=True)}
    assert names <= {"M1", "M1'", "Heads apart"}


def test_a_theorem_of_ones_own_is_one_file(tmp_path: Path) -> None:
    """The file states a bound for a variant that had none; every query finds it."""
    file = tmp_path / "linear.py"
    file.write_text(
        "from attnscope.attention.linear import Linear\n"
        "from attnscope.bounds import OnBall, theorem\n"
        "@theorem('Linear', variant=Linear, where=OnBall, source='ours', causal=False)\n"
        "def linear(attention, ball):\n"
        "    r'''$3\\|A\\|R^2$.'''\n"
        "    return 3 * ball.slopes(attention).a * ball.radius**2\n"
    )
    spec = importlib.util.spec_from_file_location("linear_theorem", file)
    assert spec is not None
    assert spec.loader is not None
    before = list(registry._PROVED)
    eye = torch.eye(2, dtype=torch.float64)
    attention, mu = Linear(Heads.from_matrices(eye, eye)), Particles(0.7 * eye)
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        assert "Linear" in {known.name for known in theorems()}
        assert on_ball(attention, 2, 0.7).tightest.value >= float(local_constant(attention, mu))
    finally:
        registry._PROVED[:] = before
