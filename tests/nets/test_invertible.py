"""Invertible attention: what is called a contraction is one, inverses are inverses within their
bound, and the rest is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invertible_cases import DIM, MAKERS, stack, tokens

from attnscope import (
    L2,
    Attention,
    Exponential,
    Heads,
    Linear,
    Particles,
    Sinkhorn,
    Softmax,
    bounds,
)
from attnscope.nets.invertible import Invertible
from attnscope.nets.invertible.scale import lipschitz
from attnscope.nets.invertible.step import Step

EVERY = pytest.mark.parametrize("name", MAKERS)
MAIN = pytest.mark.parametrize(
    ("name", "squash"),
    [
        ("softmax", False),
        ("causal softmax", True),
        ("sigmoid", False),
        ("tied l2", False),
        ("l2", True),
    ],
)


def known(attention: Attention, radius: float) -> float:
    """The smallest proved bound on the ball for 8 tokens."""
    return bounds.on_ball(attention, 8, radius).tightest.value


def jacobian_norm(step: Step, x: torch.Tensor) -> torch.Tensor:
    """The spectral norm of the dense Jacobian of f, differentiable."""
    entries = x.numel()
    matrix = torch.func.jacrev(lambda z: step.move(z, dense=True))(x).reshape(entries, entries)
    return torch.linalg.matrix_norm(matrix, 2)


@EVERY
def test_no_input_of_the_ball_is_stretched_more_than_proved(name: str) -> None:
    for step in stack(name, depth=2, squash="one head" in name).steps():
        step = step.detached()
        assert step.constant <= 0.9 * (1 + 1e-9)
        x = tokens(4, radius=step.radius or 1.0, seed=3)
        reached = []
        for _ in range(8):
            x = x.detach().requires_grad_()
            value = jacobian_norm(step, x)
            reached.append(float(value.detach()))
            (slope,) = torch.autograd.grad(value, x)
            x = step.project(x.detach() + 0.2 * slope / slope.norm())
        assert max(reached) > reached[0]
        assert 0.02 < max(reached) <= step.constant


@pytest.mark.parametrize(
    "name",
    [
        "softmax, one head",
        "causal softmax, one head",
        "sigmoid",
        "causal sigmoid",
        "sigmoid sum",
        "l2",
    ],
)
@pytest.mark.parametrize("radius", [0.3, 1.0, 2.0])
def test_the_scale_is_that_of_the_theorem(name: str, radius: float) -> None:
    net = stack(name, depth=1, radius=radius, contraction=0.01)
    assert known(net.attentions()[0], net.steps()[0].radius or 0.0) == pytest.approx(0.01, rel=1e-8)


@EVERY
def test_heads_together_are_never_scaled_more_than_the_theorem_asks(name: str) -> None:
    layer = stack(name).layers[0]
    attention = layer.attention(torch.float64)  # type: ignore[operator]
    found = float(
        lipschitz(attention, layer.reads(), 8, torch.tensor(1.0, dtype=torch.float64)).detach()
    )  # type: ignore[operator]
    plain = attention.to(torch.float64)
    plain = type(plain)(
        Heads(
            **{
                k: v.detach() if isinstance(v, torch.Tensor) else v
                for k, v in vars(plain.heads).items()
            }
        ),
        **layer.options,
    )
    if plain.heads.rotary is None:
        assert found <= known(plain, 1.0) * (1 + 1e-9)


def test_an_attention_that_is_a_contraction_already_is_left_alone() -> None:
    heads = Heads.from_matrices(
        torch.eye(2, dtype=torch.float64), 0.1 * torch.eye(2, dtype=torch.float64)
    )
    net = Invertible(Softmax(heads), tokens=3, radius=0.5)
    assert torch.equal(net.attentions()[0].heads.value, heads.value)
    assert net.steps()[0].constant == pytest.approx(
        bounds.on_ball(Softmax(heads), 3, 0.5 * (1 + 1e-5)).named("M1'").value
    )


@EVERY
def test_a_layer_is_the_residual_attention_that_it_shows(name: str) -> None:
    net, x = stack(name), tokens(5, 8)
    y = x
    for attention in net.attentions():
        y = y + attention(y, Particles(y))
    assert torch.allclose(net(x), y, atol=1e-14)


@pytest.mark.parametrize("name", [name for name in MAKERS if "tied" not in name])
def test_outputs_of_layers_stay_in_the_tracked_balls(name: str) -> None:
    net, x = stack(name, depth=5), tokens(50, 8)
    for step in net.steps():
        assert step.radius is not None
        assert x.norm(dim=-1).max() <= step.radius
        x = (x + step.move(x)).detach()


def test_the_tracked_ball_is_reached() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    net = Invertible(
        [Softmax(Heads.from_matrices(eye / 10, eye))] * 4, tokens=1, radius=1.0, contraction=0.5
    )
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for attention, radius in zip(net.attentions(), net.radii(), strict=True):
        assert radius is not None
        assert radius * (1 - 1e-3) < float(x.norm()) <= radius
        x = x + attention(x, Particles(x))


@MAIN
def test_twenty_four_layers_are_undone(name: str, squash: bool) -> None:
    net, x = stack(name, depth=24, squash=squash), tokens(2, 8)
    with torch.no_grad():
        y = net(x)
    found = net.inverse(y)
    assert found.converged
    assert (found.x - x).norm() <= 1e-10
    assert (y - x).norm() > 0.02 * x.norm()
    assert len(found.iterations) == 24


@MAIN
def test_the_error_is_below_its_bound_after_every_number_of_iterations(
    name: str, squash: bool
) -> None:
    net, x = stack(name, contraction=0.6, squash=squash), tokens(2, 8)
    with torch.no_grad():
        y = net(x)
    for most in (1, 2, 3, 5, 8, 13, 40):
        found = net.inverse(y, most=most)
        error = torch.linalg.vector_norm(found.x - x, dim=(-2, -1))
        assert (error <= found.error_bound + found.rounding).all()
        assert max(found.iterations) <= most
    assert found.converged
    assert float(found.error_bound.max()) < 1e-12


def test_the_bound_of_one_layer_is_geometric() -> None:
    net, x = stack("tied l2", depth=1), tokens(8)
    y = net(x).detach()
    (constant,) = (step.constant for step in net.steps())
    first = net.inverse(y, most=1)
    start = float((first.x - y).norm())
    for most in range(1, 12):
        found = net.inverse(y, most=most)
        assert float(found.error_bound) <= constant**most / (1 - constant) * start * (1 + 1e-9)
        assert float((found.x - x).norm()) <= constant**most / (1 - constant) * start + float(
            found.rounding
        )


def test_a_smaller_constant_is_used_only_within_its_ball(randn) -> None:  # type: ignore[no-untyped-def]
    step = stack("softmax", depth=1).steps()[0].detached()
    x = 0.3 * torch.nn.functional.normalize(randn(8, DIM), dim=-1)
    near, far = step.constant_within(8, 0.3), step.constant_within(8, 5.0)
    assert far == step.constant
    assert float(jacobian_norm(step, x)) <= near < step.constant


@pytest.mark.parametrize("name", ["softmax", "causal softmax", "sigmoid", "l2"])
def test_the_iteration_never_leaves_the_ball_where_it_contracts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = stack(name, contraction=0.9), tokens(8)
    y, visited, move = net(x).detach(), [], Step.move

    def watched(step: Step, x: torch.Tensor, dense: bool = False) -> torch.Tensor:
        visited.append(step.ball is None or bool((x.norm(dim=-1) <= step.ball * (1 + 1e-12)).all()))
        return move(step, x, dense)

    monkeypatch.setattr(Step, "move", watched)
    net.inverse(y)
    assert len(visited) > 6
    assert all(visited)


@pytest.mark.parametrize("name", ["softmax", "causal sigmoid", "tied l2", "l2"])
def test_squashed_stacks_map_the_space_onto_itself(name: str, randn) -> None:  # type: ignore[no-untyped-def]
    net = stack(name, squash=True)
    y = randn(3, 8, DIM) * torch.tensor([0.1, 1.0, 100.0], dtype=torch.float64)[:, None, None]
    found = net.inverse(y)
    assert found.converged
    assert torch.allclose(net(found.x), y, rtol=1e-12, atol=1e-12)


def test_what_squashed_attention_reads_ends_in_the_ball() -> None:
    step = stack("softmax, one head", depth=1, squash=True).steps()[0].detached()
    assert step.radius is not None
    x = tokens(4)
    edge = step.radius * x / x.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(
        step.move(1e8 * edge), step.attention(edge, Particles(edge)), rtol=1e-9, atol=1e-12
    )


def test_what_no_input_of_the_ball_reaches_is_refused() -> None:
    net = stack("softmax")
    with pytest.raises(ValueError, match="not the image of tokens in the ball"):
        net.inverse(torch.full((8, DIM), 3.0, dtype=torch.float64))


def test_stacks_are_loops_and_shorter_inputs_pass() -> None:
    net, x = stack("causal softmax"), tokens(2, 3, 5)
    y = net(x)
    found = net.inverse(y.detach())
    assert found.error_bound.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert torch.allclose(y[i, j], net(x[i, j]), atol=1e-14)
    assert torch.allclose(net(x[..., :2, :]), y[..., :2, :], atol=1e-14)


def test_float32_works_to_its_precision() -> None:
    net, x = stack("softmax", depth=6).to(torch.float32), tokens(8).to(torch.float32)
    found = net.inverse(net(x).detach())
    assert found.converged
    assert float((found.x - x).norm()) < 1e-5
    assert all(step.constant < 1 for step in net.steps())


def test_the_example_of_the_document_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "invertible.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert names["back"].converged
    assert (names["back"].x - names["x"]).norm() < 1e-10


@EVERY
def test_files_keep_every_bit(name: str, tmp_path: Path) -> None:
    net, x = stack(name), tokens(8)
    net.save(tmp_path / "net.npz")
    again = Invertible.load(tmp_path / "net.npz")
    assert torch.equal(again(x), net(x))
    assert again.radii() == net.radii()


@pytest.mark.parametrize("variant", ["softmax", "sigmoid", "l2"])
def test_random_stacks_serve_their_ball(variant: str) -> None:
    net = Invertible.random(variant, 3, tokens=8, dim=DIM, radius=2.0, heads=2, generator=4)
    x = tokens(8, radius=2.0)
    assert (net.inverse(net(x).detach()).x - x).norm() < 1e-12


EYE = torch.eye(DIM, dtype=torch.float64)
FULL = Heads.from_matrices(EYE, EYE)
NARROW = Heads(EYE[None, :2], EYE[None, :2], EYE[None])


@pytest.mark.parametrize(
    ("attention", "radius", "message"),
    [
        (Linear(FULL), 1.0, "no contraction is proved for linear"),
        (Exponential(FULL), 1.0, "no contraction is proved for exponential"),
        (Softmax(FULL), None, "Pass the radius"),
        (L2(NARROW), None, "unless Q = K and V = UQ"),
        (L2(NARROW, causal=True), None, "unless Q = K and V = UQ"),
        (Sinkhorn(FULL), None, "Pass the radius"),
        (
            L2(Heads(EYE[None], EYE[None], EYE[None], rotary=torch.ones(2, dtype=torch.float64))),
            1.0,
            "rotary",
        ),
    ],
)
def test_attention_without_a_proved_contraction_is_refused(attention, radius, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        Invertible(attention, tokens=4, radius=radius)


def test_a_ball_on_which_l2_attention_is_too_steep_is_refused() -> None:
    with pytest.raises(ValueError, match="no useful contraction"):
        Invertible(L2(NARROW), tokens=4, radius=40.0).steps()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 0}, "tokens must be"),
        ({"radius": -1.0}, "radius must be"),
        ({"radius": 0}, "radius must be"),
        ({"contraction": 1.0}, "contraction must be at most"),
        ({"contraction": 0.0}, "contraction must be a finite number above 0"),
        ({"attentions": []}, "at least one attention"),
        ({"attentions": ["softmax"]}, "needs an attention"),
        ({"radius": None, "squash": True}, "squash=True needs the radius"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"attentions": Softmax(FULL), "tokens": 4, "radius": 1.0}
    with pytest.raises((ValueError, TypeError), match=message):
        Invertible(**good | change)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_bad_inputs_are_refused() -> None:
    net, x = stack("softmax"), tokens(8)
    with pytest.raises(
        ValueError,
        match=(
            r"no contraction is proved outside the ball of radius 1, and x has a token of norm 1\.5"
        ),
    ):
        net(x * 1.5 / x.norm(dim=-1).max())
    with pytest.raises(ValueError, match="at most 8 tokens, got 9"):
        net(tokens(9))
    with pytest.raises(ValueError, match="dimension of the heads"):
        net(x[:, :2])
    with pytest.raises(TypeError, match="dtype"):
        net(x.to(torch.float32))
    with pytest.raises(ValueError, match="finite"):
        net.inverse(x * float("nan"))
    with pytest.raises(ValueError, match="most must be"):
        net.inverse(x, most=0)
    with pytest.raises(ValueError, match="tol must be"):
        net.inverse(x, tol=-1.0)
    with pytest.raises(ValueError, match="probes must be"):
        net.log_determinant(x, "series", probes=1)
    with pytest.raises(ValueError, match="method must be"):
        net.log_determinant(x, "power")  # type: ignore[arg-type]
