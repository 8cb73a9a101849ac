"""What people have: images, special tokens, padded batches of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnscope import load
from attnscope.cli import main
from attnscope.data import read_embeddings
from attnscope.models import Model, fitted
from attnscope.studies.measure import measure

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::attnscope.models.ModelNotice")


@pytest.fixture(scope="module")
def minilm() -> Model:
    return load("minilm")


@pytest.fixture(scope="module")
def vision() -> Model:
    sizes: dict[str, Any] = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1}
    config = transformers.Dinov2Config(**sizes, image_size=8, patch_size=4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return load(transformers.Dinov2Model(config).eval(), dtype=torch.float64)


def test_images_are_measured_one_by_one(vision: Model) -> None:
    pixels = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    table = measure(vision, pixels.double(), samples=2, tol=1e-8)
    assert {row.n for row in table} == {5}
    for row in table:
        x = vision.tokens(pixels[row.sequence].double(), 0)
        own = vision.function(0, head=row.head)
        dense = torch.func.jacrev(own)(x).detach().reshape(x.numel(), x.numel())
        assert row.lower == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-6)
    with pytest.raises(ValueError, match="4 images are needed, but there are 3"):
        measure(vision, pixels.double(), samples=4)


def test_pixels_get_the_size_the_channels_and_the_scale_of_the_model(vision: Model) -> None:
    grey = torch.full((2, 1, 5, 7), 0.75)
    made = fitted(vision, grey)
    assert made.shape == (2, 3, 8, 8)
    assert (made - 0.5).abs().max() < 1e-6
    with pytest.raises(ValueError, match="images of 3 channels, got 2"):
        fitted(vision, grey.expand(-1, 2, -1, -1))


def test_special_tokens_stand_around_every_sequence(minilm: Model) -> None:
    text = "Alice was beginning to get very tired of sitting by her sister on the bank"
    before, after = minilm.frame()
    assert [minilm.pieces(torch.tensor(part)) for part in (before, after)] == [["[CLS]"], ["[SEP]"]]
    options: dict[str, Any] = {"layers": [0], "samples": 2, "heads": "none", "bounds": False}
    table = measure(minilm, text, [6], special_tokens=True, **options)
    assert [row.start for row in table] == [0, 4]
    ids = minilm.encode(text)
    framed = torch.cat([torch.tensor(before), ids[4:8], torch.tensor(after)])
    expected = measure(minilm, framed, [6], **(options | {"samples": 1}))
    assert table.rows[1].lower == pytest.approx(expected.rows[0].lower, rel=1e-4)
    with pytest.raises(ValueError, match="no room beside 2 special tokens"):
        measure(minilm, text, [2], special_tokens=True, **options)


def test_padding_is_no_part_of_a_sequence(minilm: Model) -> None:
    texts = ["a rabbit", "down the rabbit hole she went"]
    first, second = minilm.sequences(texts)
    n = len(second)
    ids = torch.stack([torch.nn.functional.pad(first, (0, n - len(first))), second])
    mask = torch.stack([torch.arange(n) < len(first), torch.ones(n, dtype=torch.bool)]).long()
    found = minilm.sequences({"input_ids": ids, "attention_mask": mask})
    assert [part.tolist() for part in found] == [first.tolist(), second.tolist()]
    with torch.no_grad():
        hidden = minilm.module(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    x = minilm.tokens(found[0], 2)
    assert (hidden[2][0, : len(first)] - x).abs().max() < 1e-4
    with pytest.raises(ValueError, match=r"must have the shape of the input_ids, \(2, "):
        minilm.sequences({"input_ids": ids, "attention_mask": mask[:1]})
    holes = mask.clone()
    holes[1, 2] = 0
    with pytest.raises(ValueError, match="one stretch of tokens"):
        minilm.sequences({"input_ids": ids, "attention_mask": holes})


TEXTS = ("a rabbit", "down the rabbit hole", "she went down the rabbit hole", "a white rabbit ran")
FEW: dict[str, Any] = {"layers": [1], "heads": "none", "bounds": False, "tol": 1e-5}


def test_several_texts_are_sequences_of_their_own(minilm: Model) -> None:
    """Whole, each at its length, padded by a tokenizer or not; and their first tokens."""
    own = minilm.sequences(TEXTS)
    counts = [len(ids) for ids in own]
    assert len(set(counts)) < len(counts)  # two of one length, others not
    table = measure(minilm, list(TEXTS), **FEW)
    found = {row.sequence: row for row in table}
    assert [found[i].n for i in range(4)] == counts
    assert {row.start for row in table} == {0}
    for i, ids in enumerate(own):
        (alone,) = measure(minilm, ids, [len(ids)], **(FEW | {"samples": 1}))
        assert found[i].lower == pytest.approx(alone.lower, rel=1e-4)
    ids = torch.nn.utils.rnn.pad_sequence(own, batch_first=True, padding_side="left")
    mask = torch.stack([torch.arange(max(counts)) >= max(counts) - n for n in counts]).long()
    padded = measure(minilm, {"input_ids": ids, "attention_mask": mask}, **FEW)
    for row in padded:
        assert row.lower == pytest.approx(found[row.sequence].lower, rel=1e-4)
    first = measure(minilm, list(TEXTS), [2, 4], **FEW)
    assert [(row.n, row.sequence) for row in first] == [
        (n, i) for n in (2, 4) for i, count in enumerate(counts) if count >= n
    ]
    with pytest.raises(ValueError, match="none of the 4 texts has 9 tokens, the longest has 6"):
        measure(minilm, list(TEXTS), [9], **FEW)


def test_embeddings_are_read_in_place_of_ids(minilm: Model, tmp_path: Path) -> None:
    ids = minilm.encode(TEXTS[2])
    table: Any = minilm.module.get_input_embeddings()
    vectors = table.weight.detach()[ids]
    assert (minilm.tokens(vectors, 3) - minilm.tokens(ids, 3)).abs().max() < 1e-5
    (one,) = measure(minilm, vectors, **FEW)
    (other,) = measure(minilm, ids, [len(ids)], **(FEW | {"samples": 1}))
    assert one.n == len(ids)
    assert one.lower == pytest.approx(other.lower, rel=1e-4)
    np.save(tmp_path / "one.npy", vectors.numpy())
    np.savez(tmp_path / "two.npz", both=np.stack([vectors.numpy()] * 2))
    assert read_embeddings(tmp_path / "one.npy").shape == (1, *vectors.shape)
    assert read_embeddings(tmp_path / "two.npz").shape == (2, *vectors.shape)
    save_file({"vectors": vectors.contiguous()}, tmp_path / "one.safetensors")
    assert torch.equal(read_embeddings(tmp_path / "one.safetensors")[0], vectors)
    save_file({"a": vectors.clone(), "b": vectors.clone()}, tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match="must hold one array, got a, b"):
        read_embeddings(tmp_path / "two.safetensors")
    np.save(tmp_path / "ids.npy", ids.numpy())
    for source, said in (("ids.npy", "must hold numbers of shape"), ("some.txt", "are read from")):
        with pytest.raises(ValueError, match=said):
            read_embeddings(tmp_path / source)
    with pytest.raises(ValueError, match=r"embeddings of shape \(n, 384\)"):
        minilm.tokens(vectors[:, :5], 3)


def test_texts_and_embeddings_from_the_command_line(
    minilm: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    lines, out = str(tmp_path / "texts.txt"), str(tmp_path / "out")
    few = ["--layers", "1", "--heads", "none", "--no-bounds", "--out", out]
    with pytest.raises(SystemExit) as left:
        main(["measure", "minilm", "--texts", lines, *few])
    assert not left.value.code
    rows = (tmp_path / "out" / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + len(TEXTS)
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["measure", "minilm", "--texts", lines, "--embeddings", lines, *few])
    assert left.value.code == 2
    assert "leave out --texts or --embeddings" in " ".join(capsys.readouterr().err.split())


def test_the_wrong_kind_of_input_is_one_sentence(
    vision: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "vision"
    vision.module.save_pretrained(place)
    file = tmp_path / "some.npz"
    np.savez(file, images=np.zeros((3, 8, 8), dtype=np.uint8), labels=np.zeros(3, dtype=np.int64))
    for command, said in (
        ([str(place)], "reads images, not texts: pass --images"),
        (["minilm", "--images", str(file)], "reads texts, not images"),
        ([str(place), "--images", str(tmp_path / "none")], "there is no data set"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["measure", *command, "--out", str(tmp_path / "out")])
        assert left.value.code == 2
        printed = " ".join(capsys.readouterr().err.split())
        assert said in printed
        assert "Traceback" not in printed
    command = ["measure", str(place), "--images", str(file), "--samples", "1", "--heads", "none"]
    with pytest.raises(SystemExit) as left:
        main([*command, "--out", str(tmp_path / "out")])
    assert not left.value.code
