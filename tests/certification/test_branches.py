"""Ordinary transformers are certified as they are, no attack breaks what is proved, and nothing
that is not exactly known gets a certificate.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from branch_cases import encoder, hugging_face, images
from certify_cases import Bowl, broken
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.certification.clean_graph import CleanGraph
from attnscope.certification.reading import taken_apart
from attnscope.certification.second_order import hessians_of, largest_fall
from attnscope.layers import Along, LayerNorm, Normalise, Residual, SelfAttention
from attnscope.nets import Config, Transformer


def proved(network: nn.Module, x: Tensor) -> Tensor:
    found = certify(network, x, 1e-4, bisections=6)
    assert all(one.radius == 0 or one.limited_by for one in found)
    return torch.tensor([one.radius for one in found], dtype=torch.float64)


KINDS = {
    "pre-norm, gelu": {},
    "post-norm, relu": {"pre": False, "activation": "relu"},
    "post-norm, gelu, mean": {"pre": False, "pool": "mean"},
    "pre-norm, relu, depth 2": {"activation": "relu", "depth": 2, "scale": 0.8},
}


@pytest.mark.parametrize("name", KINDS)
def test_encoders_are_certified_and_not_broken(name: str) -> None:
    network, x = encoder(1, **KINDS[name]), images(1)
    graph = taken_apart(network)
    assert torch.allclose(graph(x), network(x), rtol=1e-10, atol=1e-12)
    radius = proved(network, x)
    assert (radius > 0).all()
    assert broken(network, x, network(x).argmax(1), radius) == 0


class Logits(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x).logits
        return logits


@pytest.mark.parametrize("kind", ["ViT", "DeiT"])
def test_hugging_face_classifiers_are_certified_as_they_are(kind: str) -> None:
    pytest.importorskip("transformers")
    network, x = hugging_face(kind), images(1)
    radius = proved(network, x)
    assert (radius > 0).all()
    assert broken(Logits(network), x, network(x).logits.argmax(1), radius) == 0
    scaled = nn.Sequential(Normalise((0.5,), (0.25,)), network).eval()
    assert (proved(scaled, x) < radius * 10).all()


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_our_networks_with_norm_layers_are_certified(norm: str) -> None:
    sizes = {"dim": 4, "heads": 2, "head_dim": 2, "value_dim": 2, "hidden": 5}
    config = Config.vit(
        (1, 4, 4), 3, patch=2, norm=norm, mlp="residual", activation="relu", **sizes
    )
    network, x = Transformer(config, seed=3).double().eval(), images(1)
    radius = proved(network, x)
    assert (radius > 0).all()
    assert broken(network, x, network(x).argmax(1), radius) == 0


def test_layers_of_ones_own_stand_in_branches_too() -> None:
    torch.manual_seed(0)
    widen = nn.Sequential(Bowl(0.5), nn.Linear(7, 6))
    network = nn.Sequential(nn.Linear(6, 6), Residual(widen), nn.Linear(6, 3)).double().eval()
    x = torch.rand(3, 6, dtype=torch.float64)
    radius = proved(network, x)
    assert (radius > 0).all()
    assert broken(network, x, network(x).argmax(1), radius) == 0


def test_the_second_order_is_that_of_finite_differences() -> None:
    """Forward derivatives of torch's own layer_norm are wrong in second order; ours are not."""
    network, x = encoder(2), images(1)
    graph, label = taken_apart(network), int(network(x).argmax(1))
    other = next(k for k in range(3) if k != label)
    hessian = hessians_of(graph, x, label)[0 if other == min({0, 1, 2} - {label}) else 1]
    margin = lambda z: (network(z)[:, label] - network(z)[:, other]).detach()  # noqa: E731
    step, basis = 1e-4, torch.eye(16, dtype=torch.float64).reshape(16, 1, 4, 4)
    for a, b in ((0, 0), (3, 7), (15, 2)):
        corners = [x + step * (s * basis[a] + t * basis[b]) for s in (1, -1) for t in (1, -1)]
        pp, pm, mp, mm = (float(margin(z)) for z in corners)
        assert float(hessian[a, b]) == pytest.approx((pp - pm - mp + mm) / 4 / step**2, abs=1e-5)
    clean = CleanGraph(graph, x)
    clean.aim(torch.tensor([label]))
    assert clean.spans is not None
    for number, bend in clean.spans.bends.items():
        for seed in range(4):
            d = torch.randn(
                x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
            )
            d = 1e-3 * d / d.norm()
            up, down, here = (graph.values(z)[number] for z in (x + d, x - d, x))
            second = (up + down - 2 * here).flatten(2).norm(dim=-1).flatten() / 1e-6
            assert (second[: len(bend)] <= bend * (1 + 1e-3) + 1e-4).all()


