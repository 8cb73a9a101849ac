"""Certificates of networks: never broken by an attack, exact where the truth is known, monotone,
and honest about how they were found.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from certify_cases import Bowl, Sine, broken, small_network
from torch import Tensor, nn

from attnscope.certification import Certificate, certify, telescope
from attnscope.certification.chain import chain
from attnscope.certification.telescope import Clean


def images(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(
        count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def radii(found: list[Certificate]) -> Tensor:
    return torch.tensor([one.radius for one in found], dtype=torch.float64)


def test_of_a_linear_network_the_radius_is_the_distance_to_the_boundary() -> None:
    torch.manual_seed(0)
    network = (
        nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Identity(), nn.Linear(7, 4))
        .double()
        .eval()
    )
    x = images(5, 3, 4)
    z, w = network(x).detach(), (network[3].weight @ network[1].weight).detach()
    y = z.argmax(1)
    distance = (z.gather(1, y[:, None]) - z) / torch.linalg.vector_norm(w[y][:, None] - w, dim=-1)
    truth = distance.masked_fill(distance.isnan(), torch.inf).amin(1)
    found = certify(network, x, 1e-3, bisections=30)
    assert torch.allclose(radii(found), truth, rtol=1e-6)
    for i, exact in enumerate(truth.tolist()):
        below, above = certify(network, x[i : i + 1], [0.9999 * exact, 1.0001 * exact])
        assert below[0].verdict
        assert not above[0].verdict


@pytest.mark.parametrize("seed", range(4))
def test_the_telescoped_identity_is_exact_at_every_cut(seed: int) -> None:
    network, x = small_network(seed), images(3, 1, 6, 6, seed=seed)
    moved = images(3, 1, 6, 6, seed=seed + 10)
    layers = chain(network)
    clean, other = Clean(layers, x), Clean(layers, moved)
    labels = torch.tensor([0, 2, 3])
    clean.aim(labels)
    other.aim(labels)
    change = other.margins - clean.margins
    derivative = [
        torch.func.jvp(layer.layer, (a,), (b.detach() - a,))[1]
        for layer, a, b in zip(layers, clean.values, other.values, strict=False)
    ]
    for cut in range(len(layers) + 1):
        total = (clean.gradients[cut] * (other.values[cut] - clean.values[cut])).flatten(2).sum(-1)
        for number in range(cut, len(layers)):
            rest = other.values[number + 1] - clean.values[number + 1] - derivative[number]
            total = total + (clean.gradients[number + 1] * rest).flatten(2).sum(-1)
        assert torch.allclose(total, change, atol=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_no_attack_breaks_a_certificate(seed: int) -> None:
    network, x = small_network(seed), images(12, 1, 6, 6, seed=seed)
    found = certify(network, x, [0.02, 0.1], bisections=8)
    radius = radii(found[0])
    assert (radius > 0).sum() >= 6
    assert broken(network, x, network(x).argmax(1), radius) == 0


def bowl(shrink: float) -> tuple[nn.Module, Tensor, float]:
    """A network whose largest robust radius is known: class 0 wins by 1 - |x'|^2 against 0, around
    an image near the origin.
    """
    head = nn.Linear(4, 2).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0, 0, 0, 1], [0, 0, 0, 0]]))
        head.bias.copy_(torch.tensor([1.0, 0]))
    x = torch.tensor([[0.3, 0.0, 0.0]], dtype=torch.float64)
    return nn.Sequential(Bowl(2.0, shrink), head).eval(), x, 0.7


def test_a_curved_network_is_certified_up_to_its_true_radius() -> None:
    network, x, truth = bowl(1.0)
    (found,) = certify(network, x, 0.1, bisections=30)
    assert found.radius == pytest.approx(truth, rel=1e-6)
    assert broken(network, x, torch.tensor([0]), torch.tensor([found.radius])) == 0


@pytest.mark.parametrize("shrink", [0.5, 0.8])
def test_planted_unsound_bounds_are_caught(shrink: float) -> None:
    network, x, truth = bowl(shrink)
    (found,) = certify(network, x, 0.1, bisections=30)
    assert found.radius > truth
    assert broken(network, x, torch.tensor([0]), torch.tensor([found.radius])) == 1


def test_planted_unsound_radii_are_caught() -> None:
    """The attack reaches some image of this network within 1.05 times the distance to the boundary,
    so an inflated radius is seen.
    """
    torch.manual_seed(1)
    network, x = nn.Sequential(nn.Linear(5, 3)).double().eval(), images(6, 5)
    radius = radii(certify(network, x, 1e-3, bisections=20))
    labels = network(x).argmax(1)
    assert broken(network, x, labels, radius) == 0
    assert broken(network, x, labels, 1.05 * radius) == 6


def test_a_layer_without_remainder_is_composed_layer_by_layer() -> None:
    torch.manual_seed(0)
    network, x = (
        nn.Sequential(nn.Linear(6, 6), Sine(), nn.Linear(6, 3)).double().eval(),
        images(8, 6),
    )
    with torch.no_grad():
        network[0].weight.mul_(3)
    found = certify(network, x, 0.01, bisections=6)
    assert {one.method for one in found} <= {"layer-wise", "none"}
    head = network[2].weight
    z = network(x).detach()
    y = z.argmax(1)
    slope = torch.linalg.vector_norm(head[y][:, None] - head, dim=-1) * torch.linalg.matrix_norm(
        network[0].weight, 2
    )
    best = ((z.gather(1, y[:, None]) - z) / slope).nan_to_num(nan=torch.inf).amin(1)
    assert (radii(found) > 0).all()
    assert (radii(found) <= best * (1 + 1e-9)).all()
    assert broken(network, x, y, radii(found)) == 0


def test_verdicts_are_monotone_and_agree_with_radii() -> None:
    network, x = small_network(0), images(10, 1, 6, 6)
    eps = [0.3, 0.01, 0.1, 0.03]
    found = certify(network, x, eps, bisections=5)
    for i in range(10):
        assert len({row[i].radius for row in found}) == 1
        for row, one in zip(found, eps, strict=True):
            assert row[i].eps == one
            assert row[i].verdict == (row[i].radius >= one) or row[i].radius > one
            assert (row[i].method == "none") == (not row[i].verdict)
    by_size = [row for _, row in sorted(zip(eps, found, strict=True))]
    counts = [sum(one.verdict for one in row) for row in by_size]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_images_one_by_one_give_the_same_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = small_network(2), images(7, 1, 6, 6)
    together = certify(network, x, [0.02, 0.1], bisections=3)
    monkeypatch.setattr(telescope, "ENTRIES", 1)
    apart = [certify(network, one[None], [0.02, 0.1], bisections=3) for one in x]
    for number, row in enumerate(together):
        for i, one in enumerate(row):
            single = apart[i][number][0]
            assert dataclasses.replace(one, radius=0.0, margin=0.0) == dataclasses.replace(
                single, radius=0.0, margin=0.0
            )
            assert one.radius == pytest.approx(single.radius, rel=1e-6)
            assert one.margin == pytest.approx(single.margin, rel=1e-9)


def test_another_label_than_the_predicted_one_is_not_certified() -> None:
    network, x = small_network(0), images(4, 1, 6, 6)
    predicted = network(x).argmax(1)
    wrong = certify(network, x, 1e-6, labels=(predicted + 1) % 4, bisections=3)
    assert not any(one.verdict for one in wrong)
    assert all(one.radius == 0 and one.margin < 0 for one in wrong)
    assert certify(network, x, 0.01, labels=predicted) == certify(network, x, 0.01)


def test_margin_is_that_of_the_network() -> None:
    network, x = small_network(1), images(4, 1, 6, 6)
    top = network(x).topk(2).values
    found = certify(network, x, 0.01)
    assert torch.allclose(
        torch.tensor([one.margin for one in found], dtype=torch.float64),
        top[:, 0] - top[:, 1],
        atol=1e-7,
    )
    assert {(one.kind, "float64" in one.assumptions) for one in found} == {("proved", True)}


def test_a_float32_network_is_left_as_it_is() -> None:
    network = small_network(0).float()
    before = {name: part.clone() for name, part in network.state_dict().items()}
    certify(network, images(2, 1, 6, 6).float(), 0.01)
    assert all(torch.equal(part, before[name]) for name, part in network.state_dict().items())
    assert next(network.parameters()).dtype == torch.float32
    assert next(network.parameters()).requires_grad
