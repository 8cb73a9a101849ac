"""Figures of data sets that do not ship: where their images are, a small network and its control
are trained and certified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from attnscope.data import Images, images, local_images
from attnscope.nets import Config
from attnscope.studies.cell import Cell
from attnscope.studies.certify.evaluation import evaluate, hash_images
from attnscope.studies.certify.rows import HeadRow, NetworkRow, Shard
from attnscope.studies.papers._figure import Missing
from attnscope.studies.papers._images import CertifiedFigure
from attnscope.studies.workbench import Workbench, check_hash, hash_module
from attnscope.training import Recipe, Training
from attnscope.validation import check_positive


@dataclass(frozen=True)
class TrainedConfig:
    """`data` is a folder that holds the set; the cache where it is empty. Training is for `aim`."""

    data: str = ""
    steps: int = 3000
    images: int = 200
    eps: tuple[float, ...] = (36 / 255, 72 / 255, 108 / 255)
    aim: float = 36 / 255
    attack_steps: int = 100
    restarts: int = 5
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainedCell(Cell):
    """A training and its certificates; `pixels` and `learned` are the hashes of the images."""

    network: str
    data: str
    learned: str
    pixels: str
    steps: int
    images: int
    eps: tuple[float, ...]
    aim: float
    attack_steps: int
    restarts: int
    seed: int


class TrainedFigure(CertifiedFigure):
    Config = TrainedConfig
    fast = TrainedConfig(steps=40, images=20, eps=(36 / 255,), attack_steps=15, restarts=1)
    data: ClassVar[str]

    def cells(self, config: TrainedConfig, workbench: Workbench) -> Iterable[TrainedCell]:
        for name in ("steps", "images", "attack_steps", "restarts"):
            check_positive(name, getattr(config, name))
        place = self.place(config)
        train, test = (_images(workbench, place, split) for split in ("train", "test"))
        count = min(config.images, len(test))
        for network in ("network", "control"):
            yield TrainedCell(
                network=network,
                data=place,
                learned=hash_images(train, 0, len(train)),
                pixels=hash_images(test, 0, count),
                steps=config.steps,
                images=count,
                eps=config.eps,
                aim=config.aim,
                attack_steps=config.attack_steps,
                restarts=config.restarts,
                seed=config.seed,
            )

    def place(self, config: TrainedConfig) -> str:
        """What `data.images` reads the set from."""
        found = local_images(self.data, Path(config.data) if config.data else None)
        if found is None:
            where = f"in {config.data!r}" if config.data else "in the cache"
            raise Missing(
                f"{self.data} is not {where}: name a folder that holds it, or load it once with"
                f" attnscope.data.images({self.data!r})."
            )
        return str(found)

    def recipe(self, train: Images, cell: TrainedCell) -> Recipe:
        """How the network of a cell, or its control, is trained."""
        recipe = _recipe(train, cell)
        return recipe if cell.network == "network" else recipe.control()

    def run(self, cell: TrainedCell, workbench: Workbench) -> list[Any]:
        train = _images(workbench, cell.data, "train")
        check_hash(train.name, hash_images(train, 0, len(train)), cell.learned)
        recipe = self.recipe(train, cell)
        training = Training(recipe, train.pixels, train.labels)
        while training.progress < 1:
            part = 0.7 * training.progress
            workbench.check(part, f"{cell.network}: training step {training.step}")
            training.advance()
        network = training.network.eval()
        name = f"{cell.network} of {cell.key}"
        workbench.put(("network", name), network)
        shard = Shard(
            network=cell.network,
            checkpoint=name,
            weights=hash_module(network),
            data=cell.data,
            split="test",
            first=0,
            count=cell.images,
            pixels=cell.pixels,
            eps=tuple(sorted(cell.eps)),
            bisections=0,
            steps=cell.attack_steps,
            restarts=cell.restarts,
            seed=cell.seed,
            nearest=0,
        )
        config = recipe.config
        about = NetworkRow(
            cell.network,
            "trained here",
            config.attention,
            config.heads,
            config.depth,
            train.name,
            self.data,
            None,
            cell.steps,
            True,
        )
        norms = [
            HeadRow(cell.network, layer, head, norm)
            for layer, values in enumerate(network.attention_norms())
            for head, norm in enumerate(values.tolist())
        ]
        return [about, *norms, *evaluate(shard, workbench)]


def _images(workbench: Workbench, place: str, split: str) -> Images:
    found: Images = workbench.once(("images", place, split), lambda: images(place, split))
    return found


def _recipe(train: Images, cell: TrainedCell) -> Recipe:
    channels, height, width = train.pixels.shape[1:]
    patch = max(height // 8, 1)
    config = Config.vit(
        (channels, height, width),
        len(train.classes),
        patch,
        dim=min(max(32, channels * patch**2), 96),
        heads=2,
        hidden=128,
    )
    return Recipe(config, eps=cell.aim, steps=cell.steps, seed=cell.seed, shift=2)
