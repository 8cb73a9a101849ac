"""Whether somebody has touched a network since it was looked at."""

from __future__ import annotations

from typing import Any

from torch import nn


def state_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when weights are written in place or replaced, or hooks come and go."""
    tensors = (*module.parameters(), *module.buffers())
    hooks = (len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())
    versions = ((id(t), 0 if t.is_inference() else t._version) for t in tensors)
    return (*versions, *hooks)
