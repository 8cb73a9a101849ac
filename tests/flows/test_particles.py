"""Flows of particles: what the theory says of every variant, surfaces, layers in time, events, and
refusals.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from attnscope import (
    L2,
    Gaussian,
    Heads,
    Linear,
    NoClosedForm,
    Particles,
    Sigmoid,
    Sinkhorn,
    Softmax,
    variants,
)
from attnscope.attention import Attention
from attnscope.flows import Ellipsoid, Sphere, flow, radius_bound

Randn = Callable[..., torch.Tensor]
VARIANTS = sorted(variants().items())
MASKABLE = [(name, variant) for name, variant in VARIANTS if variant is not Sinkhorn]


def two_heads(randn: Randn, d: int = 2) -> Heads:
    return Heads(
        0.4 * randn(2, 3, d), 0.4 * randn(2, 3, d), 0.4 * randn(2, 4, d), 0.4 * randn(2, d, 4)
    )


def weighted(randn: Randn, n: int, d: int = 2, *stack: int) -> Particles:
    weights = randn(*stack, n).exp()
    return Particles(randn(*stack, n, d), weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_long_run_of_small_steps_agrees_with_the_flow(
    name: str, variant: type[Attention], randn: Randn
) -> None:
    att, mu = variant(two_heads(randn)), weighted(randn, 5)
    x, h = mu.x, 0.05
    for _ in range(6):
        middle = x + h / 2 * att(x, mu.at(x))
        x = x + h * att(middle, mu.at(middle))
    assert torch.allclose(
        flow(att, mu, [0, 0.3], rtol=1e-6, atol=1e-8).final.x, x, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_splitting_a_particle_does_not_change_the_flow(
    name: str, variant: type[Attention], randn: Randn
) -> None:
    att, mu = variant(two_heads(randn)), weighted(randn, 4)
    halved = torch.cat([mu.weights[:1] / 3, mu.weights[:1] * 2 / 3, mu.weights[1:]])
    split = Particles(torch.cat([mu.x[:1], mu.x]), halved)
    whole, parts = (
        flow(att, cloud, [0, 0.5], rtol=1e-6, atol=1e-8).final.x for cloud in (mu, split)
    )
    assert torch.allclose(parts[1:], whole, atol=1e-5, rtol=0)
    assert torch.allclose(parts[0], whole[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "variant"), MASKABLE)
def test_a_causal_prefix_evolves_by_itself(
    name: str, variant: type[Attention], randn: Randn
) -> None:
    att, x = variant(two_heads(randn), causal=True), randn(6, 2)
    places = torch.arange(1, 7, dtype=torch.float64) / 6
    weights = torch.full((6,), 1 / 6, dtype=torch.float64)
    whole = flow(att, Particles(x, weights, places), [0, 0.6]).final.x
    prefix = Particles(x[:3], torch.full((3,), 1 / 3, dtype=torch.float64), places[:3])
    if att.normalised:
        assert torch.allclose(flow(att, prefix, [0, 0.6]).final.x, whole[:3], atol=1e-6, rtol=0)
    moved = x.clone()
    moved[4] += 2.0
    again = flow(att, Particles(moved, weights, places), [0, 0.6]).final.x
    assert torch.allclose(again[:4], whole[:4], atol=1e-6, rtol=0)
    assert not torch.allclose(again[5], whole[5], atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", [Softmax, L2, Sinkhorn, Sigmoid])
def test_the_support_stays_within_its_bound(variant: type[Softmax], randn: Randn) -> None:
    att, mu = variant(two_heads(randn)), weighted(randn, 6)
    got = flow(att, mu, [0, 0.5, 1.5], rtol=1e-6, atol=1e-8)
    for t, state in zip(got.times.tolist(), got.states, strict=True):
        assert float(state.radius()) <= radius_bound(att, float(mu.radius()), t).value * (1 + 1e-9)


def test_the_radius_bound_is_attained_by_one_token() -> None:
    value = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64)).expand(2, 2, 2) / 2
    att = Softmax(Heads.from_matrices(value, value))
    start = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert float(flow(att, Particles(start), [0, 1.0]).final.radius()) == pytest.approx(
        radius_bound(att, 1.0, 1.0).value, rel=1e-7
    )


def test_a_stack_of_clouds_equals_a_loop(randn: Randn) -> None:
    att, stack = Softmax(two_heads(randn)), weighted(randn, 5, 2, 3)
    together = flow(att, stack, [0, 1.0]).final.x
    for place in range(3):
        alone = flow(att, Particles(stack.x[place], stack.weights[place]), [0, 1.0]).final.x
        assert torch.allclose(together[place], alone, atol=1e-7, rtol=0)


def test_when_one_cloud_of_a_stack_blows_up_the_others_go_on_with_their_own_weights(
    randn: Randn,
) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    att, stack = Linear(Heads.from_matrices(one, one)), weighted(randn, 3, 1, 3)
    sizes = torch.tensor([3.0, 0.5, 0.4], dtype=torch.float64)[:, None, None]
    stack = Particles(sizes * stack.x / stack.x.abs().amax(-2, keepdim=True), stack.weights)
    together = flow(att, stack, [0, 1.0])
    assert [outcome.status for outcome in together.outcomes] == ["blew up", "finished", "finished"]
    for place in (1, 2):
        alone = flow(att, Particles(stack.x[place], stack.weights[place]), [0, 1.0])
        assert torch.allclose(together.final.x[place], alone.final.x, atol=1e-7, rtol=0)


def test_layers_in_time_are_flows_one_after_the_other(randn: Randn) -> None:
    first, second, mu = Softmax(two_heads(randn)), L2(two_heads(randn)), weighted(randn, 5)
    once = flow([first, second], mu, [0, 1.0]).final.x
    half = flow(first, mu, [0, 0.5], settle=None).final
    assert torch.allclose(
        once, flow(second, half, [0.5, 1.0], settle=None).final.x, atol=1e-8, rtol=0
    )
    switched = flow(lambda t: first if t < 0.5 else second, mu, [0, 1.0], rtol=1e-6).final.x
    assert torch.allclose(once, switched, atol=1e-4, rtol=0)


def test_growing_weights_in_time_have_a_closed_form() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    got = flow(lambda t: Softmax(Heads.from_matrices(one, (1 + t) * one)), Particles(one), [0, 1.0])
    assert float(got.final.x) == pytest.approx(np.exp(1.5), rel=1e-8)


def test_tokens_on_the_sphere_stay_there_and_two_of_them_meet_when_calculus_says() -> None:
    """With uniform weights theta' = -sin(2 theta)/2, so tan(theta) = tan(theta_0) e^{-t}."""
    att = Softmax(
        Heads.from_matrices(
            torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
        )
    )
    angle = torch.tensor([0.5, -0.5], dtype=torch.float64)
    mu = Particles(torch.stack([angle.cos(), angle.sin()], dim=-1))
    got = flow(att, mu, [0, 1.0, 2.0], space=Sphere())
    for t, x in zip(got.times.tolist(), got.x, strict=True):
        assert torch.allclose(
            torch.linalg.vector_norm(x, dim=-1), torch.ones(2, dtype=torch.float64), atol=1e-15
        )
        assert float(x[0, 1] / x[0, 0]) == pytest.approx(np.tan(0.5) * np.exp(-t), rel=1e-7)


