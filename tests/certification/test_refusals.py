"""What cannot be certified is refused in one sentence that names what is wrong."""

from __future__ import annotations

import pytest
import torch
from certify_cases import small_network
from torch import Tensor, nn

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.layers import OverBall, Residual, affine

X = torch.full((2, 1, 6, 6), 0.5, dtype=torch.float64)


class Doubled(nn.Module):
    """Computes twice what its layers compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layers(x)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Flatten(), nn.Softplus()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Wrong(Opaque):
    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        return OverBall(eps[:, None])


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(36, 4), nn.Softplus())),
            r"layer 1\.1 \(Softplus\)",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), nn.Flatten()),
            r"layer 0 \(Conv2d\)",
        ),
        (nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.Flatten()), r"layer 0 \(AvgPool2d\)"),
        (Opaque(), r"\(Opaque\) has no bound"),
        (nn.Sequential(nn.Softmax(dim=-1), nn.Flatten()), r"layer 0 \(Softmax\)"),
    ],
)
def test_a_layer_without_a_bound_is_named(network: nn.Module, says: str) -> None:
    with pytest.raises(NoBound, match=says):
        certify(network.double().eval(), X, 0.1)


def test_the_place_of_a_layer_counts_from_the_network() -> None:
    with pytest.raises(NoBound, match=r"layer layers\.1 \(Softplus\)"):
        certify(Listed().eval(), X, 0.1)


def test_a_network_that_is_more_than_its_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="something else than its layers"):
        certify(Doubled().double().eval(), X, 0.1)


def test_a_layer_that_mixes_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 0 \(Flatten\) mixes images"):
        certify(nn.Sequential(nn.Flatten(0), nn.Linear(72, 3)).double().eval(), X, 0.1)


@pytest.mark.usefixtures("unchecked")
def test_declared_bounds_must_have_the_right_shape() -> None:
    with pytest.raises(ValueError, match=r"the radius of layer 0 \(Wrong\)"):
        certify(nn.Sequential(Wrong(), nn.Linear(36, 3)).double().eval(), X, 1e-3)


def test_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="training mode"):
        certify(small_network(0).train(), X, 0.1)
    network = small_network(0)
    network[6].train()
    with pytest.raises(ValueError, match="training mode"):
        certify(network, X, 0.1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_refused(value: float) -> None:
    network = small_network(0)
    with torch.no_grad():
        network[4].weight[0, 0] = value
    with pytest.raises(ValueError, match=r"weights 4\.weight .* NaN or infinite"):
        certify(network, X, 0.1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"eps": 0.0}, "eps must be a finite number above 0"),
        ({"eps": -1.0}, "eps must be"),
        ({"eps": [0.1, float("nan")]}, "eps must be"),
        ({"eps": []}, "got none"),
        ({"eps": "36/255"}, "eps must be"),
        ({"images": X + 0.6}, r"pixels must lie in \[0, 1\]"),
        ({"images": X - 0.6}, r"pixels must lie in \[0, 1\]"),
        ({"images": X - X.max() + 1 + 1e-9}, r"to 1\.000000001\."),
        ({"images": torch.zeros(2, 3, 6, 6, dtype=torch.float64)}, "do not fit the network"),
        ({"images": torch.zeros(36, dtype=torch.float64)}, "a batch"),
        ({"images": torch.full_like(X, torch.nan)}, "images must be finite"),
        ({"images": "cat.png"}, "images must be a torch.Tensor"),
        ({"labels": torch.tensor([0, 4])}, "between 0 and 3"),
        ({"labels": torch.tensor([-1, 0])}, "between 0 and 3"),
        ({"labels": torch.tensor([0])}, "one for each of the 2 images"),
        ({"bisections": -1}, "bisections must be"),
        (
            {"network": nn.Sequential(nn.Flatten(), nn.Linear(36, 1)).double().eval()},
            "at least 2 classes",
        ),
        ({"network": nn.Sequential(nn.Identity()).eval()}, "at least 2 classes"),
        ({"network": torch.sin}, "network must be an nn.Module"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], says: str) -> None:
    good: dict[str, object] = {"network": small_network(0), "images": X, "eps": 0.1}
    with pytest.raises((ValueError, TypeError), match=says):
        certify(**(good | change))  # type: ignore[call-overload]


class Fourier(nn.Module):
    """A linear map with a complex weight, and the bound that it deserves."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(36, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(self.weight * torch.fft.fft(x)).real

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        return OverBall(self.weight.abs().max() * eps, None, affine, "mine")


def test_complex_weights_are_refused() -> None:
    """A copy in float64 would drop their imaginary parts: a certificate of another network."""
    network = nn.Sequential(nn.Flatten(), Fourier(), nn.Linear(36, 3).double()).eval()
    with pytest.raises(ValueError, match=r"weight of layer 1 \(Fourier\) holds complex numbers"):
        certify(network, X, 0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_compiled_graphs_are_refused(how: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double().eval()
    made = torch.jit.script(network) if how == "script" else torch.jit.trace(network, X)
    with pytest.raises(ValueError, match="was scripted or traced, and shows no layers"):
        certify(made, X, 0.1)


def test_a_forward_that_fails_in_its_own_way_is_a_sentence() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("scale")

    network = (
        nn.Sequential(nn.Flatten(), Residual(Broken(36, 36)), nn.Linear(36, 3)).double().eval()
    )
    with pytest.raises(ValueError, match=r"there is no certificate|do not fit the network"):
        certify(network, X, 0.1)
