"""Whether somebody has touched a network since it was looked at."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, str)
"""Attributes of modules that are compared by value: scales, window sizes, switches."""
DEPTH = 4
"""Of containers in containers that are looked into."""
OWN = frozenset(vars(nn.Module()))
"""What every module holds: parameters, hooks and parts are looked at by themselves."""


def state_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when weights are written or replaced, in whatever way, or the structure changes:
    `.data` and fused optimisers write past torch's counter of versions, so that numbers are read.
    """
    tensors = (*module.parameters(), *module.buffers())
    return (*((id(t), _content(t)) for t in tensors), *structure_of(module))


def structure_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when modules are put in, hooks come and go (each has a number of its own) or are
    switched, a module gets another `forward`, or one of its numbers another value.
    """
    return tuple(
        (
            part,
            type(part),
            _hooks(part._forward_hooks),
            _hooks(part._forward_pre_hooks),
            vars(part).get("forward"),
            _owner(vars(part).get("forward")),
            tuple((name, _told(own)) for name, own in vars(part).items() if name not in OWN),
        )
        for part in module.modules()
    )


def _content(tensor: Tensor) -> tuple[Any, ...]:
    """A check sum of all numbers, with size and type."""
    kind = (tensor.dtype, tuple(tensor.shape))
    try:
        bits = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    except (NotImplementedError, RuntimeError, TypeError):  # no storage that could be read
        return (*kind, 0 if tensor.is_inference() else tensor._version)
    return (*kind, zlib.crc32(bits.data))


def _hooks(hooks: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple((number, _owner(hook)) for number, hook in hooks.items())


def _owner(called: Any) -> Any:
    """What the object behind a method, or one that is called itself, holds."""
    owner = getattr(called, "__self__", called)
    return None if isinstance(owner, nn.Module) else _told(getattr(owner, "__dict__", None))


def _told(value: Any, depth: int = DEPTH) -> Any:
    """Plain values, numbers of tensors, and those in tuples, lists and dictionaries."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return _content(value)
    if isinstance(value, list | tuple) and depth:
        return tuple(_told(one, depth - 1) for one in value)
    if isinstance(value, Mapping) and depth:
        return tuple((str(name), _told(one, depth - 1)) for name, one in value.items())
    return type(value)
