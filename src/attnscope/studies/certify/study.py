"""`Certify`: how far can an image be changed before this network may read it otherwise?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from attnscope.certification import certify
from attnscope.data.pictures import SPLITS, Images
from attnscope.nets import describe, shipped
from attnscope.studies.cell import Cell
from attnscope.studies.certify import figures as drawn
from attnscope.studies.certify import summary as told
from attnscope.studies.certify.built import built
from attnscope.studies.certify.evaluation import (
    evaluate,
    exact_of,
    hash_images,
    images_of,
    network_of,
    weights_of,
)
from attnscope.studies.certify.foreign import certifiable, is_foreign
from attnscope.studies.certify.layer import layer_rows
from attnscope.studies.certify.layers import layer_sheets, share_rows
from attnscope.studies.certify.nearest import nearest_of_all
from attnscope.studies.certify.rows import (
    LAYER_EPS,
    About,
    CertifyConfig,
    Explained,
    HeadRow,
    LayerRow,
    NearRow,
    NetworkRow,
    OneLayer,
    Row,
    Shard,
    ShareRow,
    Smoothing,
    SmoothRow,
)
from attnscope.studies.certify.smoothing import (
    check_smoothing,
    smooth_rows,
    smooth_summaries,
)
from attnscope.studies.study import Sheet, Study
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench
from attnscope.validation import check_positive


class NoData(ValueError):
    """Nothing says which images to certify."""


class Certify(Study):
    """Certificates of images against every l2 perturbation, next to an attack, the norms of A, the
    reading with A set to 0, and a control without content attention.
    """

    name = "certify"
    Config = CertifyConfig
    fast = CertifyConfig(images=20, shard=10, steps=20, restarts=2, bisections=3)
    tables: ClassVar[dict[str, type]] = {
        "certificates": Row,
        "networks": NetworkRow,
        "heads": HeadRow,
        "nearest": NearRow,
        "layers": LayerRow,
        "smoothed": SmoothRow,
        "shares": ShareRow,
    }
    aside = ("eps_names",)

    def cells(self, config: CertifyConfig, workbench: Workbench) -> Iterator[Cell]:
        _check(config)
        if config.builder is not None:
            _build(config, workbench)
        networks = _networks(config, workbench)
        data = config.data or _notes(networks["network"], workbench).get("data")
        if not isinstance(data, str):
            raise NoData(
                f"{networks['network']!r} does not say what it was trained on: name the data set."
            )
        held = images_of(workbench, data, config.split)
        parts: dict[str, dict[str, Any]] = {
            name: {
                "network": name,
                "checkpoint": checkpoint,
                "weights": _fitting(workbench, checkpoint, held, config),
                "data": data,
                "split": config.split,
            }
            for name, checkpoint in networks.items()
        }
        for part in parts.values():
            yield About(**part, trained=_trained(_notes(part["checkpoint"], workbench)))
        for part in parts.values():
            yield from _shards(config, held, part)
        count = min(config.explained, config.images, len(held))
        if count and config.method != "smoothing":
            yield Explained(
                **parts["network"],
                count=count,
                pixels=hash_images(held, 0, count),
                eps=tuple(sorted(config.eps)),
                bisections=config.bisections,
            )
        for heads in config.layers if config.method != "smoothing" else ():
            strength = {"steps": config.steps, "restarts": config.restarts, "seed": config.seed}
            yield OneLayer(heads=heads, eps=LAYER_EPS, **strength)

    def run(self, cell: Any, workbench: Workbench) -> list[Any]:
        if isinstance(cell, About):
            return _about(cell, workbench)
        if isinstance(cell, OneLayer):
            workbench.check(0.0, f"one layer, {cell.heads} heads")
            return list(layer_rows(cell))
        if isinstance(cell, Explained):
            return list(share_rows(cell, workbench))
        if isinstance(cell, Smoothing):
            return list(smooth_rows(cell, workbench))
        return list(evaluate(cell, workbench))

    def figures(self, table: Table) -> dict[str, Any]:
        made = {}
        if len(table) or table["smoothed"]:
            made["accuracy-against-eps"] = drawn.accuracy_against_eps(
                table.rows, table["networks"], table["smoothed"]
            )
        if table["layers"]:
            made["bound-against-attack"] = drawn.bound_against_attack(table["layers"])
        near = nearest_of_all(table["nearest"], table.config.nearest)
        if near:
            made["nearest-images"] = drawn.nearest_images(near, table["networks"])
        return made

    def summary(self, table: Table) -> list[Sheet]:
        smooth = smooth_summaries(table["smoothed"], table.config.eps)
        about = (table["networks"], table["heads"])
        return [
            *told.sheets(table.rows, *about, table.config, smooth),
            *layer_sheets(table["shares"]),
        ]

    def remarks(self, table: Table) -> list[str]:
        if not len(table):
            return []
        broken = told.broken_certificates(table.rows)
        said = (
            f"UNSOUND: {broken}" if broken else "",
            told.on_blindness(table.rows),
            told.on_the_control(table["networks"]),
        )
        return [sentence for sentence in said if sentence]

    def files(self, table: Table) -> dict[str, bytes]:
        """The summary of each network, and what its content attention is worth."""
        made: dict[str, Any] = {
            name: asdict(one) for name, one in told.summaries(table.rows).items()
        }
        for name, one in smooth_summaries(table["smoothed"], table.config.eps).items():
            made[f"smoothed {name}"] = asdict(one)
        if not made:
            return {}
        norms = told.norms_of(table["heads"])
        if norms and "network" in made:
            made["content"] = {
                "norms": norms,
                "accuracy_without": made["network"]["accuracy_without"],
            }
        return {"summary.json": (json.dumps(made, indent=1) + "\n").encode()}


def _check(config: CertifyConfig) -> None:
    """What can be refused before a network is loaded."""
    check_smoothing(config)
    if config.split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {config.split!r}.")
    if not config.eps:
        raise ValueError("there must be at least one eps.")
    for eps in config.eps:
        check_positive("eps", eps)
    if len(set(config.eps)) < len(config.eps):
        raise ValueError("each eps can be certified once only.")
    least = {"images": 1, "steps": 1, "restarts": 1, "shard": 1, "bisections": 0, "nearest": 0}
    least |= {"explained": 0}
    for name, smallest in least.items():
        if getattr(config, name) < smallest:
            raise ValueError(f"{name} must be at least {smallest}, got {getattr(config, name)}.")


def _build(config: CertifyConfig, workbench: Workbench) -> None:
    """Put the network that the user's function builds on the workbench."""
    weights, builder = config.checkpoint, config.builder
    if weights is None or builder is None:
        raise ValueError("a builder goes with the safetensors file of its weights.")
    if config.data is None:
        raise NoData(f"nothing says what {weights!r} was trained on: name the data set.")
    held = images_of(workbench, config.data, config.split)
    workbench.once(("network", weights), lambda: built(builder, weights, held))
    workbench.once(("notes", weights), dict)


