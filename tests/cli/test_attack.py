"""`attnscope attack`: what it leaves and prints, and one sentence with exit code 2 for every
mistake.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscope import Heads, Particles, Softmax, attacks, jacobian, spectral_norm
from attnscope.cli import main
from attnscope.studies.attack import searches

SMALL = ["--tokens", "4", "--dim", "2", "--starts", "3", "--steps", "3"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["attack", *(str(argument) for argument in arguments)])
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)


def record(folder: str, name: str = "attack.json") -> dict[str, Any]:
    return json.loads((Path(folder) / name).read_text())


def test_matrices_are_attacked_and_everything_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    a, v = np.diag([-1.0, 0.5]), np.array([[1.0, 2.0], [0.0, 1.0]])
    x = np.array([[1.0, 0.0], [-1.0, 0.5], [0.0, 0.2]])
    np.save("a.npy", a)
    np.save("v.npy", v)
    np.save("x.npy", x)
    options = [
        "--scores",
        "a.npy",
        "--values",
        "v.npy",
        "--cloud",
        "x.npy",
        "--radius",
        1.5,
        "--lengths",
        "2,4",
        "--radii",
        "0.5,1",
    ]
    assert run(*SMALL, *options, "--eps", "0.001", "--out", "found") == 0
    files = {path.name for path in Path("found").iterdir()}
    assert files >= {"attack.json", "run.json", "worst.npz"}
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        pictures = sorted(Path("found").glob(f"*.{form}"))
        assert [path.stem for path in pictures] == ["curves", "split", "worst"]
        assert all(path.read_bytes().startswith(start) for path in pictures)
    kept = record("found")
    attention = Softmax(Heads.from_matrices(torch.from_numpy(a), torch.from_numpy(v)))
    with np.load("found/worst.npz") as data:
        mu = Particles(torch.from_numpy(data["tokens"]), torch.from_numpy(data["weights"]))
    assert kept["worst"]["value"] == pytest.approx(
        float(spectral_norm(jacobian(attention, mu)).lower)
    )
    assert float(mu.radius()) <= 1.5
    assert kept["worst"]["value"] <= kept["worst"]["bound"]["value"]
    assert kept["worst"]["bound"]["kind"] == "proved"
    law = attacks.split(attention, Particles(torch.from_numpy(x)))
    assert kept["split"]["move"] == pytest.approx(law.move)
    assert kept["split"]["split"] == pytest.approx(law.split)
    assert [attack["ratio"] for attack in kept["split"]["attacks"]] == pytest.approx(
        [law.move, law.split], rel=1e-2
    )
    assert [(point["n"], point["radius"]) for point in kept["curves"]] == [
        (2, 0.5),
        (2, 1.0),
        (4, 0.5),
        (4, 1.0),
    ]
    run_record = record("found", "run.json")
    assert run_record["finished"]
    assert run_record["options"]["scores"] == "a.npy"
    printed = capsys.readouterr().out
    assert "proved lower bound of the largest" in printed
    assert "gain of splitting" in printed


@pytest.mark.parametrize(
    "options",
    [
        ["--weighted", "--only", "worst", "--causal"],
        ["--attention", "linear", "--only", "worst"],
        ["--attention", "l2", "--heads", "2", "--only", "split"],
        ["--dim", "1", "--scores", "minus-identity"],
    ],
)
def test_each_attack_alone(options: list[str]) -> None:
    assert run(*SMALL, *options, "--out", "found") == 0
    kept = record("found")
    only = options[options.index("--only") + 1] if "--only" in options else "both"
    assert ("worst" in kept, "split" in kept) == (only != "split", only != "worst")
    if "linear" in options:
        assert kept["worst"]["bound"] is None
    if "--weighted" in options:
        assert kept["worst"]["bound"]["name"] == "K3"


@pytest.mark.usefixtures("without_pictures")
def test_a_map_that_nothing_moves_has_no_ratio() -> None:
    np.save("zero.npy", np.zeros((2, 2)))
    assert run(*SMALL, "--values", "zero.npy", "--out", "found") == 0
    assert record("found")["worst"]["ratio"] is None


@pytest.mark.usefixtures("without_pictures")
def test_a_layer_and_a_head_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "the", "cat", "is", "on", "mat", "and", "he"]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained("model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_embd=8,
            n_layer=2,
            n_head=2,
            n_positions=16,
            vocab_size=30,
            bos_token_id=0,
            eos_token_id=0,
        )
        transformers.GPT2Model(config).save_pretrained("model")
    Path("text.txt").write_text("the cat is on the mat and he is on the cat " * 3)
    base = ["model", "--text", "text.txt", "--tokens", "5", "--starts", "3", "--steps", "3"]
    assert run(*base, "--layer", "1", "--head", "1", "--out", "head") == 0
    assert run(*base, "--layer", "1", "--out", "layer") == 0
    assert record("head")["worst"]["value"] != record("layer")["worst"]["value"]
    with np.load("head/worst.npz") as data:
        assert data["tokens"].shape == (5, 8)
    capsys.readouterr()
    for wrong, message in (
        (["--layer", "7"], "layer must be"),
        (["--head", "2"], "the head must be from 0 to 1"),
        (["--tokens", "17"], "from 2 to 16"),
    ):
        assert run(*base, *wrong, "--out", "wrong") == 2
        assert message in capsys.readouterr().err
    assert not Path("wrong").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--radius", "0"], "--radius must be"),
        (["--radius", "-2"], "--radius must be"),
        (["--tokens", "1"], "at least 2 tokens"),
        (["--tokens", "0"], "--tokens must be"),
        (["--tokens", "1", "--only", "worst", "--weighted"], "at least 2 when masses are free"),
        (["--tokens", "9000", "--only", "worst"], "Use fewer tokens"),
        (["--only", "nothing"], "--only must be"),
        (["--scores", "missing.npy"], "no file missing.npy"),
        (["--cloud", "missing.npy"], "no file missing.npy"),
        (["--cloud", "empty.npy"], "no empty axis"),
        (["--cloud", "wide.npy"], "(n, 2)"),
        (["--eps", "x"], "--eps takes numbers"),
        (["--eps", "-1"], "--eps takes finite numbers above 0"),
        (["--radii", "1"], "--lengths"),
        (["--lengths", "2", "--attention", "linear"], "no bound is known"),
        (["--attention", "cosine"], "attention must be one of"),
        (["--head", "2"], "belong to a model"),
        (["minilm", "--attention", "l2"], "a model brings its own"),
        (["minilm", "--causal"], "a model brings its own"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_is_one_sentence_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("empty.npy", np.zeros((0, 2)))
    np.save("wide.npy", np.zeros((3, 5)))
    assert run(*SMALL, *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in Path().iterdir()) == ["empty.npy", "wide.npy"]


@pytest.mark.usefixtures("without_pictures")
def test_results_of_other_options_are_not_replaced_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*SMALL, "--only", "worst") == 0
    assert run(*SMALL, "--only", "worst") == 0
    assert "1 cells were there already" in capsys.readouterr().out
    assert run(*SMALL, "--only", "split") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*SMALL, "--only", "split", "--overwrite") == 0
    assert "worst" not in record("attack-softmax")
    assert not (Path("attack-softmax") / "worst.npz").exists()


@pytest.mark.usefixtures("without_pictures")
def test_a_changed_matrix_file_is_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    for scores, code in ((np.eye(2), 0), (np.eye(2), 0), (2 * np.eye(2), 2)):
        np.save("a.npy", scores)
        assert run(*SMALL, "--scores", "a.npy", "--only", "split", "--out", "found") == code
    assert "--overwrite" in capsys.readouterr().err


def interrupt(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, number: int) -> None:
    """Send this process a signal at every step of a search."""
    whole = getattr(place, name)

    def interrupted(*arguments: Any, progress: Any, **options: Any) -> Any:
        def told(fraction: float, value: float) -> bool:
            os.kill(os.getpid(), number)
            return bool(progress(fraction, value))

        return whole(*arguments, progress=told, **options)

    monkeypatch.setattr(place, name, interrupted)


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(monkeypatch, attacks, "worst_case", signal.SIGINT)
    options = ["--tokens", "4", "--dim", "2", "--starts", "3", "--steps", "50", "--only", "worst"]
    assert run(*options, "--out", "kept") == 130
    assert not record("kept", "run.json")["finished"]
    assert record("kept")["worst"]["value"] > 0
    assert "kept" in capsys.readouterr().out


@pytest.mark.usefixtures("without_pictures")
def test_the_same_command_goes_on_after_sigterm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, "--lengths", "2,4", "--radii", "0.5,1", "--seed", "3"]
    assert run(*options, "--out", "whole") == 0
    third = {"n": 4, "radius": 0.5}
    with monkeypatch.context() as patched:
        find = searches.next_point

        def ended(attention: Any, n: int, radius: float, *others: Any) -> Any:
            if {"n": n, "radius": radius} == third:
                os.kill(os.getpid(), signal.SIGTERM)
            return find(attention, n, radius, *others)

        patched.setattr(searches, "next_point", ended)
        assert run(*options, "--out", "found") == 143
    assert len(record("found")["curves"]) == 2
    assert run(*options, "--out", "found") == 0
    assert "4 cells were there already" in capsys.readouterr().out
    assert record("found") == record("whole")


def test_names_with_markup_are_names(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("[red]a[", "["):
        Path(folder).mkdir()
    np.save("[red]a[/bold] $x.npy", np.eye(2))
    np.save("[/].npy", np.array([[1.0, 0.0], [0.0, 1.0]]))
    options = ["--scores", "[red]a[/bold] $x.npy", "--cloud", "[/].npy", "--out", "[out] [/b]"]
    assert run(*SMALL, *options) == 0, capsys.readouterr().err
    assert "In [out] [/b]: " in capsys.readouterr().out
    assert run(*SMALL, *options, "--values", "[/b].npy") == 2
    assert "there is no file [/b].npy" in capsys.readouterr().err
    assert run("[/model]", *SMALL, "--out", "wrong") == 2
    assert "Traceback" not in capsys.readouterr().err
