"""`rule`: what a module of exactly one class is made of."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from torch import nn

Reader = Callable[[nn.Module], nn.Module]
"""From a module to an nn.Sequential, a Residual or a layer, equal to it as a map."""

_READERS: dict[str, Reader] = {}


def rule(*classes: str) -> Callable[[Reader], Reader]:
    """Register how modules of these classes, by their full names, are taken apart. Names, because
    libraries that are not imported have no modules to read.
    """

    def register(reader: Reader) -> Reader:
        for name in classes:
            if name in _READERS:
                raise ValueError(f"two rules read {name}.")
            _READERS[name] = reader
        return reader

    return register


def readers() -> dict[str, Reader]:
    """Every rule by the full name of its class."""
    _discover()
    return dict(_READERS)


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _discover() -> None:
    package = importlib.import_module("attnscope.certification.reading")
    for info in pkgutil.iter_modules(package.__path__, "attnscope.certification.reading."):
        importlib.import_module(info.name)
