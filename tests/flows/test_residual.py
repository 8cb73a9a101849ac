"""The Transformer, layer by layer: Euler steps that converge to the flow, exact on Gaussians,
differentiable.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnscope import L2, Gaussian, Heads, Linear, Particles, Softmax
from attnscope.flows import Sphere, flow, residual

Randn = Callable[..., torch.Tensor]


def small(randn: Randn, d: int = 2) -> Heads:
    return Heads(0.5 * randn(2, 2, d), 0.5 * randn(2, 2, d), 0.5 * randn(2, d, d))


@pytest.mark.parametrize("on_sphere", [False, True])
def test_layers_converge_to_the_flow_with_order_one(on_sphere: bool, randn: Randn) -> None:
    att, space = Softmax(small(randn)), Sphere() if on_sphere else None
    mu = Particles(Sphere()(randn(6, 2)))
    exact = flow(att, mu, [0, 1.0], space=space, settle=None).final.x
    errors = [
        float((residual(att, mu, 1 / depth, depth, post_norm=space).final.x - exact).abs().max())
        for depth in (20, 40, 80)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.08)


@pytest.mark.parametrize("variant", [Softmax, L2, Linear])
def test_a_layer_of_a_gaussian_is_exact(variant: type[Softmax], randn: Randn) -> None:
    att, z = variant(small(randn)), 0.3 * randn(2, 2)
    start = Gaussian(0.2 * randn(2), z @ z.mT)
    b = att.affine(start)
    layer = torch.eye(2, dtype=torch.float64) + 0.3 * b.matrix
    got = residual(att, start, 0.3, 1).final
    assert torch.allclose(got.cov, layer @ start.cov @ layer.mT, atol=1e-12)
    assert torch.allclose(got.mean, layer @ start.mean + 0.3 * b.offset, atol=1e-12)
    cloud = residual(att, start.quadrature(20), 0.3, 1).final
    assert torch.allclose(cloud.cov(), got.cov, atol=1e-8)


def test_norms_and_mlp_stand_where_they_should(randn: Randn) -> None:
    att, mu, w = Softmax(small(randn)), Particles(randn(4, 2)), randn(2, 2)
    norm = torch.nn.LayerNorm(2, dtype=torch.float64)

    def mlp(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    before = mu.x + 0.5 * att(norm(mu.x), mu.at(norm(mu.x)))
    before = before + 0.5 * mlp(norm(before))
    assert torch.allclose(residual(att, mu, 0.5, 1, pre_norm=norm, mlp=mlp).final.x, before)
    after = norm(mu.x + 0.5 * att(mu.x, mu))
    after = norm(after + 0.5 * mlp(after))
    assert torch.allclose(residual(att, mu, 0.5, 1, post_norm=norm, mlp=mlp).final.x, after)


def test_each_layer_may_have_its_own_attention(randn: Randn) -> None:
    first, second, mu = Softmax(small(randn)), L2(small(randn)), Particles(randn(4, 2))
    got = residual([first, second], mu, 0.1, 2)
    middle = mu.at(mu.x + 0.1 * first(mu.x, mu))
    assert torch.allclose(got.final.x, middle.x + 0.1 * second(middle.x, middle))
    assert got.times.tolist() == pytest.approx([0, 0.1, 0.2])


def test_gradients_pass_through_all_layers(randn: Randn) -> None:
    att, x = Softmax(small(randn)), randn(4, 2)

    def through(tokens: torch.Tensor) -> torch.Tensor:
        return residual(att, Particles(tokens), 0.2, 3, post_norm=Sphere()).final.x

    assert torch.autograd.gradcheck(through, (x.requires_grad_(),))


def test_a_layer_that_overflows_ends_the_run_with_what_was_computed() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    got = residual(Linear(Heads.from_matrices(one, one)), Particles(1e3 * one), 1.0, 50)
    assert got.status == "blew up"
    assert got.stop_time == len(got.states) - 1 < 50
    assert torch.isfinite(got.final.x).all()


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused(randn: Randn) -> None:
    att, mu = Softmax(small(randn)), Particles(randn(4, 2))
    with pytest.raises(ValueError, match="step"):
        residual(att, mu, 0.0, 3)
    with pytest.raises(ValueError, match="depth"):
        residual(att, mu, 0.1, 0)
    with pytest.raises(ValueError, match="list of depth = 3"):
        residual([att, att], mu, 0.1, 3)
    with pytest.raises(TypeError, match="Attention"):
        residual("softmax", mu, 0.1, 2)
    with pytest.raises(ValueError, match="Gaussian Gaussian"):
        residual(
            att,
            Gaussian(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)),
            0.1,
            2,
            post_norm=Sphere(),
        )
