"""What a network can carry where its layers do not show it: in place of dropout, on an instance, in
its copy, beside its class, between the pieces of a piecewise linear layer. All of these once had a
certificate.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from branch_cases import encoder, hugging_face, images
from certify_cases import broken
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.layers import OverBall, Remainder, Residual, affine


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -3 * x


class Held(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.layers = network

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Copied(Held):
    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        return Copied(encoder(2)).eval()


def with_part(name: str, part: object) -> nn.Module:
    """An encoder whose layer got something of its own."""
    network = encoder(1)
    setattr(network[4].layers[0], name, part)
    return network.eval()


def with_attribute(name: str, value: object, network: nn.Module | None = None) -> nn.Module:
    network = encoder(1) if network is None else network
    vars(network)[name] = value
    return network.eval()


HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "a layer in place of dropout": lambda: with_part("dropout1", Turned()),
    "one that saturates": lambda: with_part("dropout", nn.Hardtanh(-1e3, 1e3)),
    "the block of the MLP": lambda: with_part("_ff_block", lambda x: -x),
    "the block of attention": lambda: with_part("_sa_block", lambda x, *_: -x),
    "a compiled call": lambda: with_attribute("_compiled_call_impl", lambda x: -x),
    "a call": lambda: with_attribute("_call_impl", lambda x: -x),
    "a copy": lambda: with_attribute("__deepcopy__", lambda memo: encoder(2)),
    "a class with a copy of its own": lambda: Copied(encoder(1)).eval(),
    "layers beside those shown": lambda: with_attribute("layers", encoder(2), Held(encoder(1))),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_network_carries_beside_its_classes_is_refused(name: str) -> None:
    """In evaluation without gradients torch's fused layers run neither dropout nor blocks: there
    the network answers as if nothing had been changed.
    """
    network = HIDDEN[name]()
    with pytest.raises((ValueError, NoBound), match=r"no certificate|torch's own"):
        certify(network, images(1), 1e-4)


@pytest.mark.parametrize("where", ["embeddings", "block", "config", "registry"])
def test_hugging_face_parts_that_are_not_its_own_are_refused(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from transformers.models.vit import modeling_vit

    network = hugging_face("ViT")
    if where == "embeddings":
        network.vit.embeddings.dropout = nn.Hardtanh(-1e3, 1e3).eval()
    elif where == "block":
        network.vit.layers[0].dropout = nn.Softshrink(1e-12).eval()
    elif where == "config":
        network.vit.layers[0].attention.config._attn_implementation = "mine"
    else:
        registry = modeling_vit.ALL_ATTENTION_FUNCTIONS
        true = registry["sdpa"]
        monkeypatch.setitem(registry, "sdpa", lambda *a, **k: true(*a, **k))
    with pytest.raises(NoBound, match=r"plain Dropout|eager or sdpa|replaced"):
        certify(network, images(1), 1e-4)


def test_methods_of_torch_that_were_patched_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = encoder(1), images(1)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double().eval()
    for kind, name, patched, given in (
        (nn.TransformerEncoderLayer, "_ff_block", lambda self, x: x, network),
        (nn.Linear, "forward", lambda self, x: F.linear(5 * x, self.weight, self.bias), plain),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, patched)
            with pytest.raises(ValueError, match="not what its library wrote"):
                certify(given, x, 1e-4)


class Pieces(nn.Module):
    """Ten times as steep above 1. Where no entry of the ball gets there, it says it is affine."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 9 * torch.relu(x - 1)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        if bool((x - 1).abs().amin() > eps.amax()):
            return OverBall(10 * eps, remainder=affine)

        def remainder(gradients: Tensor) -> Remainder:
            return Remainder(9 * torch.linalg.vector_norm(gradients.flatten(2), dim=-1) * eps)

        return OverBall(10 * eps, remainder=remainder)


def test_a_layer_may_be_affine_near_an_image_and_not_farther_away() -> None:
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(6, 6), Pieces(), Residual(nn.Tanh()), nn.Linear(6, 3))
    network, x = network.double().eval(), torch.rand(4, 6).double()
    found = certify(network, x, 1e-4, bisections=14)
    radius = torch.tensor([one.radius for one in found], dtype=torch.float64)
    assert (radius > 0).all()
    assert broken(network, x, network(x).argmax(1), radius) == 0


class Overwriting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp_(-9, 9)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        return OverBall(eps, remainder=affine)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (nn.Sequential(nn.Flatten(0, 1), nn.Unflatten(0, (-1, 2))), "mixes images"),
        (nn.Sequential(nn.Tanh(), Overwriting()), "writes over its input"),
    ],
)
def test_layers_in_branches_keep_images_apart_and_inputs_as_they_are(
    first: nn.Module, why: str
) -> None:
    network = nn.Sequential(first, Residual(nn.Tanh()), nn.Flatten(1), nn.Linear(12, 3))
    with pytest.raises(ValueError, match=why):
        certify(network.double().eval(), torch.rand(1, 2, 6).double(), 1e-4)


def test_a_container_is_known_whatever_its_file_imports_from_the_future() -> None:
    space: dict[str, type[nn.Module]] = {}
    text = (
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self, layers):\n"
        "        super().__init__()\n"
        "        self.layers = layers\n"
        "    def forward(self, x):\n"
        "        return self.layers(x)\n"
    )
    exec(compile(text, __file__, "exec", dont_inherit=True), space)
    (one,) = certify(space["Own"](encoder(1)).eval(), images(1), 1e-4)
    assert one.verdict


def test_an_mlp_over_rows_of_a_feature_map_is_certified() -> None:
    """Its rows are tokens to itself, and one token to the graph."""
    torch.manual_seed(0)
    rows = [Residual(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4)) for _ in range(2)]
    network = nn.Sequential(nn.Conv2d(1, 2, 1), *rows, nn.Flatten(), nn.Linear(32, 3))
    network, x = network.double().eval(), images(1)
    (one,) = certify(network, x, 1e-4, bisections=6)
    assert one.radius > 1e-4
    radius = torch.tensor([one.radius], dtype=torch.float64)
    assert broken(network, x, network(x).argmax(1), radius) == 0
