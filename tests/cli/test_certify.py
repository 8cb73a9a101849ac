"""`attnscope certify`: files, tables, mistakes, Ctrl-C, and the alarm when a certificate is
broken.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from attnscope.certification import figures, report
from attnscope.cli import main
from attnscope.cli.certify import parsed_eps
from attnscope.nets import Config, Transformer, load, save

EPS = ("--eps", "0.02,77/255")
SMALL = {"dim": 4, "heads": 2, "head_dim": 2, "value_dim": 2, "hidden": 4}
command = importlib.import_module("attnscope.cli.certify")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny network that reads its images rightly by construction, a control, and the images as
    .npz.
    """
    place = tmp_path_factory.mktemp("certify")
    network = Transformer(Config.vit((1, 4, 4), 3, 2, **SMALL), seed=1)
    pixels = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = network(pixels).argmax(-1)
    np.savez(
        place / "images.npz", images=pixels.numpy(), labels=labels.numpy(), classes=["a", "b", "c"]
    )
    save(network, place / "net", {"data": str(place / "images.npz")})
    save(network.without_attention(seed=2), place / "other")
    return place


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "BISECTIONS", 1)
    monkeypatch.setattr(report, "BATCH", 4)
    monkeypatch.setattr(figures, "layer_bound_against_attack", lambda: b"picture")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def base(folder: Path, out: Path) -> list[object]:
    return [
        "certify",
        folder / "net",
        "--split",
        "all",
        *EPS,
        "--steps",
        10,
        "--restarts",
        2,
        "--out",
        out,
    ]


def test_a_whole_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(*base(folder, out), "--control", folder / "other") == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "certificates.jsonl").read_text().splitlines()]
    assert [(row["network"], row["image"], row["eps"]) for row in rows] == [
        (name, i, eps)
        for name in ("network", "control")
        for i in range(6)
        for eps in (0.02, 77 / 255)
    ]
    with (out / "certificates.csv").open() as table:
        assert [row["radius"] for row in csv.DictReader(table)] == [
            str(row["radius"]) for row in rows
        ]
    record = json.loads((out / "run.json").read_text())
    assert record["finished"]
    assert record["network"]["clean"] == 1.0
    mine = [row for row in rows if row["network"] == "network"]
    certified = sum(row["certified"] for row in mine if row["eps"] == 0.02)
    assert record["network"]["lines"][0]["certified"] == pytest.approx(certified / 6)
    norms = load(folder / "net").attention_norms()
    assert record["content"]["norms"] == [pytest.approx(norm.tolist(), rel=1e-6) for norm in norms]
    lines = [line.split() for line in printed.splitlines()]
    assert ["0.02", "this", "network", "100.0", f"{100 * certified / 6:.1f}", "100.0"] in [
        line[:6] for line in lines
    ]
    assert any(line[:2] == ["77/255", "this"] for line in lines)
    assert any(line[:3] == ["A", "set", "to"] for line in lines)
    assert sum(line[:2] == ["no", "attention"] for line in lines) == 2
    assert f"head by head: {float(norms[0][0]):.3g}, {float(norms[0][1]):.3g}" in printed
    assert "Nothing says how long" in printed
    assert {path.name for path in out.glob("*.png")} == {
        "accuracy-against-eps.png",
        "bound-against-attack.png",
        "nearest-images.png",
    }
    assert not list(out.glob("*.partial"))
    assert run(*base(folder, out)) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_the_control_beside_the_checkpoint_is_found(folder: Path, tmp_path: Path) -> None:
    save(load(folder / "net"), tmp_path / "net")
    assert command.control_of(tmp_path / "net") is None
    save(load(folder / "other"), tmp_path / "net" / "control")
    assert load(command.control_of(tmp_path / "net")).attentions == []


def test_a_control_with_another_budget_is_said() -> None:
    ours = {"data": "digits", "minutes": 3.0, "steps": None, "finished": True}
    assert command._budget(ours, dict(ours)) == ""
    assert "minutes 3.0 against 5.0" in command._budget(ours, ours | {"minutes": 5.0})
    assert "Nothing says" in command._budget({}, {})


def test_the_network_in_the_package_is_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "--images",
        2,
        "--eps",
        "0.05",
        "--steps",
        2,
        "--restarts",
        1,
        "--out",
        tmp_path / "out",
    )
    assert run("certify", *options) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "2 images of digits" in printed
    assert "no attention" in printed


