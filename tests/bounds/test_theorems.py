"""What is asked of every theorem: a heading, a proof, that no input found breaks it, and a right
gradient.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from theorem_cases import Case, cases_of

from attnscope import L2, Heads, Sigmoid, Sinkhorn, Softmax
from attnscope.bounds import OnBall, Theorem, TwoFlows, theorems

TEXT = (Path(__file__).parents[2] / "docs" / "theorems.md").read_text(encoding="utf-8")
SECTIONS = {
    part.split("\n", 1)[0].strip(): part.split("\n## ", 1)[0]
    for part in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
}
EVERY = pytest.mark.parametrize(
    "theorem", theorems(), ids=lambda one: f"{one.name}-{one.where.__name__}"
)
STEP = 1e-5


@EVERY
def test_a_theorem_has_a_heading_a_proof_and_a_statement(theorem: Theorem) -> None:
    assert theorem.name in SECTIONS, f"docs/theorems.md has no heading ### {theorem.name}"
    assert "*Proof.*" in SECTIONS[theorem.name], f"{theorem.name} has no proof"
    assert theorem.statement
    assert theorem.source


@EVERY
def test_a_theorem_survives_random_inputs_and_ascent_and_its_gradient_is_right(
    theorem: Theorem,
) -> None:
    found = list(cases_of(theorem))
    assert found, f"tests/bounds/theorem_cases has no case for {theorem}"
    assert max(case.truth for case in found) > 0
    for case in found:
        assert case.truth <= case.bound, f"{case.said}: {case.truth} is above {case.bound}"
    if not theorem.differentiable:
        assert all(case.slope is None for case in found)
        return
    slopes = {case.slope: case for case in found}  # cases of one layer share theirs
    for case in list(slopes.values())[:6]:
        assert_gradient(case)


def assert_gradient(case: Case) -> None:
    assert case.slope is not None, case.said
    s = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(case.slope(s).sum(), s)
    above, below = (case.slope(torch.tensor(1 + h, dtype=torch.float64)) for h in (STEP, -STEP))
    expected = float((above - below).sum()) / (2 * STEP)
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-6), case.said


def test_a_theorem_for_one_p_never_serves_another() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    heads = Heads.from_matrices(0.7 * eye, eye)
    for attention in (Softmax(heads), Softmax(heads, causal=True), Sigmoid(heads), L2(heads)):
        for p in (1, 1.5, 3):
            found = theorems(attention, OnBall(4, 1.0, 4.0, p=p))
            assert all(one.p is None for one in found)
            assert {"U1", "U1'", "M1'"}.isdisjoint(one.name for one in found)
    names = {one.name for one in theorems(Softmax(heads), OnBall(4, 1.0, 4.0))}
    assert names == {"U1", "U1'", "M1", "M1'"}
    assert theorems(Softmax(heads, causal=True), OnBall(4, 1.0, 4.0, p=1)) == []
    assert theorems(Softmax(heads, causal=True), TwoFlows(1.0, 1.0, p=1)) == []
    assert [one.name for one in theorems(Sinkhorn(heads), OnBall(4, 1.0, 4.0, p=3))] == [
        "Sinkhorn-M1"
    ]