@pytest.mark.parametrize(
    "space", [Sphere(), Sphere(2.5), Ellipsoid(torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64))]
)
def test_velocities_are_tangent_to_their_surface(space: Sphere | Ellipsoid, randn: Randn) -> None:
    x, field = space(randn(7, 3)), randn(7, 3)
    _, rate = torch.func.jvp(space.gauge, (x,), (space.velocity(x, field),))
    assert rate.abs().max() < 1e-13
    assert (
        torch.linalg.matrix_rank(
            torch.stack([x, field, space.velocity(x, field)], dim=1), rtol=1e-9
        ).max()
        == 2
    )


def test_an_ellipsoid_is_where_rms_norm_puts_its_tokens(randn: Randn) -> None:
    gains = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)
    space, x = Ellipsoid.from_gains(gains), randn(6, 3)
    normed = torch.nn.functional.rms_norm(x, (3,), gains, eps=0.0)
    assert torch.allclose(space.gauge(normed), torch.ones(6, 1, dtype=torch.float64))
    att = Softmax(Heads.from_matrices(0.3 * randn(3, 3), randn(3, 3)))
    mu = Particles(normed)
    got = flow(att, mu, [0, 1.0], space=space).final
    assert torch.allclose(space.gauge(got.x), torch.ones(6, 1, dtype=torch.float64), atol=1e-14)
    y, h = mu.x, 1e-2
    for _ in range(100):
        y = space(y + h * att(y, mu.at(y)))
    assert torch.allclose(got.x, y, atol=0.05, rtol=0)
    assert not torch.allclose(got.x, mu.x, atol=0.5, rtol=0)


