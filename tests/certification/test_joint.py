"""Token budgets and forms against perturbations that try to break them, and the programme against
its dense solution.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from certify_cases import broken
from torch import Tensor

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.certification.chain import chain
from attnscope.certification.joint import Joint, largest_rise
from attnscope.certification.telescope import Clean
from attnscope.layers import OverBall
from attnscope.nets import Config, Transformer

VARIANTS = ("softmax", "l2", "sigmoid")


def vit(attention: str = "softmax", depth: int = 1, seed: int = 0, **parts: object) -> Transformer:
    options = {"tokens": 4} if attention == "sigmoid" else {}
    config = Config.vit(
        (1, 4, 4),
        3,
        2,
        dim=4,
        depth=depth,
        heads=2,
        head_dim=2,
        value_dim=2,
        hidden=6,
        attention=attention,
        options=options,
        **parts,
    )
    network = Transformer(config, seed=seed)
    with torch.no_grad():
        for layer in network.attentions:
            layer.query.mul_(1.5)
            layer.query_bias.add_(1.0)
    return network.double().eval().requires_grad_(False)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(
        count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def ascended(
    value: Callable[[Tensor], Tensor], starts: Tensor, eps: float, steps: int = 15
) -> tuple[Tensor, Tensor]:
    """Perturbations of norm eps that make value large, and the values."""
    d = starts / torch.linalg.vector_norm(starts.flatten(1), dim=1)[:, None, None] * eps
    for _ in range(steps):
        d.requires_grad_()
        with torch.enable_grad():
            (up,) = torch.autograd.grad(value(d).sum(), d)
        step = d.detach() + 0.3 * eps * up / torch.linalg.vector_norm(up.flatten(1), dim=1)[
            :, None, None
        ].clamp(min=1e-12)
        d = step / torch.linalg.vector_norm(step.flatten(1), dim=1)[:, None, None] * eps
    return d, value(d).detach()


def layer_of(attention: str | None, **parts: object) -> tuple[torch.nn.Module, Tensor]:
    network = vit(attention or "softmax", **parts)
    x = network.layers[0](images(1, seed=3)).detach() * 2
    return (network.layers[1] if attention else network.layers[2]), x


def over(layer: torch.nn.Module, x: Tensor, eps: float) -> OverBall:
    radius = torch.tensor([eps], dtype=torch.float64)
    return layer.over(x, radius, radius[:, None].expand(1, x.shape[-2]))


CASES = [
    *((name, {}) for name in VARIANTS),
    *(
        (None, {"mlp": mlp, "activation": a})
        for mlp in ("sll", "residual")
        for a in ("quadratic", "relu")
    ),
]


@pytest.mark.parametrize("eps", [0.05, 0.6])
@pytest.mark.parametrize(("attention", "parts"), CASES)
def test_no_token_moves_beyond_its_budget(
    attention: str | None, parts: dict[str, object], eps: float, randn: Callable[..., Tensor]
) -> None:
    layer, x = layer_of(attention, **parts)
    found = over(layer, x, eps)
    worst = 0.0
    for token in (0, 3):

        def share(d: Tensor, token: int = token) -> Tensor:
            moved = torch.linalg.vector_norm(layer(x + d) - layer(x), dim=-1)[:, token]
            return moved / (torch.linalg.vector_norm(d, dim=-1) @ found.budget[0, token])

        starts = randn(12, *x.shape[1:])
        starts[:8] *= torch.eye(x.shape[-2], dtype=x.dtype).repeat(2, 1)[
            ..., None
        ]  # one token alone
        worst = max(worst, float(ascended(share, starts + 1e-3, eps)[1].max()))
    assert worst <= 1
    assert worst > 0.4 or eps > 0.1, "two fifths of this budget would be wrong, and would be seen"


@pytest.mark.parametrize("eps", [0.1, 0.6])
@pytest.mark.parametrize(("attention", "parts"), CASES)
def test_forms_bound_the_remainder(
    attention: str | None, parts: dict[str, object], eps: float, randn: Callable[..., Tensor]
) -> None:
    layer, x = layer_of(attention, **parts)
    found = over(layer, x, eps)
    assert found.remainder is not None
    shares = []
    for _ in range(3):
        g = randn(*x.shape[1:])
        left = found.remainder(g[None, None])
        assert left.form is not None
        form, corners = left.form[0, 0], None if left.corners is None else left.corners[0, 0]
        at, pull = torch.func.vjp(layer, x)
        slope = pull(g[None])[0]

        def share(
            d: Tensor,
            at: Tensor = at,
            g: Tensor = g,
            slope: Tensor = slope,
            form: Tensor = form,
            corners: Tensor | None = corners,
        ) -> Tensor:
            rest = ((layer(x + d) - at) * g).flatten(1).sum(1) - (slope * d).flatten(1).sum(1)
            v = torch.linalg.vector_norm(d, dim=-1)
            allowed = (v @ form * v).sum(-1) / 2 + (0 if corners is None else v @ corners)
            return -rest / (allowed + 1e-12)

        shares.append(float(ascended(share, randn(20, *x.shape[1:]), eps)[1].max()))
    assert max(shares) <= 1
    if eps == 0.1 if attention else parts["activation"] == "quadratic":
        assert max(shares) > (0.04 if attention else 0.2)


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 30.0])
def test_the_programme_is_solved_from_above_and_nearly_exactly(
    size: float, randn: Callable[..., Tensor]
) -> None:
    for n in (1, 2, 7):
        gamma, half = randn(1, 1, n).abs(), randn(n, n).abs()
        form, eps = size * (half + half.mT)[None, None], torch.tensor([0.7], dtype=torch.float64)
        found = float(largest_rise(gamma, form, eps))
        v = randn(4000, n).abs()
        v = 0.7 * v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
        for _ in range(
            200
            # fixed points of the ascent are the maxima on the sphere: gradient and v are
            # non-negative
        ):
            step = gamma[0] + v @ form[0, 0]
            v = 0.7 * step / torch.linalg.vector_norm(step, dim=1, keepdim=True)
        best = float((v @ gamma[0, 0] + (v @ form[0, 0] * v).sum(1) / 2).max())
        assert best <= found * (1 + 1e-12)
        assert found <= best * 1.02


@pytest.mark.parametrize("attention", VARIANTS)
@pytest.mark.parametrize("depth", [1, 2])
def test_no_attack_breaks_a_certificate_of_a_transformer(attention: str, depth: int) -> None:
    network, x = vit(attention, depth, seed=depth), images(8)
    assert all(float(norms.min()) >= 0.2 for norms in network.attention_norms())
    found = certify(network, x, [0.005, 0.05], bisections=4)
    radius = torch.tensor([one.radius for one in found[0]], dtype=torch.float64)
    assert (radius > 0).sum() >= 6
    assert {one.method for one in found[0]} & {"NT4", "margin form"} or all(
        one.method == "layer-wise" for one in found[0]
    )
    assert broken(network, x, network(x).argmax(1), radius, steps=30) == 0


@pytest.mark.parametrize("attention", VARIANTS)
def test_margins_fall_by_less_than_every_bound_says(attention: str) -> None:
    network, x = vit(attention, 2, seed=5), images(3)
    clean = Clean(chain(network), x)
    labels = clean.logits.argmax(1)
    clean.aim(labels)
    eps = torch.full((3,), 0.2, dtype=torch.float64)
    joint = Joint(clean.links, clean.values, eps)
    cut, whole = joint.falls(clean.gradients)
    assert joint.fits
    wise = joint.layerwise(clean.gradients, torch.arange(3))
    linear = clean.norms[0] * eps
    noise = torch.randn(
        200, *x.shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    for i in range(3):
        for j in range(2):
            g = clean.gradients[0][j, i]
            d = torch.cat([noise, noise - 5 * g / g.norm(), -g[None]])
            d = 0.2 * d / torch.linalg.vector_norm(d.flatten(1), dim=1)[:, None, None, None]
            moved = Clean(chain(network), x[i] + d)
            moved.aim(labels[i].expand(len(d)))
            fall = float((clean.margins[j, i] - moved.margins[j]).max())
            assert fall <= min(float(cut[j, i]), float(whole[j, i]), float(wise[j, i])) + 1e-7
            assert fall > 0.5 * float(linear[j, i])
    assert (whole >= linear * (1 - 1e-9)).all()


@pytest.mark.parametrize("activation", ["quadratic", "relu"])
def test_margins_that_fall_faster_than_their_slope_stay_below_every_bound(activation: str) -> None:
    network = vit(depth=2, seed=1, activation=activation, half_width=0.02)
    clean = Clean(chain(network), images(6, seed=7))
    labels = clean.logits.argmax(1)
    clean.aim(labels)
    faster, eps = 0, torch.full((6,), 0.3, dtype=torch.float64)
    cut, whole = Joint(clean.links, clean.values, eps).falls(clean.gradients)
    for i in range(6):
        for j in range(2):
            other = torch.tensor([k for k in range(3) if k != labels[i]])[j]

            def margin(d: Tensor, i: int = i, other: Tensor = other) -> Tensor:
                z = network(clean.values[0][i] + d.reshape(-1, 1, 4, 4))
                return z[:, other] - z[:, labels[i]]

            starts = torch.randn(
                8, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)
            )
            starts[0] = -clean.gradients[0][j, i, 0]
            worst = float(ascended(margin, starts, 0.3)[1].max()) + float(clean.margins[j, i])
            faster += worst > 1.02 * 0.3 * float(clean.norms[0, j, i])
            assert worst <= min(float(cut[j, i]), float(whole[j, i])) + 1e-7
    assert faster >= 2


def test_the_joint_programme_is_sharper_than_remainders_one_by_one() -> None:
    config = Config.vit((1, 8, 8), 3, 1, dim=9, heads=2, head_dim=3, value_dim=3, hidden=12)
    network = Transformer(config, seed=0).double().eval().requires_grad_(False)
    clean = Clean(
        chain(network),
        torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    )
    clean.aim(clean.logits.argmax(1))
    eps = torch.full((2,), 0.2, dtype=torch.float64)
    whole, radius = clean.norms[0] * eps, eps
    for number, link in enumerate(clean.links[:-1]):
        found = link.over(clean.values[number], radius)
        rest = link.remainder(found, clean.gradients[number + 1]).within(radius)
        whole, radius = whole + rest, found.radius
    _, together = Joint(clean.links, clean.values, eps).falls(clean.gradients)
    linear = clean.norms[0] * eps
    assert float(((together - linear) / (whole - linear)).median()) < 0.95


def test_radii_beyond_reach_certify_nothing() -> None:
    network, x = vit(depth=2), images(2)
    with torch.no_grad():
        for layer in network.attentions:
            layer.value.mul_(1e4)
            layer.query.mul_(100.0)
    found = certify(network, x, [1e-3, 1.0])
    assert not any(one.verdict for one in found[1])


def test_a_transformer_with_a_layer_that_has_no_bound_is_refused_by_place() -> None:
    with pytest.raises(NoBound, match=r"layer layers\.1 \(ResidualAttention\).*sinkhorn"):
        certify(vit("sinkhorn", position_bias=False), images(1), 1e-3)
