"""Certified against attacked accuracy over eps on strips of digits, where content decides
[havens24].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnscope.data import Images
from attnscope.nets import Config
from attnscope.studies.papers._trained import TrainedCell, TrainedConfig, TrainedFigure
from attnscope.training import Recipe

COMPARING = {"dim": 80, "head_dim": 80, "value_dim": 8, "mlp": "none"}
"""Heads that compare whole pictures and write where they stand; nothing after them."""
MIXING = {"dim": 64, "head_dim": 16, "value_dim": 64, "mlp": "sll", "half_width": 0.5}
"""The control mixes pictures by their places, and an MLP sees their differences."""


@dataclass(frozen=True)
class StripsConfig(TrainedConfig):
    steps: int = 1000
    eps: tuple[float, ...] = (0.1, 0.2)
    aim: float = 0.2


class CertifiedStrips(TrainedFigure):
    """Certified against attacked accuracy on strips of digits: which of three is the first."""

    name = "certified_strips"
    figure = "certified accuracy on strips"
    seconds = (10, 60)
    data = "strips"
    Config = StripsConfig
    fast = StripsConfig(steps=40, images=20, eps=(0.1,), attack_steps=15, restarts=1)

    def place(self, config: TrainedConfig) -> str:
        return self.data

    def recipe(self, train: Images, cell: TrainedCell) -> Recipe:
        """Each in the shape that suits it: `python -m benchmarks strips` compares over a grid."""
        content = cell.network == "network"
        parts: dict[str, Any] = COMPARING if content else MIXING | {"half_width": 1.0}
        config = Config.vit((1, 8, 32), len(train.classes), 8, heads=2, content=content, **parts)
        return Recipe(
            config,
            eps=cell.aim,
            delay=0.3,
            ramp=0.4,
            steps=cell.steps,
            batch=64,
            rate=0.01,
            floor=0.3,
            cap=0.8,
            value_cap=2.0,
            seed=cell.seed,
        )
