"""Networks that are not what their layers seem to be, one of each kind: refused, or certified for
what they compute and not for what they show.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from certify_cases import broken, small_network
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.layers import OverBall, affine
from attnscope.nets import Config, Transformer


def layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def images(count: int = 8, seed: int = 0) -> Tensor:
    return torch.rand(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def radii(network: nn.Module, x: Tensor) -> Tensor:
    found = certify(network, x, 1e-3, bisections=12)
    return torch.tensor([one.radius for one in found], dtype=torch.float64)


class Chained(nn.Module):
    """A network whose forward is given."""

    def __init__(self, forward: Callable[[nn.Sequential, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.made = layers(), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self.layers, x)


def branching(net: nn.Sequential, x: Tensor) -> Tensor:
    return net(x) if float(x.sum()) < 1e3 else -net(x)


def by_numpy(net: nn.Sequential, x: Tensor) -> Tensor:
    return net(x) if np.asarray(x).sum() < 1e3 else -net(x)


def by_list(net: nn.Sequential, x: Tensor) -> Tensor:
    return net(x) if sum(x[0].tolist()) < 1e3 else -net(x)


def in_place(net: nn.Sequential, x: Tensor) -> Tensor:
    h = net[0](x)
    h.copy_(h)
    return net[2](net[1](h))


def through_data(net: nn.Sequential, x: Tensor) -> Tensor:
    h = net[0](x)
    h.data.clamp_(max=1e3)
    return net[2](net[1](h))


def skipping(net: nn.Sequential, x: Tensor) -> Tensor:
    return net[2](net[1].forward(net[0](x)))


def twice(net: nn.Sequential, x: Tensor) -> Tensor:
    net(x)
    return net(x)


FORWARDS: dict[str, Callable[[nn.Sequential, Tensor], Tensor]] = {
    "another copy of the input": lambda net, x: net(x.clone()),
    "rounded far from the images": lambda net, x: net(torch.where(x > 1.5, x.round(), x)),
    "a branch that no point of the ball takes": branching,
    "a branch on numpy": by_numpy,
    "a branch on a list": by_list,
    "written over between two layers": in_place,
    "written over behind autograd's back": through_data,
    "a layer called past its hooks": skipping,
    "once more than it should": twice,
    "zero added to the answer": lambda net, x: net(x) + 0.0,
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_that_does_anything_beside_its_layers_is_refused(name: str) -> None:
    """All of these agree with the layers at the images and at every point of the ball."""
    network, x = Chained(FORWARDS[name]).eval(), images()
    assert torch.allclose(network(x), network.layers(x))
    with pytest.raises(ValueError, match="something else than its layers"):
        certify(network, x, 0.01)


def test_a_forward_that_rounds_its_pixels_is_refused() -> None:
    """At images of 8 bits it agrees exactly, and half a level beside them it does not."""
    network = Chained(lambda net, x: net((x * 255).round() / 255)).eval()
    x = (images() * 255).round() / 255
    assert torch.allclose(network(x), network.layers(x), rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="something else than its layers"):
        certify(network, x, 0.01)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, pixels: Tensor) -> Tensor:
        """Names and docstrings do not matter."""
        return self.layers(pixels)


class Looped(Plain):
    def forward(self, h: Tensor) -> Tensor:
        for part in self.layers:
            h = part(h)
        return h


@pytest.mark.parametrize("kind", [Plain, Looped])
def test_a_forward_that_only_runs_its_layers_is_known_by_its_code(kind: type[Plain]) -> None:
    network, x = kind().eval(), images()
    assert torch.equal(radii(network, x), radii(network.layers, x))


class Looking(Plain):
    """Reads its image where nobody looks: all of these once fooled a watched forward."""

    how: Callable[[Tensor], float]

    def forward(self, x: Tensor) -> Tensor:
        try:
            far = type(self).how(x) > 1e3
        except BaseException:
            far = False
        return -self.layers(x) if far else self.layers(x)


def in_a_thread(x: Tensor) -> float:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(float(x.sum())))
    thread.start()
    thread.join()
    return found[0]


COUNTS = {"calls": 0}


def counting(x: Tensor) -> float:
    COUNTS["calls"] += 1
    return 2e3 if COUNTS["calls"] > 10**6 else 0.0


LOOKS: dict[str, Callable[[Tensor], float]] = {
    "repr": lambda x: len(repr(x)) - 1e6,
    "dlpack": lambda x: float(torch.from_dlpack(x).sum()),
    "numpy": lambda x: float(x.detach().numpy().sum()),
    "item": lambda x: x.flatten()[0].item(),
    "vmap": lambda x: float(torch.func.vmap(torch.sum)(x)[0]),
    "another thread": in_a_thread,
    "a swallowed refusal": lambda x: float(x.sum()),
    "a counter": counting,
    "a random number": lambda x: float(torch.rand(())) * 1e3,
    "the batch": lambda x: float(x.mean(0).sum()),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_forward_that_looks_on_the_side_is_refused(name: str) -> None:
    kind = type("Looking", (Looking,), {"how": staticmethod(LOOKS[name])})
    with pytest.raises(ValueError, match="something else than its layers"):
        certify(kind().eval(), images(2), 0.01)


class Shadowed(Plain):
    """Shows one set of layers and runs another."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers(7)]

    def __getattr__(self, name: str) -> nn.Module:
        return self.hidden[0] if name == "layers" else super().__getattr__(name)


