"""`attnscope measure` as a user runs it: files, table, one sentence and exit code 2 for a mistake,
nothing lost on Ctrl-C.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.cli import main
from attnscope.cli.measure import numbers
from attnscope.models import ModelNotice, load
from attnscope.studies import Table
from attnscope.studies.measure import BoundRow, Measure

transformers = pytest.importorskip("transformers")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 with a word tokenizer, saved as users find models: config.json, safetensors,
    tokenizer.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [
        "[UNK]",
        "the",
        "a",
        "is",
        "it",
        "you",
        "that",
        "he",
        "was",
        "on",
        "with",
        "be",
        "at",
        "one",
        "have",
        "this",
        "to",
        "and",
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    place = tmp_path_factory.mktemp("model")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(place)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2Model(
            transformers.GPT2Config(
                n_embd=8,
                n_layer=2,
                n_head=2,
                n_positions=32,
                vocab_size=30,
                bos_token_id=0,
                eos_token_id=0,
            )
        ).save_pretrained(place)
    (place / "text.txt").write_text(
        "the cat is on the mat and he was with it that you have to be at this one " * 20
    )
    return place


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_a_whole_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = (
        "measure",
        folder,
        "--text",
        folder / "text.txt",
        "--lengths",
        "2:9:3",
        "--samples",
        2,
        "--out",
        out,
        "--certify",
        1e-3,
    )
    assert run(*command, "--released-estimator") == 0
    printed = capsys.readouterr().out
    assert "local Lipschitz constant of attention" in printed
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert (
        len(rows) == 2 * 2 * 3 + 2 * 2 * 2
    )  # layers, sequences, lengths; and the two heads at the longest length
    assert all(
        row["lower"] <= row["upper"] and row["converged"] and row["released_estimator"] > 0
        for row in rows
    )
    record = json.loads((out / "run.json").read_text())
    assert record["finished"]
    assert record["options"]["lengths"] == "2:9:3"
    assert {bound["kind"] for bound in json.loads((out / "bounds.json").read_text())} == {"proved"}
    pictures = {path.name for path in out.glob("*.png")}
    assert pictures == {
        "constant-against-length.png",
        "constant-against-radius.png",
        "radius-against-length.png",
        "heads-by-layers.png",
    }
    assert run(*command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*command, "--overwrite", "--no-bounds", "--heads", "none") == 0
    left = {path.name for path in out.iterdir()}
    assert left.isdisjoint({"bounds.json", "heads-by-layers.png"}), "a part of the replaced run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "7"], "layers 0 to 1"),
        (["--lengths", "40"], "at most 32 tokens"),
        (["--lengths", "x"], "such as 2:100:2"),
        (["--text", ""], "empty name"),
        (["--lengths", "5:5"], "holds no number"),
        (["--samples", "500"], "the text has"),
        (["--heads", "9"], "heads 0 to 1"),
        (["--part", "brain"], "--part must be one of"),
        (["--dtype", "float16"], "--dtype must be"),
        (["--dtype", "float16", "--from", "0", "--to", "1"], "--dtype must be"),
        (["--tol", "0"], "tol must be"),
        (["--device", "\x1b[31m"], r"--device '\x1b[31m'"),
        (["--device", "nowhere"], "nowhere"),
        (["--tol", "-1"], "tol"),
        (["--certify", "2"], "between 0 and 1"),
        (["--text", "missing.txt"], "missing.txt"),
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
    base = [
        "measure",
        folder,
        "--text",
        folder / "text.txt",
        "--lengths",
        "4",
        "--samples",
        2,
        "--out",
        tmp_path / "o",
        "--layers",
        "0",
    ]
    assert run(*base, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "o" / "results.jsonl").exists()


def test_no_such_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("measure", empty, "--lengths", "4") == 2
    assert "config.json" in capsys.readouterr().err
    assert run("measure", "") == 2
    assert "empty" in capsys.readouterr().err
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n")
    assert run("measure", "minilm", "--text", blank, "--lengths", "4") == 2
    assert "empty" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_keeps_the_rows(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(monkeypatch, 2)
    out = tmp_path / "out"
    assert (
        run(
            "measure",
            folder,
            "--text",
            folder / "text.txt",
            "--lengths",
            "2:9:3",
            "--samples",
            3,
            "--out",
            out,
        )
        == 130
    )
    assert len((out / "results.jsonl").read_text().splitlines()) == 6
    assert not json.loads((out / "run.json").read_text())["finished"]
    printed = capsys.readouterr().out
    assert "kept" in printed
    assert [
        line.split()[:2] for line in printed.splitlines() if line.strip()[:1] in ("0", "1")
    ] == [["0", "2"], ["1", "2"]]


@pytest.mark.usefixtures("without_pictures")
def test_the_same_command_goes_on_after_sigterm(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command(out: str) -> list[object]:
        base: list[object] = ["measure", folder, "--text", folder / "text.txt", "--samples", 2]
        return [*base, "--lengths", "2:9:3", "--certify", 1e-3, "--out", tmp_path / out]

    assert run(*command("whole")) == 0
    with monkeypatch.context() as patched:
        stop_after(patched, 3, signal.SIGTERM)
        assert run(*command("stopped")) == 143
    capsys.readouterr()
    assert run("export", tmp_path / "stopped", "--format", "csv") == 0
    assert "results.csv" in capsys.readouterr().out
    assert run("export", tmp_path / "stopped", "--format", "xml") == 2
    assert run("export", tmp_path / "nowhere") == 2
    assert "holds no results" in capsys.readouterr().err
    assert run(*command("stopped")) == 0
    printed = capsys.readouterr().out
    assert "1 cells were there already" in printed
    assert "hold together but with probability 0.001" in printed
    for name in ("results.jsonl", "results.csv", "bounds.json"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "stopped" / name).read_bytes() == whole


@pytest.mark.usefixtures("without_pictures")
def test_a_stop_between_layers_shows_the_length_of_each(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(monkeypatch, 3)
    assert (
        run(
            "measure",
            folder,
            "--text",
            folder / "text.txt",
            "--lengths",
            "2:9:3",
            "--samples",
            2,
            "--out",
            tmp_path / "out",
        )
        == 130
    )
    printed = capsys.readouterr().out
    assert [
        line.split()[:2] for line in printed.splitlines() if line.strip()[:1] in ("0", "1")
    ] == [["0", "5"], ["1", "2"]]


@pytest.fixture(scope="session")
def unknown(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-NeoX, pre-norm and of no family that is known here, with the same tokenizer and
    text.
    """
    place = tmp_path_factory.mktemp("unknown")
    shutil.copytree(folder, place, dirs_exist_ok=True)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 30,
    }
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = transformers.GPTNeoXModel(
            transformers.GPTNeoXConfig(**sizes, max_position_embeddings=32, initializer_range=0.5)
        )
        network.save_pretrained(place)
    return place


