"""`attnscope measure` as a user runs it: files, table, one sentence and exit code 2 for a mistake, nothing lost on Ctrl-C."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnscope.cli import main
from attnscope.cli.measure import numbers
from attnscope.measure import Row

transformers = pytest.importorskip("transformers")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 with a word tokenizer, saved as users find models: config.json, safetensors, tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "the", "a", "is", "it", "you", "that", "he", "was", "on", "with", "be", "at", "one", "have", "this", "to", "and"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    place = tmp_path_factory.mktemp("model")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(place)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2Model(
            transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=32, vocab_size=30, bos_token_id=0, eos_token_id=0)
        ).save_pretrained(place)
    (place / "text.txt").write_text("the cat is on the mat and he was with it that you have to be at this one " * 20)
    return place


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_a_whole_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ("measure", folder, "--text", folder / "text.txt", "--lengths", "2:9:3", "--samples", 2, "--out", out, "--certify", 1e-3)
    assert run(*command, "--released-estimator") == 0
    printed = capsys.readouterr().out
    assert "local Lipschitz constant of attention" in printed
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 3 + 2 * 2 * 2  # layers, sequences, lengths; and the two heads at the longest length
    assert all(row["lower"] <= row["upper"] and row["converged"] and row["released_estimator"] > 0 for row in rows)
    record = json.loads((out / "run.json").read_text())
    assert record["finished"]
    assert record["options"]["lengths"] == "2:9:3"
    assert {bound["kind"] for bound in json.loads((out / "bounds.json").read_text())} == {"proved"}
    pictures = {path.name for path in out.glob("*.png")}
    assert pictures == {"constant-against-length.png", "constant-against-radius.png", "radius-against-length.png", "heads-by-layers.png"}
    assert run(*command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*command, "--overwrite", "--no-bounds", "--heads", "none") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "7"], "layers 0 to 1"),
        (["--lengths", "40"], "at most 32 tokens"),
        (["--lengths", "x"], "start:stop:step"),
        (["--lengths", "5:5"], "holds no number"),
        (["--samples", "500"], "the text has"),
        (["--heads", "9"], "heads 0 to 1"),
        (["--part", "brain"], "--part must be one of"),
        (["--dtype", "float16"], "--dtype must be"),
        (["--device", "nowhere"], "nowhere"),
        (["--tol", "-1"], "tol"),
        (["--certify", "2"], "between 0 and 1"),
        (["--text", "missing.txt"], "missing.txt"),
        (["--out", "/proc/nothing"], "choose another --out"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    base = ["measure", folder, "--text", folder / "text.txt", "--lengths", "4", "--samples", 2, "--out", tmp_path / "o", "--layers", "0"]
    assert run(*base, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "o" / "results.jsonl").exists()


def test_no_such_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("measure", empty, "--lengths", "4") == 2
    assert "config.json" in capsys.readouterr().err
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n")
    assert run("measure", "minilm", "--text", blank, "--lengths", "4") == 2
    assert "empty" in capsys.readouterr().err


def test_ctrl_c_keeps_the_rows(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    command = importlib.import_module("attnscope.cli.measure")
    whole = command.sweep

    monkeypatch.setattr(command, "sweep", lambda plan: stop_after(whole(plan), 2))
    out = tmp_path / "out"
    assert run("measure", folder, "--text", folder / "text.txt", "--lengths", "2:9:3", "--samples", 3, "--out", out) == 130
    assert len((out / "results.jsonl").read_text().splitlines()) == 6
    assert not json.loads((out / "run.json").read_text())["finished"]
    printed = capsys.readouterr().out
    assert "kept" in printed
    assert [line.split()[:2] for line in printed.splitlines() if line.strip()[:1] in ("0", "1")] == [["0", "2"], ["1", "2"]]


def test_a_stop_between_layers_shows_the_length_of_each(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    command = importlib.import_module("attnscope.cli.measure")
    whole = command.sweep
    monkeypatch.setattr(command, "sweep", lambda plan: stop_after(whole(plan), 3))
    assert run("measure", folder, "--text", folder / "text.txt", "--lengths", "2:9:3", "--samples", 2, "--out", tmp_path / "out") == 130
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines() if line.strip()[:1] in ("0", "1")] == [["0", "5"], ["1", "2"]]


def test_a_model_whose_attention_is_zero(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = transformers.GPT2Model.from_pretrained(folder)
    for block in model.h:
        block.attn.c_proj.weight.data.zero_()
    place = tmp_path / "zero"
    shutil.copytree(folder, place)
    model.save_pretrained(place)
    out = tmp_path / "out"
    options = ("--text", folder / "text.txt", "--lengths", "2:9:3", "--samples", 2, "--out", out, "--certify", 1e-3)
    assert run("measure", place, *options) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(row["lower"], row["upper"]) for row in rows} == {(0.0, 0.0)}


def stop_after(batches: Iterator[list[Row]], count: int) -> Iterator[list[Row]]:
    yield from itertools.islice(batches, count)
    raise KeyboardInterrupt


def test_numbers() -> None:
    assert numbers("--lengths", "2:9:3,4,4") == [2, 4, 5, 8]
    assert numbers("--layers", "0:3") == [0, 1, 2]
