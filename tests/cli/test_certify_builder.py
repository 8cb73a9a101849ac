"""`attnscope certify WEIGHTS --builder package.module:function`."""

from __future__ import annotations

import importlib
import json
import linecache
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from attnscope.cli import main
from attnscope.data import images
from attnscope.studies import drawing
from attnscope.studies.certify import CertifyConfig
from attnscope.studies.certify.built import built
from attnscope.studies.certify.foreign import Foreign, ForeignConfig

SOURCE = """
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x.round())

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

def own():
    return Own()

def fails():
    raise RuntimeError("no such size")

def number():
    return 3
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drawing, "available", lambda: False)
    command = importlib.import_module("attnscope.cli.certify")
    small = partial(CertifyConfig, bisections=1, nearest=0, layers=(), explained=1)
    monkeypatch.setattr(command, "CertifyConfig", small)
    Path("networks_of_mine.py").write_text(SOURCE)
    sys.modules.pop("networks_of_mine", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions within one second
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    safetensors.torch.save_file(network.state_dict(), "net.safetensors")
    own = {f"layers.{name}": weight for name, weight in network.state_dict().items()}
    safetensors.torch.save_file(own, "own.safetensors")
    pixels = torch.rand(2, 1, 4, 4)
    labels = network(pixels).argmax(-1).numpy()
    np.savez("two.npz", images=pixels.numpy(), labels=labels, classes=["a", "b", "c"])
    return tmp_path


def run(*arguments: str) -> int:
    short = ("--data", "two.npz", "--split", "all", "--eps", "0.001", "--steps", "2")
    with pytest.raises(SystemExit) as stop:
        main(["certify", *short, "--out", "out", *arguments])
    return int(stop.value.code or 0)


def test_a_module_of_ones_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = "networks_of_mine:build"
    assert run("net.safetensors", "--builder", builder) == 0, capsys.readouterr().err
    assert f"{builder}: 2 images of two" in " ".join(capsys.readouterr().out.split())
    rows = [json.loads(line) for line in Path("out/certificates.jsonl").read_text().splitlines()]
    assert [row["certified"] for row in rows] == [True, True]
    assert [row["content_off"] for row in rows] == [None, None]


def test_what_certify_refuses_can_be_smoothed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("own.safetensors", "--builder", "networks_of_mine:own")
    assert run(*own) == 2
    assert "Own has a forward of its own" in " ".join(capsys.readouterr().err.split())
    smoothing = ("--method", "smoothing", "--sigma", "0.1", "--samples", "20")
    assert run(*own, *smoothing) == 0
    Path("networks_of_mine.py").write_text(SOURCE.replace("round", "floor"))
    sys.modules.pop("networks_of_mine")
    linecache.clearcache()
    assert run(*own, *smoothing) == 2  # the same weights, other code: rows are not taken up
    assert "other weights" in " ".join(capsys.readouterr().err.split())


SETTINGS = """
import os
from torch import nn
import scales_of_mine

def made(heads=2, first=True, activation="relu", step=1e-5):
    layer = nn.TransformerEncoderLayer(
        4, heads, 8, 0.0, activation, batch_first=True, norm_first=first, layer_norm_eps=step
    )
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return nn.Sequential(nn.Flatten(2), Scaled(), encoder, nn.Flatten(), nn.Linear(16, 3))

class Scaled(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 4, 4) * scales_of_mine.SCALE

def plain():
    return made()

def heads():
    return made(heads=4)

def first():
    return made(first=False)

def activation():
    return made(activation="gelu")

def step():
    return made(step=1.1e-5)

def surroundings():
    return made(heads=int(os.environ["HEADS"]))
"""


def test_a_network_is_known_by_more_than_its_weights(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights compute something else with each of these, and its rows are its own."""
    Path("scales_of_mine.py").write_text("SCALE = 1.0")
    Path("settings_of_mine.py").write_text(SETTINGS)
    for name in ("scales_of_mine", "settings_of_mine"):
        sys.modules.pop(name, None)
    torch.manual_seed(0)
    monkeypatch.syspath_prepend(str(place))
    settings = importlib.import_module("settings_of_mine")
    safetensors.torch.save_file(settings.plain().state_dict(), "settings.safetensors")
    held = images("two.npz", "all")

    def code(name: str) -> str:
        torch.manual_seed(1)  # weights before they are read
        return built(f"settings_of_mine:{name}", "settings.safetensors", held).config.code

    codes = [code(name) for name in ("plain", "heads", "first", "activation", "step")]
    monkeypatch.setenv("HEADS", "2")
    codes.append(code("surroundings"))
    monkeypatch.setenv("HEADS", "4")
    codes.append(code("surroundings"))
    monkeypatch.setattr(settings.scales_of_mine, "SCALE", 1.25)
    codes.append(code("plain"))
    # HEADS=2 is the network of `plain`, and 4 that of `heads`
    assert len(set(codes)) == len(codes) - 2
    monkeypatch.setattr(settings.scales_of_mine, "SCALE", 1.0)
    assert code("plain") == codes[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.safetensors", "--builder", "networks_of_mine"), "package.module:function"),
        (("net.safetensors", "--builder", "no_such_room:build"), "cannot be found"),
        (("net.safetensors", "--builder", "networks_of_mine:missing"), "cannot be found"),
        (("net.safetensors", "--builder", "networks_of_mine:fails"), "RuntimeError: no such size"),
        (("net.safetensors", "--builder", "networks_of_mine:number"), "a torch.nn.Module"),
        (("own.safetensors", "--builder", "networks_of_mine:build"), "does not fit what"),
        (("two.npz", "--builder", "networks_of_mine:build"), "cannot be read"),
        (("--builder", "networks_of_mine:build"), "goes with the safetensors file"),
    ],
)
def test_mistakes_are_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not Path("out").exists()


def test_the_content_of_torchs_encoder_is_switched_off() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double().eval()
    network = Foreign(layer, ForeignConfig((1, 4, 4), 3, "own", 0, 0))
    assert min(float(norm.max()) for norm in network.attention_norms()) > 0.01
    twin = network.with_content_off()
    assert twin is not None
    assert max(float(norm.max()) for norm in twin.attention_norms()) < 1e-12
    assert float(network.attention_norms()[0].max()) > 0.01