@pytest.mark.parametrize("part", ["attention", "block"])
@pytest.mark.usefixtures("without_pictures")
def test_an_unknown_architecture(
    unknown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """With the default options: all layers, each at what its own module receives, against the dense
    Jacobian there.
    """
    out = tmp_path / "out"
    command = (
        "measure",
        unknown,
        "--text",
        unknown / "text.txt",
        "--lengths",
        "3:6:2",
        "--samples",
        2,
        "--out",
        out,
        "--part",
        part,
    )
    assert run(*command) == 0, capsys.readouterr().err
    printed = " ".join(capsys.readouterr().out.split())
    assert "Note: the architecture" in printed
    assert "without heads or bounds" in printed
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    single = range(2) if part == "attention" else ()
    assert {(row["layer"], row["n"], row["head"]) for row in rows} == {
        *((layer, n, None) for layer in range(3) for n in (3, 5)),
        *((layer, 5, head) for layer in range(3) for head in single),
    }
    with pytest.warns(ModelNotice):
        model = load(str(unknown), dtype=torch.float64)
    words = model.encode((unknown / "text.txt").read_text())
    for row in rows:
        ids = words[row["start"] : row["start"] + row["n"]]
        read, x = model.tokens(ids, row["layer"]), model.tokens(ids, row["layer"], part)
        size = x.numel()
        own = model.function(row["layer"], part, row["head"])
        dense = torch.func.jacrev(own)(x).detach().reshape(size, size)
        assert row["lower"] == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=5e-6)
        assert row["radius"] == pytest.approx(float(read.norm() / row["n"] ** 0.5), rel=1e-5)


