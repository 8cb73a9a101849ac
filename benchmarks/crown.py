"""Side by side with CROWN of auto_LiRPA: certified radii, CPU time and memory on the same networks,
and beside both the distance of misread images, above which nobody can prove anything.

auto_LiRPA is not a dependency: PyPI's 0.3 does not run on this torch, 0.7.1 from its repository
does. With a checkout and what it imports on PYTHONPATH, `python -m benchmarks crown` measures,
writes `benchmarks/crown-DATE.json`, which names its version, and prints the table; without it, it
says so loudly. `python -m benchmarks.crown SIDE NETWORK` is one measurement in a process of its
own.
"""

from __future__ import annotations

import datetime
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attacks.projected import pgd
from attnscope.certification import certify
from attnscope.certification.chain import chain
from attnscope.certification.telescope import Clean
from attnscope.data.pictures import images
from attnscope.nets import Config, Transformer, load, shipped
from benchmarks.certificates import networks
from benchmarks.timing import peak_memory

SIDES = ("ours", "CROWN", "attack")
HEADROOM = {
    "tiny digits, depth 1, untrained": "softmax, depth 1, 0 steps",
    "tiny digits, depth 1, trained": "softmax, depth 1, 80 steps",
    "tiny digits, depth 2, untrained": "softmax, depth 2, 0 steps",
    "tiny digits, depth 2, trained": "softmax, depth 2, 80 steps",
}
"""The networks of benchmarks/certificates.py that the bar is asked of: live attention, 8 x 8
digits.
"""
IMAGES = {
    **dict.fromkeys(HEADROOM, 6),
    "tiny, depth 1": 6,
    "tiny, depth 2": 6,
    "ReLU, tiny, depth 1": 6,
    "digits": 3,
    "65 x 192, depth 2": 1,
}
BISECTIONS = 8
SECONDS = 120
"""CPU time after which a measurement counts as too long."""
MEMORY = 12 * 2**30
TWICE = 2.0
"""Radii on the networks of HEADROOM must be so many times those of CROWN, where an attack leaves
room for that.
"""
MILLISECONDS = 500.0
STEPS = 12
"""Radii at which each image is attacked, by bisection from twice where the linear part of a margin
alone eats it.
"""


def main() -> dict[str, Any]:
    version = _version()
    if version is None:
        _loudly("auto_LiRPA is not installed: nothing is compared. See benchmarks/crown.py.")
        return {}
    measured = {name: {side: _alone(side, name) for side in SIDES} for name in IMAGES}
    kept(measured, version)
    return compared(measured, version)


def kept(measured: dict[str, dict[str, Any]], version: str) -> None:
    """All that was measured, failures too, in the file of this day."""
    today = datetime.date.today().isoformat()
    held = {"auto_LiRPA": version, "torch": torch.__version__, "date": today, "all": measured}
    path = Path(__file__).parent / f"crown-{today}.json"
    path.write_text(json.dumps(held, indent=1) + "\n")


def compared(measured: dict[str, dict[str, Any]], version: str) -> dict[str, Any]:
    """Ratios where both sides have an answer, and the time of ours on the largest network."""
    found: dict[str, Any] = {}
    for name, both in measured.items():
        mine, theirs = both["ours"], both["CROWN"]
        if "radius" not in mine or "radius" not in theirs:
            continue
        attacked = both.get("attack", {}).get("radius")
        ceiling = None if attacked is None else attacked / theirs["radius"]
        asked = name in HEADROOM and ceiling is not None and ceiling >= TWICE
        found[f"mean certified radius over that of CROWN ({version}), {name}"] = {
            "ratio": mine["radius"] / max(theirs["radius"], 1e-12),
            **({"must": TWICE} if asked else {}),
            **both,
        }
        if ceiling is not None:
            what = f"distance of misread images over CROWN's radius, no proof beats it, {name}"
            found[what] = {"ratio": ceiling}
        found[f"CPU time per image and eps over that of CROWN ({version}), {name}"] = {
            "value": mine["seconds"] / theirs["seconds"]
        }
    largest = measured["65 x 192, depth 2"]["ours"]
    if "seconds" in largest:
        found["certificate per image and eps, 65 x 192, depth 2, in ms"] = {
            "value": 1000 * largest["seconds"],
            "at most": MILLISECONDS,
        }
    return found


