"""Descriptions of networks that ask for what is not there: refused before anything is built."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from attnscope.nets import Config, Transformer, load, save
from attnscope.nets.files import describe

SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "head_dim": 3, "value_dim": 5, "hidden": 7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(Transformer(Config.vit((1, 8, 8), 10, 4, **SMALL)), tmp_path)
    return tmp_path


def change(folder: Path, **parts: Any) -> None:
    told = json.loads((folder / "config.json").read_text())
    told["config"] |= parts
    (folder / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize("attention", ["softmax", "none"])
@pytest.mark.parametrize("mlp", ["sll", "residual", "none"])
def test_the_least_number_of_weights_is_never_too_large(attention: str, mlp: str) -> None:
    for pooling, biased in itertools.product(("flatten", "mean"), (True, False)):
        parts = {**SMALL, "depth": 2, "pooling": pooling, "position_bias": biased}
        config = Config.vit((1, 8, 8), 10, 4, attention=attention, mlp=mlp, **parts)
        held = sum(tensor.numel() for tensor in Transformer(config).state_dict().values())
        assert held / 2 < config.least_numbers() <= held
    config = Config.language(11, 6, mlp=mlp, attention=attention, **SMALL)
    held = sum(tensor.numel() for tensor in Transformer(config).state_dict().values())
    assert held / 2 < config.least_numbers() <= held


@pytest.mark.parametrize(
    "part", ["outputs", "dim", "heads", "head_dim", "value_dim", "hidden", "depth"]
)
def test_absurd_sizes_are_compared_with_the_weights_before_they_are_built(
    part: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(self: Transformer, config: Config) -> None:
        raise AssertionError("a network was built")

    monkeypatch.setattr(Transformer, "__init__", build)
    change(folder, **{part: 10**12})
    with pytest.raises(ValueError, match=r"does not hold the network|depth must be at most"):
        load(folder)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"config":' * 50_000, '{"version": ' + "9" * 5000 + "}"]
)
def test_deep_json_and_endless_numbers(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match="is not JSON"):
        load(folder)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", [{"tokens": "x"}, {"tokens": None}, {"tokens": [1]}, [1]])
def test_options_of_an_attention_are_numbers(options: object, folder: Path) -> None:
    change(folder, options=options)
    with pytest.raises(ValueError, match="options must be a mapping of names to numbers"):
        load(folder)


def test_options_that_the_attention_does_not_have(folder: Path) -> None:
    change(folder, options={"nonsense": 1})
    with pytest.raises(ValueError, match="nonsense"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16])
def test_weights_of_another_kind(dtype: torch.dtype, folder: Path) -> None:
    path = folder / "network.safetensors"
    state = {name: one.to(dtype) for name, one in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(state, path)
    told = json.loads((folder / "config.json").read_text())
    told["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="float32 or float64"):
        load(folder)


@pytest.mark.parametrize("part", ["half_width", "step"])
@pytest.mark.parametrize("value", [1e300, 1e-300])
def test_settings_that_float32_cannot_hold(part: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{part} must lie between"):
        Config.vit((1, 8, 8), 10, 4, **SMALL, **{part: value})


@pytest.mark.parametrize("notes", [[], None, "trained", 3])
def test_notes_of_another_kind_are_refused(notes: object, folder: Path) -> None:
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | {"notes": notes}))
    with pytest.raises(ValueError, match=r"notes of .* must be an object"):
        describe(folder)
    del told["notes"]
    (folder / "config.json").write_text(json.dumps(told))
    assert describe(folder)["notes"] == {}
