"""Attention variants: one file in this folder is one variant, found by its file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from attnscope.attention._base import Attention
from attnscope.attention._heads import Heads
from attnscope.attention._normalised import Normalised
from attnscope.attention._parts import Affine, BiasOf, Climbed, Kernel, NoClosedForm, Overflow

__all__ = [
    "Affine",
    "Attention",
    "BiasOf",
    "Climbed",
    "Heads",
    "Kernel",
    "NoClosedForm",
    "Normalised",
    "Overflow",
    "variants",
]


def variants() -> dict[str, type[Attention]]:
    """Every attention variant by name, discovered from the files of this folder."""
    found: dict[str, type[Attention]] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for member in vars(module).values():
            if (
                inspect.isclass(member)
                and issubclass(member, Attention)
                and member.__module__ == module.__name__
            ):
                found[member.name] = member
    return found
