"""The state of a training as one file, written whole or not at all, and its log as lines of
JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from attnscope.files import write_atomically
from attnscope.training.recipe import Recipe
from attnscope.training.training import Training
from attnscope.validation import parsed

VERSION = 1
STATE, LOG = "training.safetensors", "log.jsonl"


def store(training: Training, folder: Path) -> None:
    """Keep the training so that `take_up` can go on from here."""
    about = {
        "version": str(VERSION),
        "plan": json.dumps(training.recipe.as_dict()),
        "at": json.dumps([training.step, training.seconds]),
    }
    write_atomically(folder / STATE, safetensors.torch.save(training.tensors(), about))


def take_up(training: Training, folder: Path) -> None:
    """Go on where the training stored in the folder stopped; it must have the same recipe."""
    path = folder / STATE
    try:
        with safetensors.safe_open(path, "pt") as stored:
            about = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ValueError(
            f"{str(folder)!r} holds no training to resume ({STATE} is not there): start a new one."
        ) from error
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read ({error}): it is cut off or no checkpoint, start again"
            " and replace it."
        ) from error
    if about.get("version") != str(VERSION):
        raise ValueError(
            f"{str(path)!r} is of version {about.get('version')!r}, this attnscope resumes version"
            f" {VERSION}: start again."
        )
    _check_recipe(parsed(about["plan"]), training.recipe)
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ValueError(
            f"{str(path)!r} holds NaN or infinite numbers in {', '.join(bad[:4])}: start again and"
            " replace it."
        )
    step, seconds = parsed(about["at"])
    training.restore(tensors, int(step), float(seconds))


def _check_recipe(stored: dict[str, Any], recipe: Recipe) -> None:
    wanted = json.loads(json.dumps(recipe.as_dict()))
    differing = [name for name in wanted if stored.get(name) != wanted[name]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"the training to resume had another {name}: {stored.get(name)!r} there,"
            f" {wanted[name]!r} here. Resume with the options it began with, or choose another"
            " folder."
        )


class Log:
    """log.jsonl: one line per record, on disk at once. Resuming drops the lines of steps that are
    done again.
    """

    def __init__(self, folder: Path, after: int) -> None:
        path = folder / LOG
        kept = ""
        if after and path.exists():
            lines = [line for line in path.read_text().splitlines() if line]
            kept = "".join(line + "\n" for line in lines if parsed(line)["step"] <= after)
        write_atomically(path, kept)
        self._file = path.open("a")

    def add(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
