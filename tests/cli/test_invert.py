"""`attnscope invert`: what it leaves and prints, and one sentence with exit code 2 for every
mistake.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope import Heads, Softmax
from attnscope.cli import main
from attnscope.nets.invertible import Invertible

SMALL = ["--layers", "2", "--tokens", "5", "--dim", "4"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["invert", *arguments])
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
        [],
        ["--causal", "--radius", "2"],
        ["--attention", "sigmoid", "--squash"],
        ["--attention", "l2", "--contraction", "0.5"],
        ["--attention", "sinkhorn"],
    ],
)
def test_a_round_trip_leaves_its_errors_bounds_and_picture(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = not arguments  # the picture is one of errors, whatever the layers
    if not drawn:
        monkeypatch.setattr("attnscope.studies.drawing.available", lambda: False)
    assert run(*SMALL, *arguments, "--out", "trip") == 0
    data = loaded("trip/invert.npz")
    assert data["x"].shape == data["y"].shape == (5, 4)
    assert np.abs(data["found"] - data["x"]).max() < 1e-12
    assert not np.allclose(data["x"], data["y"], atol=1e-3)
    assert (data["error"] <= data["bound"] + data["rounding"]).all()
    assert data["error"][0] > 1e3 * data["error"][-1]
    assert data["iterations"].tolist() == list(range(1, len(data["error"]) + 1))
    if drawn:
        assert Path("trip/invert.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in Path("trip").iterdir()} == {
        *("invert.npz", "network.npz", "run.json", "results.sqlite", "report.html"),
        *(("invert.png", "invert.svg") if drawn else ()),
        *(
            f"{kind}.{form}"
            for kind in ("results", "layers", "tokens", "network")
            for form in ("csv", "jsonl")
        ),
    }
    printed = capsys.readouterr().out
    assert "proved bound" in printed
    assert "converged" in printed
    assert json.loads(Path("trip/run.json").read_text())["finished"] is True


@pytest.mark.usefixtures("without_pictures")
def test_the_table_says_when_it_did_not_converge(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--most", "2") == 0
    assert "not converged" in capsys.readouterr().out
    assert len(loaded("invert/invert.npz")["error"]) == 2


@pytest.mark.usefixtures("without_pictures")
def test_float32_stays_float32() -> None:
    assert run(*SMALL, "--dtype", "float32") == 0
    data = loaded("invert/invert.npz")
    assert data["x"].dtype == np.float32
    assert 0 < data["error"][-1] < 1e-4


@pytest.mark.usefixtures("without_pictures")
def test_a_stack_comes_from_its_file() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    net = Invertible([Softmax(Heads.from_matrices(eye, eye))] * 2, tokens=6, radius=0.5)
    net.save("mine.npz")
    assert run("--file", "mine.npz", "--most", "2") == 0
    data = loaded("invert/invert.npz")
    x = torch.from_numpy(data["x"])
    assert x.norm(dim=-1).max() <= 0.5
    assert torch.allclose(net(x), torch.from_numpy(data["y"]), atol=1e-14)
    assert run("--file", "invert/network.npz", "--most", "1", "--out", "again") == 0
    assert np.array_equal(loaded("again/invert.npz")["y"], data["y"])


@pytest.mark.usefixtures("without_pictures")
def test_the_same_seed_gives_the_same_trip() -> None:
    for seed, out in (("1", "a"), ("1", "b"), ("2", "c")):
        assert run(*SMALL, "--seed", seed, "--out", out, "--most", "1") == 0
    a, b, c = (loaded(f"{out}/invert.npz")["y"] for out in "abc")
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention", "exponential"], "no contraction is proved for exponential attention"),
        (["--attention", "linear"], "no contraction is proved for linear attention"),
        (["--attention", "cosine"], "must be one of"),
        (["--radius", "0"], "radius must be a finite number above 0"),
        (["--radius", "-2", "--attention", "l2"], "radius must be a finite number above 0"),
        (["--contraction", "1"], "contraction must be at most"),
        (["--heads", "3"], "heads must divide the dimension 4"),
        (["--dtype", "float16"], "dtype must be"),
        (
            ["--file", "other.npz"],
            "--file already says what the stack is: leave out --layers, --tokens, --dim",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_is_one_sentence_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown.replace("\n", " ")
    assert "Traceback" not in shown
    assert not list(Path().iterdir())


def test_a_file_that_is_no_stack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("arrays.npz", x=np.zeros(3))
    np.save("array.npy", np.zeros(3))
    Path("empty.npz").write_bytes(b"")
    Path("text.npz").write_bytes(b"not a zip")
    Path("cut.npz").write_bytes(Path("arrays.npz").read_bytes()[:50])
    for name in ("arrays.npz", "array.npy", "empty.npz", "text.npz", "cut.npz"):
        assert run("--file", name) == 2
        assert "is not an invertible stack" in capsys.readouterr().err
    assert run("--file", "missing.npz") == 2
    assert "there is no file 'missing.npz'" in capsys.readouterr().err


def test_a_ball_larger_than_that_of_the_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Invertible.random("softmax", 1, tokens=3, dim=2, radius=1.0).save("net.npz")
    assert run("--file", "net.npz", "--radius", "3", "--out", "far") == 2
    assert "radius must be at most that of the stack, 1, got 3" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
def test_results_are_not_replaced_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--most", "1") == 0
    assert run(*SMALL) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*SMALL, "--overwrite", "--most", "2") == 0
    assert len(loaded("invert/invert.npz")["error"]) == 2


@pytest.mark.usefixtures("without_pictures")
def test_the_same_command_again_computes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL) == 0
    first = loaded("invert/invert.npz")
    monkeypatch.setattr(Invertible, "inverse", None)
    assert run(*SMALL) == 0
    assert "1 cells were there already" in capsys.readouterr().out
    assert all(np.array_equal(loaded("invert/invert.npz")[name], first[name]) for name in first)


@pytest.mark.usefixtures("without_pictures")
def test_without_matplotlib_the_data_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--most", "2") == 0
    assert "attnscope[plot]" in capsys.readouterr().out
    assert len(loaded("invert/invert.npz")["error"]) == 2
    assert not {path.suffix for path in Path("invert").iterdir()} & {".png", ".svg"}


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
    inverse = Invertible.inverse

    def interrupted(net, y, tol=None, most=None):  # type: ignore[no-untyped-def]
        if most == 3:
            os.kill(os.getpid(), number)
        return inverse(net, y, tol, most)

    with monkeypatch.context() as patch:
        patch.setattr(Invertible, "inverse", interrupted)
        assert run(*SMALL) == code
    assert loaded("invert/invert.npz")["iterations"].tolist() == [1, 2, 3]
    assert json.loads(Path("invert/run.json").read_text())["finished"] is False
    assert "Stopped early" in capsys.readouterr().out
    assert run(*SMALL) == 0
    assert len(loaded("invert/invert.npz")["error"]) > 3
    assert json.loads(Path("invert/run.json").read_text())["finished"] is True