def test_the_fall_of_a_quadratic_function_is_that_of_a_search() -> None:
    g = torch.Generator().manual_seed(0)
    slopes = torch.randn(4, 5, generator=g, dtype=torch.float64)
    hessians = torch.randn(4, 5, 5, generator=g, dtype=torch.float64)
    hessians = hessians + hessians.mT
    bound = largest_fall(slopes, hessians, 0.7)
    d = torch.randn(20000, 5, generator=g, dtype=torch.float64)
    d = 0.7 * d / d.norm(dim=1, keepdim=True)
    falls = -(d @ slopes.mT) - torch.einsum("sp,cpq,sq->sc", d, hessians, d) / 2
    reached = falls.amax(0)
    assert (reached <= bound).all()
    assert (reached >= 0.97 * bound).all(), "it is the maximum itself"


def halved(found: Along, part: float = 0.0) -> Along:
    return Along(part * found.tokens, lambda g: part * found.third(g))


@pytest.mark.parametrize("kind", [LayerNorm, SelfAttention])
def test_a_planted_bound_that_is_too_small_proves_too_much(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is beyond second order left out, radii grow: the bound is in use."""
    network, x = encoder(1), images(1)
    before, along = proved(network, x), kind.along
    monkeypatch.setattr(kind, "along", lambda self, x, t: halved(along(self, x, t)))
    assert (proved(network, x) > before).all()


class Twisted(nn.TransformerEncoderLayer):
    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return -super().forward(*args, **kwargs)  # type: ignore[arg-type]


def changed(what: str) -> nn.Module:
    network = encoder(0)
    layer = network[4].layers[0]
    if what == "subclass":
        layer.__class__ = Twisted
    elif what == "hook":
        layer.register_forward_hook(lambda m, x, y: -y)
    elif what == "own forward":
        layer.forward = lambda x, **kwargs: -x
    elif what == "batch second":
        layer.self_attn.batch_first = False
    elif what == "own activation":
        layer.activation = torch.sin
    elif what == "own norm":
        layer.norm1 = nn.Identity()
    elif what == "bias_kv":
        layer.self_attn = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True).double()
    elif what == "training":
        layer.train()
    return network


@pytest.mark.parametrize(
    "what",
    ["subclass", "hook", "own forward", "batch second", "own activation", "own norm", "bias_kv",
     "training"],
)  # fmt: skip
def test_an_encoder_that_is_not_torchs_own_is_refused(what: str) -> None:
    with pytest.raises((ValueError, NoBound)):
        certify(changed(what), images(1), 1e-3)


def test_patched_functions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = encoder(0), images(1)
    true = F.linear
    with monkeypatch.context() as patch:
        patch.setattr(F, "linear", lambda a, w, b=None: true(a, w, b))
        with pytest.raises(ValueError, match="not what its library wrote"):
            certify(network, x, 1e-3)
    forward = nn.TransformerEncoderLayer.forward
    with monkeypatch.context() as patch:
        patch.setattr(
            nn.TransformerEncoderLayer, "forward", lambda self, *a, **k: forward(self, *a, **k)
        )
        with pytest.raises(ValueError, match="not what its library wrote"):
            certify(network, x, 1e-3)


def test_adapters_and_foreign_attention_are_refused() -> None:
    pytest.importorskip("transformers")
    network, x = hugging_face("ViT"), images(1)
    block = network.vit.layers[0]
    kept = block.attention.q_proj
    block.attention.q_proj = nn.Sequential(kept).eval()
    with pytest.raises(NoBound, match="plain Linear"):
        certify(network, x, 1e-3)
    block.attention.q_proj = kept
    network.vit.config._attn_implementation = "flex_attention"
    with pytest.raises(NoBound, match="eager or sdpa"):
        certify(network, x, 1e-3)


def test_eager_attention_whose_softmax_is_in_single_precision_is_read_too() -> None:
    pytest.importorskip("transformers")
    network, x = hugging_face("ViT"), images(1)
    (fused,) = certify(network, x, 1e-3)
    network.vit.config._attn_implementation = "eager"
    (eager,) = certify(network, x, 1e-3)
    assert (eager.verdict, eager.radius) == (fused.verdict, fused.radius)


def test_pixels_outside_of_their_range_are_told_where_to_normalise() -> None:
    with pytest.raises(ValueError, match="Normalise"):
        certify(encoder(0), images(1) * 3 - 1, 1e-3)


def test_an_encoder_that_answers_in_two_ways_is_refused() -> None:
    """torch's fast path, without gradients, knows the exact GELU alone."""
    torch.manual_seed(0)
    encode = nn.TransformerEncoderLayer(
        4, 2, 4, dropout=0.0, activation=nn.GELU("tanh"), batch_first=True
    )
    nn.init.normal_(encode.linear1.weight, std=3.0)
    network = nn.Sequential(nn.Flatten(1, 2), encode, nn.Flatten(), nn.Linear(32, 3)).eval()
    x = torch.rand(1, 1, 8, 4)
    with torch.no_grad():
        fast = network(x)
    assert not torch.equal(fast, network(x)), "then there is nothing to refuse"
    with pytest.raises(NoBound, match="activation_relu_or_gelu = 0"):
        certify(network, x, 1e-4)
    encode.activation_relu_or_gelu = 0
    assert certify(network, x, 1e-4)[0].verdict


def test_flat_margins_are_certified_as_far_as_there_are_pictures() -> None:
    """Logits that do not depend on the picture: nowhere does the linear part eat the margin."""
    torch.manual_seed(0)
    encode = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    network = nn.Sequential(nn.Flatten(1, 2), encode, nn.Flatten(), nn.Linear(64, 3)).eval()
    nn.init.zeros_(network[-1].weight)
    (near,), (far,) = certify(network, torch.rand(1, 1, 8, 8), [0.1, 1e300], bisections=4)
    assert near.verdict
    assert 0.1 < near.radius <= 8
    assert not far.verdict, "no layer is asked so far away"


@pytest.mark.parametrize("bisections", [0, 6])
def test_pictures_behind_a_relu_that_is_off(bisections: int) -> None:
    """No pixel moves what the encoder reads, until one turns the ReLU on."""
    torch.manual_seed(0)
    encode = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=True)
    stem = nn.Conv2d(1, 2, 3, padding=1)
    network = nn.Sequential(
        stem, nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(2), encode, nn.Flatten(), nn.Linear(8, 3)
    )
    with torch.no_grad():
        stem.bias.fill_(-1.0)
        stem.weight.mul_(0.5)
    network, x = network.double().eval(), torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    (one,) = certify(network, x, 0.01, bisections=bisections)
    assert one.verdict
    assert broken(network, x, network(x).argmax(1), torch.tensor([one.radius])) == 0


@pytest.mark.parametrize("branch", [nn.BatchNorm2d(1), nn.Conv2d(1, 1, 3, padding=1)])
def test_affine_residual_networks_have_no_second_order(branch: nn.Module) -> None:
    """The radius is the smallest margin over its slope."""
    torch.manual_seed(0)
    network = nn.Sequential(Residual(branch), nn.Flatten(), nn.Linear(16, 3)).double().eval()
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(network, x[:1])[0, :, 0].flatten(1)
    for one, logits in zip(certify(network, x, 1e-3, bisections=40), network(x), strict=True):
        others = [c for c in range(3) if c != one.label]
        slopes = (jacobian[one.label] - jacobian[others]).norm(dim=1)
        exact = float(((logits[one.label] - logits[others]) / slopes).detach().min())
        assert (1 - 1e-4) * exact <= one.radius <= exact
