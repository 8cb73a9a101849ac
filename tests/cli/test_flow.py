"""`attnscope flow`: what it leaves and prints, and one sentence with exit code 2 for every
mistake.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from attnscope.cli import flow as flow_command
from attnscope.cli import main
from attnscope.cli._matrices import named_matrix

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
    assert sorted(path.name for path in Path("results").iterdir()) == [
        "flow.gif",
        "flow.npz",
        "flow.png",
    ]
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


@pytest.mark.parametrize("name", flow_command.MATRICES)
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
        (["--attention", "cosine"], "--attention must be one of"),
        (["--scores", "cauchy"], "a matrix is one of"),
        (["--scores", "missing.npy"], "no file missing.npy"),
        (["--space", "torus"], "--space must be"),
        (["--time", "-1"], "--time must be"),
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


def test_results_are_not_replaced_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--time", "0.1") == 0
    assert run(*SMALL, "--time", "0.1") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*SMALL, "--time", "0.2", "--overwrite") == 0
    assert loaded("flow-softmax/flow.npz")["times"][-1] == pytest.approx(0.2)


def test_ctrl_c_keeps_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = flow_command._watched

    def interrupted(console, end):  # type: ignore[no-untyped-def]
        from contextlib import contextmanager

        @contextmanager
        def manager():  # type: ignore[no-untyped-def]
            with watched(console, end) as progress:

                def step(t: float) -> bool:
                    if t > 1:
                        os.kill(os.getpid(), signal.SIGINT)
                    return progress(t)

                yield step

        return manager()

    monkeypatch.setattr(flow_command, "_watched", interrupted)
    assert run(*SMALL, "--time", "40", "--frames", "400", "--out", "kept") == 0
    data = loaded("kept/flow.npz")
    assert str(data["status"]) == "stopped"
    assert 1 < data["times"][-1] == data["stop_time"] < 40