def _networks(config: CertifyConfig, workbench: Workbench) -> dict[str, str]:
    """The folders of the network and, where there is one, of its control."""
    folder = str(shipped()) if config.checkpoint is None else config.checkpoint
    control = config.control or control_of(folder)
    found = {"network": folder} if control is None else {"network": folder, "control": control}
    for checkpoint in found.values():
        if network_of(workbench, checkpoint).config.image is None:
            raise ValueError(
                f"{checkpoint!r} is a language model: certify reads classifiers of images."
            )
    return found


def control_of(folder: str) -> str | None:
    """The control that was trained beside a network, if there is one."""
    beside = Path(folder) / "control"
    return str(beside) if (beside / "config.json").exists() else None


def _notes(checkpoint: str, workbench: Workbench) -> dict[str, Any]:
    """What was noted when the network was saved."""
    notes: dict[str, Any] = workbench.once(
        ("notes", checkpoint),
        lambda: {} if is_foreign(checkpoint) else describe(checkpoint)["notes"],
    )
    return notes


def _trained(notes: dict[str, Any]) -> tuple[Any, ...]:
    """How the network was trained; a note of another kind than ours is no note."""
    kinds: dict[str, Any] = {"data": str, "minutes": int | float, "steps": int, "finished": bool}
    return tuple(
        notes.get(name) if isinstance(notes.get(name), kind) else None
        for name, kind in kinds.items()
    )


def _fitting(workbench: Workbench, checkpoint: str, held: Images, config: CertifyConfig) -> str:
    """The hash of a network that reads these images and, for proofs, has a bound for every
    layer.
    """
    network = network_of(workbench, checkpoint)
    shape, classes = tuple(held.pixels.shape[1:]), len(held.classes)
    if shape != network.config.image:
        raise ValueError(
            f"the network reads images of (channels, height, width) {network.config.image}, but"
            f" {held.name} has {shape}."
        )
    if classes != network.config.outputs:
        raise ValueError(
            f"the network knows {network.config.outputs} classes, but {held.name} has {classes} "
            f"({', '.join(held.classes[:12])}): pass the data set that it was trained on."
        )
    if config.method != "smoothing":  # refuses layers without a bound
        certify(certifiable(network.eval()), held.pixels[:1].double(), min(config.eps))
    return weights_of(workbench, checkpoint)


def _shards(config: CertifyConfig, held: Images, part: dict[str, Any]) -> Iterator[Cell]:
    total = min(config.images, len(held))
    for first in range(0, total, config.shard):
        count = min(config.shard, total - first)
        pixels = hash_images(held, first, count)
        which: dict[str, Any] = {**part, "first": first, "count": count, "pixels": pixels}
        if config.method != "smoothing":
            yield Shard(
                **which,
                eps=tuple(sorted(config.eps)),
                bisections=config.bisections,
                steps=config.steps,
                restarts=config.restarts,
                seed=config.seed,
                nearest=config.nearest if part["network"] == "network" else 0,
            )
        if config.method != "proof":
            assert config.sigma is not None
            yield Smoothing(
                **which,
                sigma=config.sigma,
                samples=config.samples,
                alpha=config.alpha,
                seed=config.seed,
                failure_probability=count * config.alpha,
            )


def _about(cell: About, workbench: Workbench) -> list[Any]:
    network = exact_of(cell, workbench)
    data, minutes, steps, finished = cell.trained
    return [
        NetworkRow(
            network=cell.network,
            checkpoint=cell.checkpoint,
            attention=network.config.attention,
            heads=network.config.heads,
            depth=network.config.depth,
            images=images_of(workbench, cell.data, cell.split).name,
            data=data,
            minutes=minutes,
            steps=steps,
            finished=finished,
        ),
        *(
            HeadRow(cell.network, layer, head, norm)
            for layer, norms in enumerate(network.attention_norms())
            for head, norm in enumerate(norms.tolist())
        ),
    ]