class Sequence(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) < 1e3 else -super().forward(x)


@pytest.mark.parametrize("network", [Shadowed(), Sequence(*layers())])
def test_containers_that_hide_something_are_refused(network: nn.Module) -> None:
    with pytest.raises(ValueError, match="something else than its layers"):
        certify(network.eval(), images(2), 0.01)


def test_a_layer_that_stands_in_a_network_twice_counts_twice() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(6, 6).double()
    network = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(6, 3).double()).eval()
    x = images(4)
    assert torch.equal(radii(network, x), radii(copy.deepcopy(network), x))
    assert broken(network, x, network(x).argmax(1), radii(network, x)) == 0


@contextmanager
def deprecated() -> Iterator[None]:
    with pytest.warns(FutureWarning, match="weight_norm"):
        yield


def old_weight_norm(layer: nn.Linear) -> nn.Module:
    with deprecated():
        return torch.nn.utils.weight_norm(layer)


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def halved(layer: nn.Linear) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Halved())


@pytest.mark.parametrize(
    "wrap",
    [
        old_weight_norm,
        torch.nn.utils.spectral_norm,
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        halved,
    ],
)
def test_a_reparametrised_weight_is_what_the_module_computes(
    wrap: Callable[[nn.Linear], nn.Module],
) -> None:
    """The weight that stands in the module between two calls belongs to the weights before these
    were loaded.
    """
    network, x = layers(), images()
    wrap(network[0])
    network.eval()
    with torch.no_grad():
        network(x)
        other = {name: 3 * part for name, part in network.state_dict().items()}
        network.load_state_dict(other)
        twin = copy.deepcopy(network)
        twin(x)
    weight = twin[0].weight.detach()
    plain = layers().eval()
    with torch.no_grad():
        for name, part in plain.named_parameters():
            part.copy_(weight if name == "0.weight" else other.get(name, part))
    assert torch.allclose(plain(x), twin(x))
    radius = radii(network, x)
    assert torch.allclose(radius, radii(plain, x), rtol=1e-9)
    assert (radius > 0).all()
    assert broken(twin, x, twin(x).argmax(1), radius) == 0


def test_weights_that_are_results_of_a_computation_can_be_copied() -> None:
    network, x = layers(), images(2)
    with deprecated():
        torch.nn.utils.weight_norm(network[0])
    network.eval()(x).sum().backward()
    assert not network[0].weight.is_leaf
    assert (radii(network, x) > 0).all()


HOOKED: dict[str, Callable[[nn.Sequential], object]] = {
    "forward pre-hook": lambda net: net[2].register_forward_pre_hook(lambda m, x: (2 * x[0],)),
    "forward hook": lambda net: net[2].register_forward_hook(lambda m, x, y: 2 * y),
    "backward hook": lambda net: net[1].register_full_backward_hook(
        lambda m, grad, out: (grad[0] / 9,)
    ),
    "backward pre-hook": lambda net: net[1].register_full_backward_pre_hook(
        lambda m, grad: (grad[0] / 9,)
    ),
}


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_are_refused(name: str) -> None:
    network = layers().eval()
    HOOKED[name](network)
    with pytest.raises(ValueError, match=rf"layer [12] \((Linear|Tanh)\) has a {name}"):
        certify(network, images(2), 0.01)


