"""`attnscope flow`: what it leaves and prints, and one sentence with exit code 2 for every
mistake.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from attnscope.cli import main
from attnscope.studies import Workbench
from attnscope.studies.matrices import MATRICES, named_matrix

SMALL = ["--frames", "4", "--particles", "6"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["flow", *arguments])
    return int(end.value.code or 0)


def loaded(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as data:
        return dict(data)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--space", "sphere", "--dim", "3"],
        [
            "--attention",
            "l2",
            "--heads",
            "2",
            "--scores",
            "random",
            "--values",
            "symmetric",
            "--causal",
        ],
        ["--dim", "1", "--attention", "sigmoid"],
    ],
)
def test_a_particle_flow_leaves_data_picture_and_animation(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, *arguments, "--time", "1", "--out", "results") == 0
    data = loaded("results/flow.npz")
    assert data["x"].shape[:2] == (len(data["times"]), 6)
    assert data["times"][-1] == pytest.approx(1.0)
    assert str(data["status"]) == "finished"
    assert Path("results/flow.png").read_bytes().startswith(b"\x89PNG")
    assert Path("results/flow.gif").read_bytes().startswith(b"GIF8")
    assert {path.name for path in Path("results").iterdir()} == {
        *(
            "flow.gif",
            "flow.npz",
            "flow.png",
            "flow.svg",
            "run.json",
            "results.sqlite",
            "report.html",
        ),
        *(f"{kind}.{form}" for kind in ("results", "clouds") for form in ("csv", "jsonl")),
    }
    record = json.loads(Path("results/run.json").read_text())
    assert record["study"] == "flow"
    assert record["finished"] is True
    assert record["options"]["particles"] == 6
    printed = capsys.readouterr().out
    assert "finished" in printed
    assert "clusters" in printed
    if "--space" in arguments:
        assert np.allclose(np.linalg.norm(data["x"], axis=-1), 1)
        assert "change +" in printed


def test_a_gaussian_that_blows_up_says_when(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--gaussian", "--frames", "8", "--time", "50") == 0
    data = loaded("flow-softmax/flow.npz")
    top = np.linalg.eigvalsh(data["cov"][0])[-1]
    assert str(data["status"]) == "blew up"
    assert float(data["stop_time"]) == pytest.approx(1 / (2 * top), rel=1e-3)
    assert len(data["times"]) >= 4
    printed = capsys.readouterr().out
    assert "blew up" in printed
    assert "2 -> 1" in printed


@pytest.mark.usefixtures("without_pictures")
def test_matrices_and_gains_come_from_files() -> None:
    np.save("a.npy", np.zeros((2, 2)))
    np.save("v.npy", np.diag([1.0, 2.0]))
    assert (
        run(*SMALL, "--scores", "a.npy", "--values", "v.npy", "--time", "1", "--out", "files") == 0
    )
    x = loaded("files/flow.npz")["x"]
    growth = np.expm1([1.0, 2.0])
    assert np.allclose(x[-1] - x[0], growth * x[0].mean(0), atol=1e-5)
    np.save("g.npy", np.array([0.5, 2.0]))
    assert run(*SMALL, "--space", "g.npy", "--time", "1", "--out", "surface") == 0
    y = loaded("surface/flow.npz")["x"] / (np.sqrt(2) * np.array([0.5, 2.0]))
    assert np.allclose(np.linalg.norm(y, axis=-1), 1)


@pytest.mark.parametrize("name", MATRICES)
def test_named_matrices_are_what_they_are_called(name: str) -> None:
    import torch

    m = named_matrix(name, 4, torch.Generator().manual_seed(0))
    eye = torch.eye(4, dtype=m.dtype)
    expected = {
        "identity": torch.equal(m, eye),
        "minus-identity": torch.equal(m, -eye),
        "random": not torch.allclose(m, m.mT),
        "symmetric": torch.equal(m, m.mT),
        "skew": torch.equal(m, -m.mT),
        "low-rank": (
            int(torch.linalg.matrix_rank(m)) == 2 and torch.linalg.eigvalsh(m).max() < 1e-12
        ),
    }
    assert expected[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention", "cosine"], "attention must be one of"),
        (["--scores", "cauchy"], "a matrix is one of"),
        (["--scores", "missing.npy"], "no file missing.npy"),
        (["--space", "torus"], "space must be"),
        (["--time", "-1"], "time must be"),
        (["--gap", "-1"], "gap must be"),
        (["--rtol", "1e400"], "rtol must be"),
        (["--seed", str(2**64)], "seed must be a whole number from 0"),
        (["--dim", "100000000"], "choose fewer frames or fewer tokens"),
        (["--method", "Euler"], "method must be one of"),
        (["--gaussian", "--attention", "sigmoid"], "no closed form"),
        (["--gaussian", "--space", "sphere"], "surface"),
        (["--attention", "sinkhorn", "--causal"], "no causal form"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_is_one_sentence_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not list(Path().iterdir())


def test_a_file_that_is_no_matrix_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.npy").write_bytes(b"")
    np.savez("zip.npz", a=np.eye(2))
    Path("zip.npz").rename("zip.npy")
    np.save("letters.npy", np.array([["a", "b"], ["c", "d"]]))
    np.save("nan.npy", np.full((2, 2), np.nan))
    np.save("lying.npy", np.zeros((2, 2)))
    content = Path("lying.npy").read_bytes()
    Path("lying.npy").write_bytes(
        content.replace(b"(2, 2), }" + b" " * 18, b"(2000000000000, 2000000), }")
    )
    assert Path("lying.npy").read_bytes() != content
    for name in ("empty", "zip", "letters", "nan", "lying"):
        assert run(*SMALL, "--scores", f"{name}.npy", "--out", "results") == 2
        shown = capsys.readouterr().err
        assert f"{name}.npy" in shown
        assert "Traceback" not in shown
    assert not Path("results").exists()


@pytest.mark.usefixtures("without_pictures")
def test_the_same_command_again_goes_on_and_other_options_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*SMALL, "--time", "0.1") == 0
    first = loaded("flow-softmax/flow.npz")["x"]
    assert run(*SMALL, "--time", "0.1") == 0
    assert "1 cells were there already" in capsys.readouterr().out
    assert np.array_equal(loaded("flow-softmax/flow.npz")["x"], first)
    assert run(*SMALL, "--time", "0.2") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert loaded("flow-softmax/flow.npz")["times"][-1] == pytest.approx(0.1)
    assert run(*SMALL, "--time", "0.2", "--overwrite") == 0
    assert loaded("flow-softmax/flow.npz")["times"][-1] == pytest.approx(0.2)


@pytest.mark.usefixtures("without_pictures")
def test_a_matrix_that_changed_is_another_flow(capsys: pytest.CaptureFixture[str]) -> None:
    for scale, code in ((1.0, 0), (2.0, 2)):
        np.save("a.npy", scale * np.eye(2))
        assert run(*SMALL, "--scores", "a.npy", "--time", "0.1") == code
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
def test_without_matplotlib_the_data_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--time", "0.1", "--out", "bare") == 0
    assert "attnscope[plot]" in capsys.readouterr().out
    assert loaded("bare/flow.npz")["x"].shape == (5, 6, 2)
    assert not {path.suffix for path in Path("bare").iterdir()} & {".png", ".svg", ".gif"}


def test_a_folder_that_cannot_be_written_is_refused_before_computing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    monkeypatch.setattr(Workbench, "going", None)
    assert run(*SMALL, "--out", "file/results") == 2
    assert "file/results" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_keeps_what_was_computed(
    number: signal.Signals,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [*SMALL, "--time", "40", "--frames", "20", "--scores", "minus-identity"]
    going = Workbench.going

    def interrupted(self: Workbench, part: float = 0.0, what: str = "") -> bool:
        if 1 / 40 < part < 1:
            os.kill(os.getpid(), number)
        return going(self, part, what)

    with monkeypatch.context() as patch:
        patch.setattr(Workbench, "going", interrupted)
        assert run(*arguments, "--out", "kept") == code
    data = loaded("kept/flow.npz")
    assert str(data["status"]) == "stopped"
    assert 1 < data["times"][-1] == data["stop_time"] < 40
    assert json.loads(Path("kept/run.json").read_text())["finished"] is False
    assert "Stopped early" in capsys.readouterr().out
    assert run(*arguments, "--out", "kept") == 0
    assert loaded("kept/flow.npz")["times"][-1] > data["stop_time"]
    assert json.loads(Path("kept/run.json").read_text())["finished"] is True