def test_one_cluster_is_reported_as_converged_and_not_before(randn: Randn) -> None:
    att = Softmax(
        Heads.from_matrices(torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    )
    x = Sphere()(randn(8, 3))
    got = flow(att, Particles(x), [0, 300.0], space=Sphere())
    assert got.status == "converged"
    assert 5 < got.stop_time < 300
    assert float(got.final.cov().trace()) < 1e-6
    short = flow(att, Particles(x), [0, 1e-7], space=Sphere())
    assert short.status == "finished"
    pair = torch.tensor([[1.0, 1e-9, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    saddle = flow(att, Particles(Sphere()(pair)), [0, 150.0], space=Sphere())
    assert saddle.stop_time > 80
    assert float(saddle.final.cov().trace()) < 1e-6


def test_states_come_back_in_the_dtype_given_and_at_the_times_asked(randn: Randn) -> None:
    att, mu = Softmax(two_heads(randn)), weighted(randn, 5)
    single = flow(att.to(torch.float32), mu.to(torch.float32), torch.tensor([0.0, 0.3, 1.0]))
    double = flow(att, mu, [0, 0.3, 1.0])
    assert single.final.x.dtype == torch.float32
    assert single.times.tolist() == pytest.approx([0, 0.3, 1.0])
    assert torch.allclose(single.x.double(), double.x, atol=1e-5)


@pytest.mark.parametrize("method", ["RK45", "RK23", "Radau", "BDF", "LSODA"])
def test_every_solver_reaches_the_same_state(method: str, randn: Randn) -> None:
    att, mu = Softmax(two_heads(randn)), weighted(randn, 4)
    other = flow(att, mu, [0, 0.4, 1.0], method=method, rtol=1e-6, atol=1e-8)
    assert other.status == "finished"
    assert torch.allclose(other.x, flow(att, mu, [0, 0.4, 1.0]).x, atol=1e-4)


def test_a_stopped_and_a_failed_flow_keep_what_was_computed(randn: Randn) -> None:
    att, mu = Softmax(two_heads(randn)), weighted(randn, 4)
    seen: list[float] = []
    got = flow(
        att,
        mu,
        np.linspace(0, 50, 501).tolist(),
        progress=lambda t: seen.append(t) or len(seen) < 4,
        settle=None,
    )
    assert got.status == "stopped"
    assert got.stop_time == seen[-1] == float(got.times[-1])
    assert len(got.states) == len(got.times) < 501
    failed = flow(att, mu, [0, 0.01, 50.0], max_steps=3, settle=None)
    assert failed.status == "failed"
    assert "max_steps" in failed.outcomes[0].reason
    assert f"{failed.stop_time:.6g}" in failed.outcomes[0].reason
    assert torch.isfinite(failed.final.x).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [0.0, 2.0, 1.0]}, "increasing"),
        ({"times": [0.0]}, "at least two"),
        ({"times": [0.0, float("nan")]}, "finite"),
        ({"rtol": 0.0}, "rtol"),
        ({"method": "Euler"}, "DOP853"),
        ({"space": Sphere()}, "must lie on Sphere"),
        ({"space": Ellipsoid(torch.ones(3, dtype=torch.float64))}, "3 axes"),
        ({"measure": Particles(torch.ones(2, 3, dtype=torch.float64))}, "dimension of the heads"),
        ({"measure": Particles(torch.ones(2, 2))}, "dtype"),
        ({"attention": []}, "at least one layer"),
        ({"fast": -1.0}, "fast"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused_with_a_sentence(
    change: dict[str, object], message: str, randn: Randn
) -> None:
    given = {
        "attention": Softmax(two_heads(randn)),
        "measure": weighted(randn, 4),
        "times": [0.0, 1.0],
    } | change
    with pytest.raises((ValueError, TypeError), match=message):
        flow(**given)


@pytest.mark.usefixtures("unchecked")
def test_gaussians_without_a_closed_form_are_sent_to_particles(randn: Randn) -> None:
    normal = Gaussian(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    for att in (Sigmoid(two_heads(randn)), Linear(two_heads(randn), causal=True)):
        with pytest.raises(NoClosedForm, match=r"quadrature|particles"):
            flow(att, normal, [0, 1.0])
    with pytest.raises(ValueError, match="surface"):
        flow(Softmax(two_heads(randn)), normal, [0, 1.0], space=Sphere())
    with pytest.raises(TypeError, match="Particles or a Gaussian"):
        flow(Softmax(two_heads(randn)), torch.zeros(3, 2), [0, 1.0])


@pytest.mark.parametrize("gaussian", [False, True])
def test_heads_that_require_gradients_flow_like_those_that_do_not(gaussian: bool, randn) -> None:  # type: ignore[no-untyped-def]
    a, v, x = randn(2, 2), randn(2, 2), randn(5, 2)
    start = Gaussian(x.mean(0), x.mT @ x / 5) if gaussian else Particles(x)
    plain, trained = (
        flow(
            Softmax(Heads.from_matrices(*(m.clone().requires_grad_(grad) for m in (a, v)))),
            start,
            [0, 0.1],
        )
        for grad in (False, True)
    )
    assert torch.equal(plain.cov, trained.cov)
    assert not trained.cov.requires_grad
