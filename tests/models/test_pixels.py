"""What is done to pixels before a vision model reads them is what its own image processor does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.models import PREPROCESSING, fitted, load, processing

transformers = pytest.importorskip("transformers")
KINDS = {
    "ViTImageProcessor": {},
    "DeiTImageProcessor": {"do_normalize": False},
    "ConvNextImageProcessor": {"image_std": [0.2, 0.3, 0.4]},
    "MobileViTImageProcessor": {},
    "MobileViTImageProcessor ": {"do_flip_channel_order": False},
    "EfficientNetImageProcessor": {},
    "EfficientNetImageProcessor ": {"include_top": False},
}


def put(folder: Path, kind: str, **told: object) -> str:
    (folder / PREPROCESSING).write_text(json.dumps({"image_processor_type": kind} | told))
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_become_what_the_processor_makes_of_them(tmp_path: Path, kind: str) -> None:
    told: dict[str, object] = {"image_mean": [0.2, 0.5, 0.6], "image_std": [0.3, 0.2, 0.5]}
    folder = put(tmp_path, kind.strip(), **told | KINDS[kind])
    image = np.random.default_rng(1).integers(0, 256, (3, 20, 24), dtype=np.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    theirs = processor(
        image,
        do_resize=False,
        do_center_crop=False,
        input_data_format="channels_first",
        return_tensors="pt",
    )["pixel_values"][0]
    ours = processing(folder, 3).layers(torch.from_numpy(image).double() / 255)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-5)


def test_a_model_of_the_hub_comes_with_its_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, like its weights; [-1, 1] would be another input than the model was made for."""
    kind = transformers.AutoImageProcessor
    put(tmp_path, "ViTImageProcessor", image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    plain, asked = kind.from_pretrained, []

    def served(name: str, **options: object) -> object:
        asked.append((name, options))
        return plain(tmp_path)

    monkeypatch.setattr(kind, "from_pretrained", served)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_attention_heads=1, **sizes)
    model = load(transformers.ViTModel(config).eval())
    model.name = "people/vit"
    pixels = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mean, deviation = (torch.tensor(v)[:, None, None] for v in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    torch.testing.assert_close(fitted(model, pixels), (pixels - mean) / deviation)
    assert asked == [("people/vit", {"local_files_only": False, "trust_remote_code": False})]


def test_what_is_not_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that does a third thing, which nothing in its file told."""
    folder = put(tmp_path, "ViTImageProcessor")
    processing(folder, 3)
    kind = type(transformers.AutoImageProcessor.from_pretrained(folder))
    plain = kind.normalize
    monkeypatch.setattr(kind, "normalize", lambda *a, **k: plain(*a, **k) ** 2)
    with pytest.raises(ValueError, match="does more to pixels than to rescale"):
        processing(folder, 3)


def test_a_processor_that_serves_texts_too_is_asked(tmp_path: Path) -> None:
    """transformers 5 writes it to another file, and the pictures' part under a name of its own."""
    own = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    told = {"image_processor": {"image_processor_type": "ViTImageProcessor"} | own}
    (tmp_path / "processor_config.json").write_text(json.dumps(told))
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_attention_heads=1, **sizes)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    model = load(str(tmp_path))
    pixels = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mean, deviation = (torch.tensor(v)[:, None, None] for v in own.values())
    torch.testing.assert_close(fitted(model, pixels), (pixels - mean) / deviation)
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Any"}))
    torch.testing.assert_close(fitted(model, pixels), 2 * pixels - 1)