@pytest.mark.usefixtures("without_pictures")
def test_angles_that_depend_on_the_length(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Llama with dynamic rotary angles: its heads hold no single set of them, so its own modules
    are differentiated.
    """
    place = tmp_path / "llama"
    shutil.copytree(folder, place)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 30,
    }
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            **sizes, max_position_embeddings=32, initializer_range=0.5, rope_parameters=rope
        )
        transformers.LlamaModel(config).save_pretrained(place)
    out = tmp_path / "out"
    assert (
        run(
            "measure",
            place,
            "--text",
            folder / "text.txt",
            "--lengths",
            "3,5",
            "--samples",
            2,
            "--out",
            out,
        )
        == 0
    ), capsys.readouterr().err
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert len([row for row in rows if row["head"] is None]) == 8
    bounds = json.loads((out / "bounds.json").read_text())
    assert {(bound["layer"], bound["name"]) for bound in bounds} >= {(0, "TB"), (1, "TB")}
    model = load(str(place))
    ids = model.encode((folder / "text.txt").read_text())[:5]
    x = model.tokens(ids, 1)
    dense = torch.autograd.functional.jacobian(model.function(1), x).reshape(x.numel(), x.numel())
    place_of = ("layer", "n", "sequence", "head")
    (row,) = [row for row in rows if tuple(map(row.get, place_of)) == (1, 5, 0, None)]
    assert row["lower"] == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=2e-5)


def test_an_infinite_bound_is_null() -> None:
    bound = BoundRow(3, math.inf, "upper", "proved", "M1", "s", "a")
    table = Table(Measure(), Measure.fast, {"bounds": [bound]})
    record = json.loads(Measure().files(table)["bounds.json"])
    assert record[0]["value"] is None
    assert record[0]["layer"] == 3


@pytest.mark.usefixtures("without_pictures")
def test_the_table_fits_a_narrow_terminal(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = (
        "measure",
        folder,
        "--text",
        folder / "text.txt",
        "--lengths",
        "2:9:3",
        "--samples",
        2,
        "--out",
        tmp_path / "out",
    )
    assert run(*command, "--certify", 1e-3, "--released-estimator") == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "sqrt(||J^T f(X)||)" in printed


def test_a_model_whose_attention_is_zero(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = transformers.GPT2Model.from_pretrained(folder)
    for block in model.h:
        block.attn.c_proj.weight.data.zero_()
    place = tmp_path / "zero"
    shutil.copytree(folder, place)
    model.save_pretrained(place)
    out = tmp_path / "out"
    options = (
        "--text",
        folder / "text.txt",
        "--lengths",
        "2:9:3",
        "--samples",
        2,
        "--out",
        out,
        "--certify",
        1e-3,
    )
    assert run("measure", place, *options) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(row["lower"], row["upper"]) for row in rows} == {(0.0, 0.0)}


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int, number: int = signal.SIGINT) -> None:
    """A signal that comes while the stack of this number is measured."""
    module = importlib.import_module("attnscope.studies.measure.sweep")
    whole, seen = module._measured, []

    def measured(*arguments: Any) -> list[Any]:
        seen.append(1)
        if len(seen) == count:
            signal.raise_signal(number)
        return whole(*arguments)

    monkeypatch.setattr(module, "_measured", measured)


def test_numbers() -> None:
    assert numbers("--lengths", "2:9:3,4,4") == [2, 4, 5, 8]
    assert numbers("--layers", "0:3") == [0, 1, 2]


@pytest.mark.usefixtures("without_pictures")
def test_ids_from_a_file_stand_for_a_text(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A model without a tokenizer says what to pass; ids give the rows that their text gives."""
    monkeypatch.chdir(tmp_path)
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("tokenizer*", "special*"))
    text = str(folder / "text.txt")
    short = ["--lengths", "2,4", "--samples", "2", "--no-bounds"]
    with pytest.raises(SystemExit):
        main(["measure", str(bare), "--text", text, *short])
    assert "without a tokenizer: pass --ids FILE" in capsys.readouterr().err
    ids = load(str(folder)).encode((folder / "text.txt").read_text())
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids.tolist())))
    for arguments in (
        ["measure", str(folder), "--text", text, "--out", "by-text"],
        ["measure", str(bare), "--ids", "ids.txt", "--out", "by-ids"],
    ):
        with pytest.raises(SystemExit) as left:
            main([*arguments, *short])
        assert left.value.code == 0
    by_text, by_ids = (
        [json.loads(line) for line in Path(name, "results.jsonl").read_text().splitlines()]
        for name in ("by-text", "by-ids")
    )
    assert len(by_text) == len(by_ids) > 0
    for one, other in zip(by_text, by_ids, strict=True):
        assert (one["lower"], one["upper"], one["n"]) == (
            other["lower"],
            other["upper"],
            other["n"],
        )
