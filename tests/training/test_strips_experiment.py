"""The experiment on strips: every setting is a recipe for network and control, splits share no
digit, and a training that was measured is not measured again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import strips

from attnscope.data import images


def digits_in(pixels: torch.Tensor) -> set[bytes]:
    tokens = torch.cat(pixels.split(8, dim=-1)).flatten(1)
    return {row.numpy().tobytes() for row in tokens.unique(dim=0)}


def test_every_setting_is_a_recipe_for_network_and_control() -> None:
    for name in strips.GRID:
        network, control = (
            strips.recipe(strips.TASKS[0], name, content, 7) for content in (True, False)
        )
        assert network.control() == control
        assert network.seed == 7
        assert network.config.tokens == 4


def test_choices_are_made_on_training_digits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "STRIPS", {"train": 300})
    strips.data.cache_clear()
    learned, seen = (digits_in(held.pixels) for held in strips.data("picture", True))
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
    assert measured == sum(map(len, tried)) + 3 * len(strips.SEEDS)
    assert strips.main() == found
    assert len(calls) == measured
    lines = (tmp_path / "strips.jsonl").read_text().splitlines()
    assert {json.loads(line)["phase"] for line in lines} == {"tuning", "final"}
