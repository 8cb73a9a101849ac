"""`attnscope certify`: files, tables, mistakes, Ctrl-C, and the alarm when a certificate is
broken.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from attnscope.cli import main
from attnscope.cli.certify import parsed_eps
from attnscope.nets import Config, Transformer, load, save
from attnscope.studies.certify import CertifyConfig, evaluation, study
from attnscope.studies.certify.rows import NetworkRow
from attnscope.studies.certify.summary import on_the_control

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
    small = partial(CertifyConfig, bisections=1, shard=4, nearest=2, layers=(1,), explained=0)
    monkeypatch.setattr(command, "CertifyConfig", small)
    monkeypatch.setattr(study, "LAYER_EPS", (0.1, 1.0))


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
    assert record["study"] == "certify"
    assert record["options"]["eps"] == EPS[1]
    kept = json.loads((out / "summary.json").read_text())
    assert kept["network"]["clean"] == 1.0
    mine = [row for row in rows if row["network"] == "network"]
    certified = sum(row["certified"] for row in mine if row["eps"] == 0.02)
    assert kept["network"]["lines"][0]["certified"] == pytest.approx(certified / 6)
    norms = load(folder / "net").attention_norms()
    assert kept["content"]["norms"] == [pytest.approx(norm.tolist(), rel=1e-6) for norm in norms]
    lines = [line.split() for line in printed.splitlines()]
    assert ["0.02", "this", "network", "100.0", f"{100 * certified / 6:.1f}", "100.0"] in [
        line[:6] for line in lines
    ]
    assert any(line[:2] == ["77/255", "this"] for line in lines)
    assert any(line[:3] == ["A", "set", "to"] for line in lines)
    assert sum(line[:2] == ["the", "control"] for line in lines) == 2
    told = f"head by head: {float(norms[0][0]):.3g}, {float(norms[0][1]):.3g}"
    assert told in " ".join(printed.split())
    assert "Nothing says how long" in printed
    assert {path.name for path in out.glob("*.png")} == {
        "accuracy-against-eps.png",
        "bound-against-attack.png",
        "nearest-images.png",
    }
    assert {path.stem for path in out.glob("*.svg")} == {path.stem for path in out.glob("*.png")}
    assert run(*base(folder, out)) == 2  # without the control: other options
    assert "--overwrite" in capsys.readouterr().err


def test_the_control_beside_the_checkpoint_is_found(folder: Path, tmp_path: Path) -> None:
    save(load(folder / "net"), tmp_path / "net")
    assert study.control_of(str(tmp_path / "net")) is None
    save(load(folder / "other"), tmp_path / "net" / "control")
    found = study.control_of(str(tmp_path / "net"))
    assert found is not None
    assert load(found).attentions == []


def test_a_control_with_another_budget_is_said() -> None:
    ours = NetworkRow("network", "net", "softmax", 2, 1, "digits", "digits", 3.0, None, True)
    assert on_the_control([ours, ours]) == ""
    assert "minutes 3.0 against 5.0" in on_the_control([ours, ours._replace(minutes=5.0)])
    silent = ours._replace(data=None, minutes=None, finished=None)
    assert "Nothing says" in on_the_control([silent, silent])
    assert "No control" in on_the_control([ours])


@pytest.mark.usefixtures("without_pictures")
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
    assert "the control" in printed


@pytest.mark.usefixtures("without_pictures")
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
    save(Transformer(Config.vit((1, 4, 4), 3, 2, attention="linear", **SMALL)), tmp_path / "linear")
    refused(tmp_path / "linear", "bound")
    save(Transformer(Config.vit((1, 4, 4), 3, 2, **SMALL)), tmp_path / "silent")
    assert run("certify", tmp_path / "silent", "--out", tmp_path / "out") == 2
    assert "Pass --data" in capsys.readouterr().err


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int, number: int) -> list[int]:
    """Send this process a signal while it is in the shard after so many; the shards that ran."""
    whole, ran = study.evaluate, list[int]()

    def stopped(cell: Any, workbench: Any) -> Any:
        ran.append(cell.first)
        if len(ran) > shards:
            os.kill(os.getpid(), number)
        return whole(cell, workbench)

    monkeypatch.setattr(study, "evaluate", stopped)
    return ran


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_keeps_what_was_certified(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(monkeypatch, 1, signal.SIGINT)
    assert run(*base(folder, tmp_path / "out")) == 130
    assert len((tmp_path / "out" / "certificates.jsonl").read_text().splitlines()) == 4 * 2
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert not record["finished"]
    off = load(folder / "net").with_content_off()
    with np.load(folder / "images.npz") as kept:
        right = off(torch.from_numpy(kept["images"][:4])).argmax(-1) == torch.from_numpy(
            kept["labels"][:4]
        )
    content = json.loads((tmp_path / "out" / "summary.json").read_text())["content"]
    assert content["accuracy_without"] == pytest.approx(float(right.double().mean()))
    assert "kept" in capsys.readouterr().out


@pytest.mark.usefixtures("without_pictures")
def test_the_same_command_goes_on_after_sigterm(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def certificates(out: Path) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (out / "certificates.jsonl").read_text().splitlines()]
        return [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]

    arguments = [*base(folder, tmp_path / "out"), "--control", folder / "other"]
    with monkeypatch.context() as patched:
        assert stop_after(patched, 1, signal.SIGTERM) == []
        assert run(*arguments) == 143
    assert len(certificates(tmp_path / "out")) == 4 * 2
    capsys.readouterr()
    with monkeypatch.context() as patched:
        ran = stop_after(patched, 99, signal.SIGTERM)
        assert run(*arguments) == 0
        assert ran == [4, 0, 4]  # the first shard of the network was there
    assert "3 cells were there already" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "run.json").read_text())["finished"]
    arguments[arguments.index(tmp_path / "out")] = tmp_path / "other"
    assert run(*arguments) == 0
    assert certificates(tmp_path / "out") == certificates(tmp_path / "other")


def test_names_with_markup_are_names(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "[red]a[/bold] $x_[b]"
    save(load(folder / "net"), place / "net [/]")
    with np.load(folder / "images.npz") as kept:
        np.savez(
            place / "[b] $y.npz",
            images=kept["images"],
            labels=kept["labels"],
            classes=["[/a]", "$b", "[c]"],
        )
    arguments = base(folder, place / "[out] [/]")
    arguments[1] = place / "net [/]"
    data = ("--data", place / "[b] $y.npz", "--images", 4)
    assert run(*arguments, *data) == 0, capsys.readouterr().err
    assert "4 images of [b] $y" in capsys.readouterr().out
    assert (place / "[out] [/]" / "nearest-images.png").exists()
    assert run(*arguments, "--data", "[/b].npz") == 2
    assert "there is no data set '[/b].npz'" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
def test_a_broken_certificate_is_an_alarm(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = evaluation.certify

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

    monkeypatch.setattr(evaluation, "certify", unsound)
    assert run(*base(folder, tmp_path / "out")) == 1
    printed = capsys.readouterr()
    for stream in printed:
        assert "UNSOUND" in stream
        assert "bug" in stream
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["left_out"][0].startswith("UNSOUND")
    assert (tmp_path / "out" / "certificates.jsonl").exists()


def test_eps() -> None:
    assert parsed_eps("108/255, 0.1,36/255,0.10") == {
        0.1: "0.1",
        36 / 255: "36/255",
        108 / 255: "108/255",
    }
    assert parsed_eps("1e-3") == {0.001: "1e-3"}