def test_attention_that_died_is_said_to_be_dead(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(load(folder / "net").with_content_off(), tmp_path / "net")
    arguments = base(folder, tmp_path / "out")
    arguments[1] = tmp_path / "net"
    assert run(*arguments, "--data", folder / "images.npz", "--images", 1) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Attention is dead" in printed
    assert "costs 0.0 points" in printed
    assert "No control" in printed


def npz(path: Path, pixels: np.ndarray, classes: int = 3) -> str:
    np.savez(
        path,
        images=pixels,
        labels=np.zeros(len(pixels), int),
        classes=[str(k) for k in range(classes)],
    )
    return str(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--eps", "0"], "--eps must be above 0, got '0'"),
        (["--eps", "-1/255"], "--eps must be above 0"),
        (["--eps", "36/0"], "fractions such as 36/255"),
        (["--eps", "nan"], "fractions such as 36/255"),
        (["--eps", ""], "fractions such as 36/255"),
        (["--split", "validation"], "--split must be one of"),
        (["--data", "missing.npz"], "there is no data set 'missing.npz'"),
        (["--data", "OUTSIDE"], "pixels must lie in [0, 1]"),
        (["--data", "SHAPE"], "(1, 4, 4), but shape has (1, 6, 6)"),
        (["--data", "CLASSES"], "3 classes, but classes has 4"),
        (["--data", "CUT"], "truncated or damaged"),
        (["--control", "missing"], "holds no network"),
        (["--out", "/proc/nothing"], "choose another --out"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    made = {
        "OUTSIDE": lambda: npz(tmp_path / "outside.npz", np.full((3, 4, 4), 1.5)),
        "SHAPE": lambda: npz(tmp_path / "shape.npz", np.zeros((3, 6, 6))),
        "CLASSES": lambda: npz(tmp_path / "classes.npz", np.zeros((3, 4, 4)), 4),
    }
    (tmp_path / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08\x00cut")
    options = [
        made[option]() if option in made else option.replace("CUT", str(tmp_path / "cut.tar.gz"))
        for option in options
    ]
    assert run(*base(folder, tmp_path / "out"), *options) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_checkpoints_that_cannot_be_certified(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(place: Path, message: str) -> None:
        arguments = base(folder, tmp_path / "out")
        arguments[1] = place
        assert run(*arguments, "--data", folder / "images.npz") == 2
        assert message in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "out").exists()

    refused(tmp_path / "nowhere", "holds no network")
    save(load(folder / "net"), tmp_path / "old")
    description = json.loads((tmp_path / "old" / "config.json").read_text())
    (tmp_path / "old" / "config.json").write_text(json.dumps(description | {"version": 99}))
    refused(tmp_path / "old", "version 99")
    save(load(folder / "net"), tmp_path / "nan")
    (weights,) = (tmp_path / "nan").glob("*.safetensors")
    state = safetensors.torch.load_file(weights)
    next(iter(state.values())).view(-1)[0] = float("nan")
    weights.write_bytes(safetensors.torch.save(state))
    refused(tmp_path / "nan", "sha256 differs")
    description = json.loads((tmp_path / "nan" / "config.json").read_text())
    description["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (tmp_path / "nan" / "config.json").write_text(json.dumps(description))
    refused(tmp_path / "nan", "NaN")
    save(Transformer(Config.language(5, 4, **SMALL)), tmp_path / "language")
    refused(tmp_path / "language", "language model")
    save(Transformer(Config.vit((1, 4, 4), 3, 2, norm="layer", **SMALL)), tmp_path / "norm")
    refused(tmp_path / "norm", "bound")
    save(Transformer(Config.vit((1, 4, 4), 3, 2, **SMALL)), tmp_path / "silent")
    assert run("certify", tmp_path / "silent", "--out", tmp_path / "out") == 2
    assert "pass --data" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_certified(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = command.evaluate

    def stopped(plan: report.Plan) -> Iterator[list[report.Row]]:
        yield from itertools.islice(whole(plan), 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "evaluate", stopped)
    assert run(*base(folder, tmp_path / "out")) == 130
    assert len((tmp_path / "out" / "certificates.jsonl").read_text().splitlines()) == 4 * 2
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert not record["finished"]
    off = load(folder / "net").with_content_off()
    with np.load(folder / "images.npz") as kept:
        right = off(torch.from_numpy(kept["images"][:4])).argmax(-1) == torch.from_numpy(
            kept["labels"][:4]
        )
    assert record["content"]["accuracy_without"] == pytest.approx(float(right.double().mean()))
    assert "kept" in capsys.readouterr().out


def test_a_broken_certificate_is_an_alarm(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = report.certify

    def unsound(
        network: torch.nn.Module,
        images: torch.Tensor,
        eps: list[float],
        labels: torch.Tensor,
        bisections: int,
    ) -> object:
        made = honest(network, images, eps, labels, bisections=bisections)
        return [
            [replace(one, verdict=True, method="NT4", radius=max(eps)) for one in several]
            for several in made
        ]

    monkeypatch.setattr(report, "certify", unsound)
    assert run(*base(folder, tmp_path / "out")) == 1
    error = capsys.readouterr().err
    assert "UNSOUND" in error
    assert "bug" in error
    assert (tmp_path / "out" / "certificates.jsonl").exists()


def test_eps() -> None:
    assert parsed_eps("108/255, 0.1,36/255,0.10") == {
        0.1: "0.1",
        36 / 255: "36/255",
        108 / 255: "108/255",
    }
    assert parsed_eps("1e-3") == {0.001: "1e-3"}