def test_hooks_of_the_whole_network_and_of_all_networks_are_refused() -> None:
    network = layers().eval()
    network.register_forward_hook(lambda m, x, y: -y)
    with pytest.raises(ValueError, match="has a forward hook"):
        certify(network, images(2), 0.01)
    handle = nn.modules.module.register_module_forward_hook(lambda m, x, y: None)
    try:
        with pytest.raises(ValueError, match="hooks for all modules"):
            certify(layers().eval(), images(2), 0.01)
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "act", [nn.LeakyReLU(3.0), nn.LeakyReLU(-2.0), nn.ReLU(), nn.LeakyReLU(0.1)], ids=repr
)
def test_modules_that_write_over_their_input_are_run_out_of_place(act: nn.Module) -> None:
    network, x = layers(), images()
    network[1] = act
    apart = copy.deepcopy(network).eval()
    act.inplace = True
    radius = radii(network.eval(), x)
    assert torch.equal(radius, radii(apart, x))
    assert broken(apart, x, apart(x).argmax(1), radius) == 0
    assert act.inplace is True, "the network itself is left as it is"


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_subclass_or_a_replaced_forward_is_not_the_layer_of_torch() -> None:
    network = layers()
    network[0] = Twice(6, 8).double()
    with pytest.raises(NoBound, match=r"layer 0 \(Twice\) has no bound"):
        certify(network.eval(), images(2), 0.01)
    network = layers().eval()
    network[0].forward = lambda x: nn.functional.linear(2 * x, network[0].weight)
    with pytest.raises(ValueError, match=r"forward of layer 0 \(Linear\) was replaced"):
        certify(network, images(2), 0.01)


class Overwriting(nn.Module):
    """Doubles its input where it stands."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)

    def over(self, x: Tensor, eps: Tensor, each: Tensor | None = None) -> OverBall:
        return OverBall(2 * eps, remainder=affine)


def test_a_layer_of_ones_own_that_writes_over_its_input_is_refused() -> None:
    network = nn.Sequential(*layers(), Overwriting()).eval()
    with pytest.raises(ValueError, match=r"layer 3 \(Overwriting\) writes over its input"):
        certify(network, images(2), 0.01)


def test_the_assumption_stands_in_the_certificate() -> None:
    (one,) = certify(layers().eval(), images(1), 0.01)
    assert "it is the chain of its layers" in one.assumptions
    assert "1e-10" in one.assumptions


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_certificates_are_the_same_without_gradients(mode: Callable[[], object]) -> None:
    expected = certify(small_network(0), torch.full((2, 1, 6, 6), 0.5, dtype=torch.float64), 0.05)
    with mode():  # type: ignore[attr-defined]
        inside = torch.full((2, 1, 6, 6), 0.5, dtype=torch.float64)
        assert certify(small_network(0), inside, 0.05) == expected
    assert certify(small_network(0), inside, 0.05) == expected


@pytest.mark.parametrize(
    ("eps", "several"),
    [
        (torch.tensor(0.05, dtype=torch.float64), False),
        (np.float64(0.05), False),
        (np.array(0.05), False),
        (torch.tensor([0.05, 0.1], dtype=torch.float64), True),
        (np.array([0.05, 0.1]), True),
        ([torch.tensor(0.05, dtype=torch.float64), np.float64(0.1)], True),
        ((0.05, 0.1), True),
    ],
)
def test_radii_may_be_tensors_or_numpy_numbers(eps: object, several: bool) -> None:
    network, x = layers().eval(), images(3)
    found = certify(network, x, eps)  # type: ignore[call-overload]
    assert found == certify(network, x, [0.05, 0.1] if several else 0.05)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "eps", [torch.zeros(()), torch.tensor([0.1, torch.nan]), np.array([]), torch.ones(2, 2)]
)
def test_bad_radii_are_refused(eps: object) -> None:
    with pytest.raises(ValueError, match="eps must be"):
        certify(layers().eval(), images(2), eps)  # type: ignore[call-overload]


def test_embedded_tokens_are_certified_where_they_lie() -> None:
    """The layers of a language model from the embedded tokens on, with a head that reads all of
    them: what `TokenEmbedding` sends people to.
    """
    config = Config.language(
        7, 4, dim=4, heads=2, head_dim=2, value_dim=2, hidden=6, norm="centre", attention="l2"
    )
    model = Transformer(config, seed=1).double()
    embed, *rest = model.layers
    network = nn.Sequential(*rest[:-1], nn.Flatten(), nn.Linear(16, 3)).double().eval()
    tokens = 3 * embed(torch.tensor([[1, 5, 2, 0], [6, 3, 3, 1]])).detach()
    assert tokens.abs().max() > 1
    radius = radii(network, tokens)
    assert (radius > 0).all()
    assert broken(network, tokens, network(tokens).argmax(1), radius) == 0
    with pytest.raises(ValueError, match="pixels must lie"):
        certify(small_network(0), torch.full((1, 1, 6, 6), 1.5, dtype=torch.float64), 0.1)
