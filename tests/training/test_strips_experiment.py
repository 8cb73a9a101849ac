"""The experiment on strips: every setting is a recipe for network and control, splits share no
digit, and a training that was measured is not measured again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import strips

from attnscope.data import images, pictures
from attnscope.nets import Transformer


def digits_in(pixels: torch.Tensor) -> set[bytes]:
    tokens = torch.cat(pixels.split(8, dim=-1)).flatten(1)
    return {row.numpy().tobytes() for row in tokens.unique(dim=0)}


def test_every_setting_is_a_recipe_for_network_and_control() -> None:
    for name in strips.GRID:
        for task in strips.TASKS:
            network, control = (strips.recipe(task, name, content, 7) for content in (True, False))
            assert network.control() == control
            assert network.seed == 7
            assert network.config.tokens == (5 if task.same == "odd" else 4)
            assert network.config.depth == task.depth


def test_either_side_tries_as_many_settings() -> None:
    for task in strips.TASKS:
        tried = [strips.settings(task, content) for content in (True, False)]
        assert len(set(tried[0])) == len(set(tried[1])) >= 4
        assert set(tried[0] + tried[1]) <= set(strips.GRID)
        assert all(name.startswith("comparing") for name in tried[0])
        assert all(name.startswith("mixing") for name in tried[1])


def test_crops_are_read_from_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.arange(40, dtype=np.uint8)
    for split, first in (("train", 0), ("test", 100)):
        crops = np.broadcast_to((first + numbers)[:, None, None, None], (40, 32, 32, 3))
        np.savez(tmp_path / f"{split}.npz", images=crops, labels=numbers % 4)
    monkeypatch.setenv(strips.SVHN, str(tmp_path))
    monkeypatch.setattr(strips, "STRIPS", {"train": 30})
    task = strips.Task("class", 1, "svhn")
    learned, seen = (
        (of.pixels[:, 0, 0, ::32] * 255).round().int() for of in strips.data(task, True)
    )
    assert not set(learned.flatten().tolist()) & set(seen.flatten().tolist())
    assert max(learned.max(), seen.max()) < 40, "no test crop guides a choice"
    strips.data.cache_clear()
    monkeypatch.setattr(pictures, "STRIPS", {"train": 30, "test": 400})
    held = strips.data(task, False)[1]
    strips.data.cache_clear()
    assert len(held) == strips.TEST
    assert int((held.pixels.min() * 255).round()) >= 100
    assert strips.recipe(task, "comparing", True, 0).config.image == held.pixels.shape[1:]


def test_crops_that_are_not_there_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(strips, "RESULTS", tmp_path / "strips.jsonl")
    monkeypatch.setattr(strips, "TASKS", strips.TASKS[-1:])
    monkeypatch.setenv(strips.SVHN, str(tmp_path / "nowhere"))
    strips.data.cache_clear()
    assert strips.main() == {}
    said = capsys.readouterr().err
    assert "same class of SVHN, depth 1 is LEFT OUT" in said
    assert strips.SVHN in said


def test_choices_are_made_on_training_digits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "STRIPS", {"train": 300})
    strips.data.cache_clear()
    learned, seen = (digits_in(held.pixels) for held in strips.data(strips.TASKS[0], True))
    strips.data.cache_clear()
    test = digits_in(images("digits", "test").pixels)
    assert not learned & seen
    assert not (learned | seen) & test


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def trained(task: Any, setting: str, content: bool, seed: int, tuning: bool) -> dict[str, Any]:
        calls.append((setting, content, seed))
        share = 80.0 if content else 40.0 + 5 * (setting == "mixing, round corners, longer")
        return {"certified": [share, 100 - share]}

    monkeypatch.setattr(strips, "RESULTS", tmp_path / "strips.jsonl")
    monkeypatch.setattr(strips, "trained", trained)
    monkeypatch.setattr(strips, "TASKS", strips.TASKS[:1])
    found = strips.main()
    chosen = [strips.tuned(strips.TASKS[0], False, place) for place in (0, 1)]
    assert chosen == ["mixing, round corners, longer", "mixing, longer"], "one for each radius"
    assert [line["value"] for line in found.values()] == [-35, 40]
    assert [line["at most"] for line in found.values()] == [-15, -5]
    measured = len(calls)
    tried = [strips.settings(strips.TASKS[0], content) for content in (True, False)]
    tuning = sum(map(len, tried)) * len(strips.TUNING_SEEDS)
    assert measured == tuning + 3 * len(strips.SEEDS)
    assert strips.main() == found
    assert len(calls) == measured
    lines = (tmp_path / "strips.jsonl").read_text().splitlines()
    assert {json.loads(line)["phase"] for line in lines} == {"tuning", "final"}


def test_the_sizes_that_the_docs_quote() -> None:
    """Parameters of the network on classes, of a control as large, and of the wide one."""
    task = strips.Task("class", 1)
    settings = {
        "comparing, sharpest, whole loss, longest": True,
        "mixing, round corners, whole loss, longest": False,
        "mixing, round corners, wide, whole loss, longest": False,
    }
    networks = [Transformer(strips.recipe(task, *one, 0).config) for one in settings.items()]
    sizes = [sum(part.numel() for part in network.parameters()) for network in networks]
    assert [round(size, -3) for size in sizes] == [35_000, 34_000, 157_000]
    assert sizes[2] / sizes[0] == pytest.approx(4.5, abs=0.05)
