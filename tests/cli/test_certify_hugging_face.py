"""`attnscope certify FOLDER` for a Hugging Face classifier: what is certified, and what is refused
in one sentence.
"""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.certification import certify
from attnscope.cli import main
from attnscope.layers import Normalise
from attnscope.studies import drawing
from attnscope.studies.certify import CertifyConfig
from attnscope.studies.certify.foreign import open_network

command = importlib.import_module("attnscope.cli.certify")
transformers = pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def vit(**changed: object) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, num_labels=3, **SIZES, **changed
    )
    return transformers.ViTForImageClassification(config).eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as save_pretrained leaves it, its image processor, and two images."""
    folder = tmp_path_factory.mktemp("hf")
    network = vit()
    network.save_pretrained(folder / "vit")
    normalise = {"do_normalize": True, "image_mean": [0.4], "image_std": [0.3]}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(normalise))
    pixels = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = network((pixels - 0.4) / 0.3).logits.argmax(-1)
    classes = ["a", "b", "c"]
    np.savez(folder / "two.npz", images=pixels.numpy(), labels=labels.numpy(), classes=classes)
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(CertifyConfig, bisections=0, nearest=0, layers=(), explained=1)
    monkeypatch.setattr(command, "CertifyConfig", small)
    monkeypatch.setattr(drawing, "available", lambda: False)  # pictures take their time


def run(folder: Path, data: Path, out: Path, *options: str) -> int:
    short = ("--split", "all", "--eps", "0.01", "--steps", "3", "--restarts", "1")
    with pytest.raises(SystemExit) as stop:
        main(["certify", str(folder), "--data", str(data), *short, "--out", str(out), *options])
    return int(stop.value.code or 0)


def test_a_vit_is_certified_from_its_folder(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    one = ("--images", "1")
    assert run(place / "vit", place / "two.npz", out, *one) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "vit attention, 2 heads, depth 1: 1 images of two" in printed
    assert "What each layer takes, at the proved radii of 1 images" in printed
    assert "A set to 0" in printed
    shares = [json.loads(line) for line in (out / "shares.jsonl").read_text().splitlines()]
    assert [row["norm"] is not None for row in shares] == [
        "(SelfAttention)" in row["layer"] for row in shares
    ]
    assert sum(row["limits"] for row in shares) == 1
    rows = [json.loads(line) for line in (out / "certificates.jsonl").read_text().splitlines()]
    with np.load(place / "two.npz") as kept:
        x, y = torch.from_numpy(kept["images"][:1]), torch.from_numpy(kept["labels"][:1])
    own = certify(nn.Sequential(Normalise((0.4,), (0.3,)), vit()).eval(), x, 0.01, y)
    assert [row["margin"] for row in rows] == pytest.approx([one.margin for one in own])
    assert [row["certified"] for row in rows] == [one.verdict for one in own] == [True]
    assert all(row["radius"] >= one.radius for row, one in zip(rows, own, strict=True))
    assert all(row["content_off"] in (0, 1, 2) for row in rows)
    assert not any(row["broken"] or row["broken_at_radius"] for row in rows)


def resnet(folder: Path) -> None:
    """A classifier without attention, which no proof speaks of."""
    config = transformers.ResNetConfig(
        num_channels=1,
        embedding_size=4,
        hidden_sizes=[4],
        depths=[1],
        layer_type="basic",
        num_labels=3,
    )
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    told = {"image_mean": [0.5], "image_std": [0.5], "crop_size": {"height": 8, "width": 8}}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))


def test_any_classifier_can_be_smoothed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resnet(tmp_path / "net")
    smoothing = ("--method", "smoothing", "--sigma", "0.1", "--samples", "40")
    assert run(tmp_path / "net", place / "two.npz", tmp_path / "out", *smoothing) == 0, (
        capsys.readouterr().err
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "resnet: 2 images of two" in printed
    assert "this network, smoothed" in printed
    assert "hold together but with probability 0.002" in printed
    rows = [json.loads(line) for line in (tmp_path / "out/smoothed.jsonl").read_text().splitlines()]
    assert [(row["samples"], row["kind"]) for row in rows] == [(40, "probable")] * 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert "another classifier than the network" in page
    assert run(tmp_path / "net", place / "two.npz", tmp_path / "o", "--method", "smoothing") == 2
    assert "needs --sigma" in " ".join(capsys.readouterr().err.split())


def test_channels_are_turned_round_where_the_processor_does(tmp_path: Path) -> None:
    """MobileViT reads blue, green, red, and shifts nothing."""
    torch.manual_seed(0)
    config = transformers.MobileViTConfig(
        image_size=32, hidden_sizes=[8, 8, 8], neck_hidden_sizes=[4, 4, 4, 4, 8, 8, 8], num_labels=3
    )
    network = transformers.MobileViTForImageClassification(config).eval()
    for weight in network.parameters():
        nn.init.normal_(weight)
    network.save_pretrained(tmp_path)
    told = {"image_processor_type": "MobileViTImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, local_files_only=True)
    image = np.random.default_rng(0).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    given = processor(
        image, do_resize=False, do_center_crop=False, input_data_format="channels_first"
    )
    with torch.no_grad():
        theirs = network(torch.tensor(np.array(given["pixel_values"]))).logits
        ours = open_network(str(tmp_path))(torch.from_numpy(image)[None] / 255)
        plain = network(torch.from_numpy(image)[None] / 255).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert (plain - theirs).abs().max() > 1e-4


def no_preprocessor(folder: Path) -> str:
    vit().save_pretrained(folder)
    return "has no preprocessor_config.json that can be read"


def other_channels(folder: Path) -> str:
    vit().save_pretrained(folder)
    told = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return "normalises 3 channels, the model reads 1"


def no_numbers(folder: Path) -> str:
    vit().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_mean": "grey", "image_std": [1]}')
    return "image_mean must be numbers in preprocessor_config.json"


def rescaled(folder: Path) -> str:
    vit().save_pretrained(folder)
    told = {"image_mean": [0.5], "image_std": [0.5], "rescale_factor": 1 / 127.5}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return "rescale_factor"


def of_another_kind(folder: Path) -> str:
    """Each image is normalised by its own mean, which no shift and scale of pixels is."""
    vit().save_pretrained(folder)
    told = {"image_processor_type": "Pix2StructImageProcessor", "do_rescale": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return "preprocessor_config.json must bring pixels to [0, 1]"


def of_no_kind(folder: Path) -> str:
    vit().save_pretrained(folder)
    told = {"image_processor_type": "NoSuchImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return "does not make an image processor"


def a_language_model(folder: Path) -> str:
    sizes = {"vocab_size": 9, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(folder)
    return "no image classifier can be read from"


def a_convolution(folder: Path) -> str:
    resnet(folder)
    return "(ResNetForImageClassification) has no bound"


def without_its_head(folder: Path) -> str:
    vit().base_model.save_pretrained(folder)
    return "lacks classifier.bias and 1 other weights, which would be random"


def pickled(folder: Path) -> str:
    vit().save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return "no image classifier can be read from"


@pytest.mark.parametrize(
    "make",
    [
        no_preprocessor,
        other_channels,
        no_numbers,
        rescaled,
        of_another_kind,
        of_no_kind,
        a_language_model,
        a_convolution,
        without_its_head,
        pickled,
    ],
)
def test_folders_that_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: object
) -> None:
    message = make(tmp_path / "net")  # type: ignore[operator]
    capsys.readouterr()
    assert run(tmp_path / "net", place / "two.npz", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_images_of_another_size_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "six.npz", images=np.zeros((2, 6, 6)), labels=[0, 1], classes=["a", "b"])
    assert run(place / "vit", tmp_path / "six.npz", tmp_path / "out") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "(1, 8, 8), but six has (1, 6, 6)" in said