def _version() -> str | None:
    command = [sys.executable, "-c", "import auto_LiRPA; print(auto_LiRPA.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"auto_LiRPA {done.stdout.split()[-1]}" if done.returncode == 0 else None


def _loudly(sentence: str) -> None:
    print(f"\n*** {sentence} ***\n", file=sys.stderr)


def _alone(side: str, name: str) -> dict[str, Any]:
    """One side on one network in a process of its own, within limits of time and memory."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.crown", side, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    last = (done.stderr.strip().splitlines() or [""])[-1]
    _loudly(f"{side} on {name} ended with code {done.returncode}: {last}")
    return {"failed": last or f"more than {SECONDS} s of CPU time or {MEMORY >> 30} GB"}


def network_of(name: str) -> tuple[Transformer, Tensor]:
    """A network and its images, pixels in [0, 1]."""
    if name == "digits":
        held = images("digits", "test")
        return load(shipped()).double().eval(), held.pixels[: IMAGES[name]].double()
    if name in HEADROOM:
        held = images("digits", "test")
        pixels = held.pixels.double()
        made = itertools.islice(networks(pixels, held.labels), 4)
        return dict(made)[HEADROOM[name]], pixels[: IMAGES[name]]
    generator = torch.Generator().manual_seed(0)
    if "tiny" in name:
        shape, depth = (1, 6, 6), int(name[-1])
        corner = {"activation": "relu", "mlp": "residual"} if "ReLU" in name else {}
        config = Config.vit(
            shape, 4, 2, dim=12, heads=2, head_dim=6, value_dim=6, hidden=16, depth=depth, **corner
        )
    else:
        shape = (1, 5, 13)
        config = Config.vit(
            shape, 10, 1, dim=192, heads=3, head_dim=64, value_dim=64, hidden=384, depth=2,
        )  # fmt: skip
    pixels = torch.rand(IMAGES[name], *shape, dtype=torch.float64, generator=generator)
    return Transformer(config, seed=1).double().eval(), pixels


class Plain(nn.Module):
    """The same network on patches, written in operations that auto_LiRPA bounds."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.embedding, *blocks, self.head = list(network.layers)
        self.blocks = nn.ModuleList(
            _PlainAttention(one) if hasattr(one, "heads") else _PlainMLP(one) for one in blocks
        )
        self.flat = network.config.pooling == "flatten"

    def forward(self, patches: Tensor) -> Tensor:
        x = torch.matmul(patches - 0.5, self.embedding.weight.t()) + self.embedding.position
        for block in self.blocks:
            x = block(x)
        x = x.flatten(1) if self.flat else x.mean(1)
        return torch.matmul(x, self.head.weight.t()) + self.head.bias


class _PlainAttention(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        heads = layer.heads()
        self.scale, self.step, self.count = heads.scale, layer.step, heads.count
        for name in ("query", "key", "value", "output", "query_bias", "output_bias"):
            self.register_buffer(name, getattr(heads, name).detach())
        self.register_buffer(
            "places", None if heads.position_bias is None else heads.position_bias.detach()
        )

    def forward(self, x: Tensor) -> Tensor:
        total = self.output_bias
        for h in range(self.count):
            q = torch.matmul(x, self.query[h].t()) + self.query_bias[h]
            k, v = torch.matmul(x, self.key[h].t()), torch.matmul(x, self.value[h].t())
            scores = self.scale * torch.matmul(q, k.transpose(1, 2))
            scores = scores if self.places is None else scores + self.places[h]
            mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
            total = total + torch.matmul(mixed, self.output[h].t())
        return x + self.step * total


class _PlainMLP(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.rows().detach()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", layer.bias.detach())
        self.register_buffer("written", layer.written(weight).detach())
        self.width = getattr(layer.activation, "half_width", None)

    def forward(self, x: Tensor) -> Tensor:
        u = torch.matmul(x, self.weight.t()) + self.bias
        if self.width is None:
            made = torch.relu(u)
        else:  # the parabola between two corners
            above = torch.relu(u - self.width)
            between = torch.relu(u + self.width) - above
            made = between * between / (4 * self.width) + above
        return x + torch.matmul(made, self.written)


def ours(network: Transformer, x: Tensor) -> tuple[float, int]:
    found = certify(network, x, 1e-4, bisections=BISECTIONS)
    return sum(one.radius for one in found) / len(found), BISECTIONS + 1


def crown(network: Transformer, x: Tensor) -> tuple[float, int]:
    """The same bisection, margins bounded by CROWN in float32."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    plain = Plain(network)
    patches = network.layers[0].patches(x)
    assert torch.allclose(plain(patches), network(x), atol=1e-9)
    plain, patches, total = plain.float(), patches.float(), 0.0
    for one in patches.split(1):
        logits = plain(one)
        label, classes = int(logits.argmax()), logits.shape[1]
        others = [number for number in range(classes) if number != label]
        margins = torch.zeros(1, classes - 1, classes)
        margins[0, :, label] = 1
        margins[0, range(classes - 1), others] = -1
        bounded = BoundedModule(plain, one, device="cpu", verbose=False)

        def proves(
            eps: float, bounded: Any = bounded, one: Tensor = one, c: Tensor = margins
        ) -> bool:
            inside = BoundedTensor(one, PerturbationLpNorm(norm=2, eps=eps))
            with torch.no_grad():
                low, _ = bounded.compute_bounds(x=(inside,), C=c, method="CROWN", bound_upper=False)
            return bool((low > 0).all())

        total += _bisected(proves)
    return total / len(patches), BISECTIONS + 1


def attack(network: Transformer, x: Tensor) -> tuple[float, int]:
    """The distance of misread images that PGD finds: no sound radius is larger. An image that is
    never misread counts with the largest radius tried.
    """
    network = network.requires_grad_(False)
    labels = network(x).argmax(1)
    low = torch.zeros(len(x), dtype=torch.float64)
    high = 2 * _limits(network, x, labels)
    for _ in range(STEPS):
        middle = (low + high) / 2
        hit = pgd(network, x, labels, middle).succeeded
        low, high = torch.where(hit, low, middle), torch.where(hit, middle, high)
    return float(high.mean()), STEPS


def _limits(network: Transformer, x: Tensor, labels: Tensor) -> Tensor:
    clean = Clean(chain(network), x.clone())
    clean.aim(labels)
    return clean.limits()


def _bisected(proves: Callable[[float], bool]) -> float:
    """As many radii as ours tries, on a scale that holds both answers."""
    low, high = 0.0, 0.5
    for _ in range(BISECTIONS + 1):
        middle = (low + high) / 2
        low, high = (middle, high) if proves(middle) else (low, middle)
    return low


if __name__ == "__main__":
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    side = {"ours": ours, "CROWN": crown, "attack": attack}[sys.argv[1]]
    given = network_of(sys.argv[2])
    held, begun = peak_memory(), time.process_time()
    radius, tried = side(*given)
    taken = time.process_time() - begun
    print(
        json.dumps({
            "radius": radius,
            "seconds": taken / (tried * len(given[1])),
            "MB": (peak_memory() - held) / 1e6,
            "images": len(given[1]),
        })
    )  # fmt: skip
