"""`attnscope train` as a user meets it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope import nets
from attnscope.cli import main
from attnscope.training.training import Seen, Training

SMALL = [
    "--dim",
    "6",
    "--hidden",
    "8",
    "--batch",
    "16",
    "--watched",
    "6",
    "--eps",
    "1/10",
    "--rate",
    "0.02",
]


@pytest.fixture
def stripes(tmp_path: Path) -> str:
    """An .npz of two classes: bright above, bright below."""
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = generator.random((40, 4, 4)) * 0.4
    images[labels == 0, :2] += 0.6
    images[labels == 1, 2:] += 0.6
    np.savez(tmp_path / "stripes.npz", images=images.astype(np.float32), labels=labels)
    return str(tmp_path / "stripes.npz")


def run(*arguments: str) -> int:
    try:
        main(["train", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_train_leaves_a_network_its_control_and_a_log(
    stripes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "net"
    assert run("--data", stripes, *SMALL, "--steps", "40", "--out", str(out), "--control") == 0
    shown = capsys.readouterr().out
    assert "clean" in shown
    assert "certified at 0.1 (proved)" in shown
    assert "norm of A" in shown
    assert len(nets.load(out).attentions) == 1
    control = nets.load(out / "control")
    assert len(control.attentions) == 1
    assert control.attention_norms()[0].tolist() == [0.0, 0.0]
    notes = nets.describe(out)["notes"]
    assert notes["data"] == stripes
    assert notes["held_out"]["clean"] > 0.8
    assert [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()][
        -1
    ] == 40
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "control",
        "log.jsonl",
        "network.safetensors",
    ]


def test_strips_of_ones_own_pictures_are_trained_on_and_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = np.random.default_rng(0).random((40, 16, 16))
    np.savez("pictures.npz", images=made.astype(np.float32), labels=np.arange(40) % 2)
    assert run("--data", "strips-class:pictures.npz", *SMALL, "--steps", "2") == 0
    out = Path("train-strips-class-pictures-softmax")
    network, notes = nets.load(out), nets.describe(out)["notes"]
    assert network.config.image == (1, 16, 64)
    assert network.config.tokens == 4
    assert notes["data"] == "strips-class:pictures.npz"
    assert notes["shift"] == 0, "a moved strip would mix its pictures"
    asked = ["--images", "2", "--eps", "0.1", "--steps", "2", "--out", "proofs"]
    with pytest.raises(SystemExit, match="0"):
        main(["certify", str(out), *asked])
    assert json.loads(Path("proofs/summary.json").read_text())["network"]["images"] == 2
    assert run("--data", "pictures.npz", *SMALL, "--steps", "1", "--out", "moved") == 0
    assert nets.describe(Path("moved"))["notes"]["shift"] == 1


def test_names_with_markup_are_names(
    stripes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "[red]a[/bold] $x"
    place.mkdir(parents=True)
    data = Path(stripes).rename(place / "[b] $y.npz")
    options = ["--data", str(data), *SMALL, "--steps", "1", "--out", str(place / "[/out]")]
    assert run(*options) == 0, capsys.readouterr().err
    assert f"In {place / '[/out]'}: network.safetensors" in capsys.readouterr().out
    assert run(*options, "--resume") == 0
    assert f"{place / '[/out]'} is finished already." in capsys.readouterr().out
    assert run("--data", "[/b].npz", *SMALL) == 2
    assert "there is no data set '[/b].npz'" in capsys.readouterr().err


def test_the_same_seed_gives_the_same_files(stripes: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert (
            run(
                "--data",
                stripes,
                *SMALL,
                "--steps",
                "3",
                "--seed",
                "4",
                "--out",
                str(tmp_path / name),
            )
            == 0
        )
    assert (tmp_path / "a/network.safetensors").read_bytes() == (
        tmp_path / "b/network.safetensors"
    ).read_bytes()


def test_what_is_in_the_folder_is_not_lost_by_mistake(
    stripes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--data", stripes, *SMALL, "--steps", "2", "--out", str(tmp_path / "net")]
    assert run(*command) == 0
    assert run(*command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*command, "--resume") == 0
    assert "finished already" in capsys.readouterr().out
    assert run(*command, "--overwrite") == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--attention", "dotproduct"], "softmax"),
        (["--loss", "hinge"], "margin, gradient, certified"),
        (["--eps", "0"], "eps"),
        (["--eps", "small"], "36/255"),
        (["--minutes", "-1"], "minutes"),
        (["--minutes", "1", "--steps", "1"], "steps or minutes"),
        (["--patch", "3"], "tile"),
        (["--mlp", "conv"], "sll"),
        (["--pooling", "max"], "one of flatten, mean, got"),
        (["--pooling", "tokens"], "one of flatten, mean, got"),
        (["--attention", "none", "--control"], "leave --control out"),
        (["--resume"], "no training to resume"),
        (["--resume", "--overwrite"], "one of them"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str],
    says: str,
    stripes: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = arguments if "--data" in arguments else ["--data", stripes, *arguments]
    assert run(*given, "--out", str(tmp_path / "net")) == 2
    message = capsys.readouterr().err
    assert says in message
    assert "Traceback" not in message
    assert not (tmp_path / "net" / "config.json").exists()


def test_ctrl_c_keeps_a_checkpoint_that_resume_takes_up(
    stripes: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, whole = tmp_path / "net", Training.advance
    options = ["--data", stripes, *SMALL, "--steps", "30", "--out", str(out)]

    def pressed(training: Training) -> Seen:
        if training.step == 20:
            signal.raise_signal(signal.SIGINT)
        return whole(training)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "advance", pressed)
        assert run(*options) == 130
    assert "--resume" in capsys.readouterr().out
    assert (out / "training.safetensors").exists()
    assert json.loads((out / "log.jsonl").read_text().splitlines()[-1])["step"] == 21
    assert run(*options, "--resume") == 0
    assert run(*options[:-1], str(tmp_path / "whole")) == 0
    one, other = (nets.load(folder).state_dict() for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)
