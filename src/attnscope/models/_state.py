"""Whether somebody has touched a network since it was looked at."""

from __future__ import annotations

from typing import Any

from torch import nn

PLAIN = (bool, int, float, str)
"""Attributes of modules that are compared by value: scales, window sizes, switches."""


def state_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when weights are written in place or replaced, or the structure changes."""
    tensors = (*module.parameters(), *module.buffers())
    versions = ((id(t), 0 if t.is_inference() else t._version) for t in tensors)
    return (*versions, *structure_of(module))


def structure_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when modules are put in, hooks come and go (each has a number of its own), a
    module gets another `forward`, or one of its numbers another value.
    """
    return tuple(
        (
            part,
            type(part),
            tuple(part._forward_hooks),
            tuple(part._forward_pre_hooks),
            vars(part).get("forward"),
            tuple((name, own) for name, own in vars(part).items() if isinstance(own, PLAIN)),
        )
        for part in module.modules()
    )
