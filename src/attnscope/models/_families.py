"""The model families, discovered from the files of this folder."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

from torch import nn

from attnscope.models._base import Model


def families() -> dict[str, type[Model]]:
    """Every model family by name."""
    found: dict[str, type[Model]] = {}
    folder = Path(__file__).parent
    package = __name__.rpartition(".")[0]
    for info in sorted(pkgutil.iter_modules([str(folder)]), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        for member in vars(module).values():
            if (
                inspect.isclass(member)
                and issubclass(member, Model)
                and member.__module__ == module.__name__
            ):
                found[member.family] = member
    return found


def family_of(module: nn.Module) -> type[Model]:
    """The family that serves this network: by its Hugging Face model type, else the generic one."""
    kind = getattr(getattr(module, "config", None), "model_type", None)
    found = families()
    return next((family for family in found.values() if kind in family.types), found["generic"])
